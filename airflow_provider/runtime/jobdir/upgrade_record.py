"""Upgrades: one version of a job takes the place of another one, in a directory of its own.

The record lies with the old version, and decides which of the two may run. Each step is put before
its action, so the same command continues after a crash; docs/internals/crash-table.md has the
steps. From ``stopping`` on only the upgrade starts the old version, and from ``accepted`` on
nothing does.

Steps are numbered over all upgrades of a directory, and put if absent, so at most one upgrade is
open or accepted. A process that takes over an upgrade, under the lease
``upgrades/leases/<token>.json``, first puts the current step again under its own name. That fences
a paused process, which has no free number left. What it may still do is harmless: both share one
request id and one savepoint name, the lease of each version's directory fences driving and
reverting, and ``rejected`` leads to ``rolled back`` alone.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import hashlib
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.names import UNSAFE, numbers_in
from airflow_provider.runtime.base.typed_json import Address, IsoTime, Name, Positive
from airflow_provider.runtime.errors import (
    ConfigError,
    CorruptDocumentError,
    IllegalTransitionError,
    LeaseLostError,
)
from airflow_provider.runtime.jobdir.identity import check_format, identity_of
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord, SubmissionRecord
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from airflow_provider.runtime.jobdir.layout import JobDirectory


FOLDER: Final = "upgrades"
"""Where a job directory has its upgrades, and the lease of who works on the one that stands."""
_NAME_CHARS: Final = 60  # of a directory's name; the id is part of names of files


class UpgradeStep(str, enum.Enum):
    """How far an upgrade has come."""

    STOPPING = "stopping"
    TRIAL = "trial"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled back"


_NEXT: Final = {
    UpgradeStep.STOPPING: {UpgradeStep.TRIAL, UpgradeStep.ROLLED_BACK},
    UpgradeStep.TRIAL: {UpgradeStep.ACCEPTED, UpgradeStep.REJECTED},
    UpgradeStep.REJECTED: {UpgradeStep.ROLLED_BACK},
    UpgradeStep.ACCEPTED: set(),
    UpgradeStep.ROLLED_BACK: set(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeRecord(Document):
    """``upgrades/<number>.json``, in the directory of the old version: a step of an upgrade.

    Attributes:
        number: of the step, over all upgrades of the directory; the highest one counts.
        id: made of the address of the new version's directory, and the run of both that is tried.
        old_run_id: the stopped run of the old version, whose options the upgrade continues with.
        savepoint: with which the new version begins; None before it is taken.
        reason: why it was rejected, or was not begun; empty for no reason.
        command: the shell command that carries it out; empty if a task does.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("upgrades/{number}.json",)
    WRITTEN = Written("once", "upgrade", "the step was not reached")

    number: Positive = 1
    by: Name
    id: Name
    to: Address
    entry: str
    old_run_id: Name
    began: IsoTime
    step: UpgradeStep = UpgradeStep.STOPPING
    savepoint: Address | None = None
    reason: str = ""
    command: str = ""

    def after(
        self, step: UpgradeStep, *, savepoint: str | None = None, reason: str = ""
    ) -> UpgradeRecord:
        """Return the record of the next step."""
        if step not in _NEXT[self.step]:
            raise IllegalTransitionError(
                f"upgrade {self.id}: {step.value} does not follow {self.step.value}"
            )
        return dataclasses.replace(
            self,
            number=self.number + 1,
            step=step,
            savepoint=savepoint or self.savepoint,
            reason=reason or self.reason,
        )

    def taken_over(self, by: str, command: str = "") -> UpgradeRecord:
        """Return the record with which another driver continues the same step."""
        return dataclasses.replace(self, number=self.number + 1, by=by, command=command)

    @property
    def is_open(self) -> bool:
        """Whether it is not known yet which version is active."""
        return bool(_NEXT[self.step])

    @property
    def is_accepted(self) -> bool:
        return self.step is UpgradeStep.ACCEPTED

    @property
    def forbids_old(self) -> bool:
        return self.step is not UpgradeStep.ROLLED_BACK


def upgrade_id(to: str) -> str:
    """Return the id of the upgrade to the version at an address: its folder's name and a digest."""
    name = UNSAFE.sub("_", to.rstrip("/").rpartition("/")[2])[:_NAME_CHARS]
    return f"upgrade-{name}-{hashlib.sha256(to.encode()).hexdigest()[:8]}"


def newest_upgrade(directory: JobDirectory) -> UpgradeRecord | None:
    """Return the newest step of any upgrade; None before the first one.

    A listing may be stale on a network filesystem, so later steps are also read by name.
    """
    number = max(numbers_in(directory.storage.list(FOLDER), ".json"), default=0)
    record = _read(directory, number) if number else None
    if number and record is None:
        msg = f"{directory.url}/{_path(number)} is listed and not there"
        raise OSError(errno.ESTALE, msg)
    while (newer := _read(directory, number + 1)) is not None:
        record, number = newer, newer.number
    return record


