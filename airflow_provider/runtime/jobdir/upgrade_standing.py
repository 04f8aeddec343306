"""Standing of an upgrade: the process that works on it, and the user's next step.

The worker is known from the records that it left: the lease ``upgrades/leases/<token>.json``, and,
if a task submitted it, its submission and ``owner.json``. So a message tells the user to give a
command again only where no other process is at work.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord, SubmissionRecord
from airflow_provider.runtime.jobdir.upgrade_record import (
    FOLDER,
    UpgradeRecord,
    UpgradeStep,
    rejection_of,
    steps_newest_first,
    upgrade_id,
)

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory

_MEANING: Final = {
    UpgradeStep.STOPPING: "the old version is being stopped",
    UpgradeStep.TRIAL: "the new version is on probation",
    UpgradeStep.REJECTED: "the new version is rejected, and its rows are being reverted",
}


@dataclasses.dataclass(frozen=True)
class UpgradeWorker:
    """The process that holds, or held, the lease of an upgrade.

    Attributes:
        host: its machine; empty if its lease is gone.
        liveness: whether it lives, as far as its lease was watched.
        owner: the DAG run whose task submitted it; None for the command line.
    """

    driver_id: str
    host: str
    liveness: Liveness
    owner: RunOwnerRecord | None

    @property
    def name(self) -> str:
        """The name by which a user knows the process."""
        if self.owner is None:
            return "'spark-stream upgrade'"
        return f"the task of DAG {self.owner.dag_id!r}, run {self.owner.dag_run_id!r},"

    @property
    def what_follows(self) -> str:
        """The user's options while the upgrade is open."""
        goes_on = (
            "give the same 'spark-stream upgrade' again, which continues it"
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

    Args:
        directory: the old version's.
        upgrade: its last step.
        waits: whether to watch the lease until it is known whether its holder lives; one timeout
            at most.
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
    )


def summary_of(upgrade: UpgradeRecord, worker: UpgradeWorker | None) -> str:
    """Return the state of an upgrade, and what the user can do.

    Args:
        upgrade: its last step.
        worker: the process that works on it; None if the upgrade is not open.
    """
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
    """Refuse an upgrade that the two directories forbid; nothing is written.

    Returns:
        The number of its first step.

    Raises:
        ConfigError: another upgrade is in force, or the new directory is in use, or was.
    """
    steps = [*steps_newest_first(directory)]  # one read: a later step has the number of the first
    newest = steps[0] if steps else None
    if newest is not None and newest.forbids_old:
        raise ConfigError(describe_version(directory, newest))
    before = next((step for step in steps if step.id == upgrade_id(new.url)), None)
    if before is not None:
        msg = f"{rejection_of(before)}; to try it again, give it another new directory"
        raise ConfigError(msg)
    if new.job() is not None or new.query_names():
        msg = f"{new.url}: there is a job already; a new version needs a new directory"
        raise ConfigError(msg)
    return newest.number + 1 if newest is not None else 1