def read_upgrade(directory: JobDirectory, upgrade: str) -> UpgradeRecord | None:
    """Return the last step of the upgrade of an id; None when it was never begun."""
    return next((record for record in steps_newest_first(directory) if record.id == upgrade), None)


def last_step(directory: JobDirectory, seen: UpgradeRecord) -> UpgradeRecord:
    """Return the last step of an upgrade of which one is known; one read if there is no newer."""
    while (newer := _read(directory, seen.number + 1)) is not None and newer.id == seen.id:
        seen = newer
    return seen


def put_upgrade(directory: JobDirectory, record: UpgradeRecord) -> UpgradeRecord:
    """Put a step if its number is free, and return it.

    Raises:
        LeaseLostError: another process has put that number; nothing was written.
        OSError: it is not known whether it was put; the same call finds out.

    Crash safety: one document, put if absent. Idempotent: by number and driver.
    """
    is_put = record.put_if_absent(directory.storage, _path(record.number))
    if not is_put and _read(directory, record.number) != record:  # nor was only the answer lost
        raise overtaken(directory, record)
    return record


def overtaken(directory: JobDirectory, mine: UpgradeRecord) -> LeaseLostError:
    """Return the error for a process that was paused while another one took over the upgrade."""
    newest = newest_upgrade(directory)
    step = newest.step.value if newest is not None else "removed"
    msg = (
        f"{directory.url}: another process has gone on with the upgrade to {mine.to} (it is "
        f"{step}) while this one stood still; this one ends, and changes nothing more"
    )
    return LeaseLostError(msg)


def active_upgrade(directory: JobDirectory) -> UpgradeRecord | None:
    """Return the upgrade for which the version in a directory is not started; None for none."""
    newest = newest_upgrade(directory)
    return newest if newest is not None and newest.forbids_old else None


def upgrade_over(
    directory: JobDirectory, run_id: str | None = None
) -> tuple[JobDirectory, UpgradeRecord] | None:
    """Return the upgrade that forbids to start a version or to set it back, and its directory.

    It is one from this version that was not rejected, or an open one to it, which alone starts its
    own run *run_id*.
    """
    upgrade, trial = active_upgrade(directory), upgrade_id(directory.url)
    if upgrade is not None:
        return directory, upgrade
    run = directory.run(trial).record() if run_id != trial else None
    # After a later run the upgrade has ended, and the old directory may be gone.
    if run is None or run.from_savepoint is None or last_run(directory).run_id != trial:
        return None
    old = directory_at(run.from_savepoint.rpartition("/savepoints/")[0])
    tried = read_upgrade(old, trial)
    return (old, tried) if tried is not None and tried.is_open else None


def upgrade_from(directory: JobDirectory, run_id: str) -> UpgradeRecord | None:
    """Return the upgrade for which a run was stopped, if its directory is not started any more."""
    upgrade = active_upgrade(directory)
    return upgrade if upgrade is not None and upgrade.old_run_id == run_id else None


def rejection_of(upgrade: UpgradeRecord) -> str:
    """Return that a version was rejected, and why."""
    return f"the version in {upgrade.to} was rejected: {upgrade.reason}"


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a job, with what its run was begun with.

    Attributes:
        run_id: its run; after a stop the run has successors.
        from_savepoint: what it has begun from; empty for nothing.
    """

    job_dir: str
    entry: str
    run_id: str
    from_savepoint: str = ""


def active_version(
    first: Version,
    *,
    before: str | None = None,
    stays: Callable[[JobDirectory, UpgradeRecord], bool] = lambda *_: False,
) -> Version:
    """Return the version that accepted upgrades have led to; during an upgrade, the old one.

    Args:
        first: the version that the job began with.
        before: the directory of a version, for the version that it replaces; None for the newest
            one.
        stays: whether the caller is about a version although that upgrade has replaced it.

    Raises:
        CorruptDocumentError: accepted upgrades form a cycle.
    """
    last = directory_at(before).url if before is not None else None
    version, visited = first, set[str]()
    while True:
        directory = directory_at(version.job_dir)
        upgrade = active_upgrade(directory)
        if upgrade is None or upgrade.step is not UpgradeStep.ACCEPTED:
            return version
        if upgrade.to == last or stays(directory, upgrade):
            return version
        visited.add(directory.url)
        if directory_at(upgrade.to).url in visited:
            raise CorruptDocumentError(
                f"{directory.url}/{_path(upgrade.number)}: the upgrade leads back to {upgrade.to}, "
                "so no version is active; put back the documents in upgrades/ that were changed"
            )
        version = Version(upgrade.to, upgrade.entry, upgrade.id, upgrade.savepoint or "")


def active_directory(job_dir: str, *, run_id: str | None = None) -> str:
    """Return the directory of the active version for a job's address.

    Every use of an address goes through this function, or is about one version;
    docs/change-a-job.md has the table.

    Args:
        job_dir: the address of a version of the job, such as the first one.
        run_id: a run; selects the directory of an old version if only that one has the run.

    Raises:
        ConfigError: the directory of the active version is missing, or not mounted.
    """
    check_format(directory_at(job_dir).storage)
    found = active_version(Version(job_dir, "", "")).job_dir
    if found == job_dir:
        return job_dir
    directory = directory_at(found)
    if identity_of(directory.storage) is None:
        raise ConfigError(
            f"{job_dir}: its upgrades have led to {found}, and there is no job directory there "
            "(no identity.json); mount it, or put it back"
        )
    if run_id is None or _has_run(directory, run_id) or not _has_run(directory_at(job_dir), run_id):
        return found
    return job_dir


def _has_run(directory: JobDirectory, run_id: str) -> bool:
    run = directory.run(run_id)
    return run.record() is not None or bool(run.submissions())


def steps_newest_first(directory: JobDirectory) -> Iterator[UpgradeRecord]:
    """Yield every step of every upgrade of a directory, the last one first."""
    record = newest_upgrade(directory)
    while record is not None:
        yield record
        record = _read(directory, record.number - 1) if record.number > 1 else None


def _read(directory: JobDirectory, number: int) -> UpgradeRecord | None:
    return UpgradeRecord.read(directory.storage, _path(number))


def _path(number: int) -> str:
    return f"{FOLDER}/{number}.json"


_MEANING: Final = {
    UpgradeStep.STOPPING: "the old version is being stopped",
    UpgradeStep.TRIAL: "the new version is on trial",
    UpgradeStep.REJECTED: "the new version is rejected, and its rows are being reverted",
}


@dataclasses.dataclass(frozen=True)
class UpgradeWorker:
    """The process that holds, or held, the lease of an upgrade.

    Attributes:
        host: its machine; empty if its lease is gone.
        liveness: as far as its lease was watched.
        owner: the DAG run whose task submitted it; None for the command line.
        command: the command; empty if it is not known.
    """

    driver_id: str
    host: str
    liveness: Liveness
    owner: RunOwnerRecord | None
    command: str

    @property
    def name(self) -> str:
        if self.owner is None:
            return "'spark-stream upgrade'"
        return f"the task of DAG {self.owner.dag_id!r}, run {self.owner.dag_run_id!r},"

    @property
    def what_follows(self) -> str:
        goes_on = (
            f"to continue it: {self.command or 'the same spark-stream upgrade'}"
            if self.owner is None
            else f"a retry or a clear of {self.name} continues it"
        )
        if self.liveness in TAKEABLE:
            return f"no process is at work on it; {goes_on}"
        where = f"{self.name} on {self.host}"
        if self.liveness is Liveness.LIVE:
            return f"{where} is at work on it; wait for its decision"
        return f"{where} was last at work on it; wait for its decision, or if it has died {goes_on}"


def worker_of(
    directory: JobDirectory, upgrade: UpgradeRecord, *, waits: bool = False
) -> UpgradeWorker:
    """Return the process that works on an open upgrade, or worked on it last.

    *waits* watches its lease until its liveness is known, for one timeout at most.
    """
    observer = LeaseObserver(directory.storage.at(FOLDER), SystemClock())
    lease, liveness = observer.settle() if waits else observer.look()
    if lease is not None and lease.run_id != upgrade.id:  # of an earlier upgrade
        lease, liveness = None, Liveness.FREE
    driver_id = lease.driver_id if lease is not None else upgrade.by
    run = directory.run(upgrade.id).storage
    is_submitted = SubmissionRecord.read(run, f"submissions/{driver_id}.json") is not None
    return UpgradeWorker(
        driver_id=driver_id,
        host=lease.owner.host if lease is not None else "",
        liveness=liveness,
        owner=RunOwnerRecord.read(run, RunOwnerRecord.NAME) if is_submitted else None,
        command=upgrade.command,
    )


def summary_of(upgrade: UpgradeRecord, worker: UpgradeWorker | None) -> str:
    """Return the state of an upgrade, and what the user can do."""
    if upgrade.is_accepted:
        return f"the version in {upgrade.to} has taken over; run that one"
    if worker is None or not upgrade.is_open:
        return rejection_of(upgrade)
    return (
        f"its upgrade to {upgrade.to} has not ended ({_MEANING[upgrade.step]}); "
        f"{worker.what_follows}"
    )


def describe_version(directory: JobDirectory, upgrade: UpgradeRecord) -> str:
    """Return why the version in a directory is not started, and what the user can do."""
    worker = worker_of(directory, upgrade) if upgrade.is_open else None
    return f"{directory.url}: {summary_of(upgrade, worker)}"


def check_may_begin(directory: JobDirectory, new: JobDirectory) -> int:
    """Refuse an upgrade that the two directories forbid; return the number of its first step."""
    steps = [*steps_newest_first(directory)]  # one read: a later step has the number of the first
    if (found := upgrade_over(directory)) is not None:
        raise ConfigError(describe_version(*found))
    before = next((step for step in steps if step.id == upgrade_id(new.url)), None)
    if before is not None:
        raise ConfigError(f"{rejection_of(before)}; to try it again, give it another new directory")
    if new.job() is not None or new.query_names():
        raise ConfigError(f"{new.url}: there is a job already; a new version needs a new directory")
    return steps[0].number + 1 if steps else 1
