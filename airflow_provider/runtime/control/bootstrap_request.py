"""Bootstrap requests and their progress; without Spark."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import CheckpointError, ConfigError, refusing
from airflow_provider.runtime.errors.fixes import of_caller, set_option
from airflow_provider.runtime.jobdir.identity import PATH as IDENTITY
from airflow_provider.runtime.jobdir.identity import BootstrapPurpose, IdentityRecord
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver, wait_for_free_lease
from airflow_provider.runtime.jobdir.run_options import OUTPUTS, check_word, option
from airflow_provider.runtime.jobdir.run_spec import (
    DriverSpec,
    check_params,
    check_secret_params,
    parse_params,
)
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.snapshot import RunSnapshot
from airflow_provider.runtime.observe.state import Assessment, RunState, assess
from airflow_provider.runtime.savepoints.catalog import Savepoint, open_savepoint
from airflow_provider.runtime.savepoints.record import MANIFEST
from airflow_provider.runtime.storage.file_tree import remove_if_empty, remove_tree
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.base.clock import Clock

ORIGIN: Final = "bootstrap"
RUN_ID: Final = "bootstrap"
LABEL: Final = "bootstrap"
"""The savepoint's label with a digest of the request."""
_SAVING_TIMEOUT_S: Final = 3600.0  # a store may copy for long; silence must end some time


@dataclasses.dataclass(frozen=True, kw_only=True)
class BootstrapSpec(DriverSpec):
    """The request of a bootstrap: the state to make of a history.

    Attributes:
        job_dir: the live job's directory, in which nothing has begun yet.
        entry: ``FILE.py:FUNC`` or ``pkg.mod:FUNC``: the live job's own.
        params: of the history; any values of JSON.
        to: the savepoint's own folder; None for ``JOB_DIR/savepoints/bootstrap``.
        output: ``discard``, or ``keep`` to let the sinks have it.
        kept: names of sources that continue where history ended, because they read the same later.
        live_params: of the live job, to compare both before anything is read; None not to.
        conf: Spark configuration; the live job's, where it is about state.
    """

    COMMAND: ClassVar[str] = "bootstrap"

    params: Mapping[str, Any] = option(
        "--param",
        "a parameter of the job, to read the history; K:=JSON for a value that is not text",
        default=dict,
        argument="history_params",
        parse=parse_params,
        action="append",
        metavar="K=V",
    )
    live_params: Mapping[str, Any] | None = option(
        "--live-param",
        "the live job's parameters: both are compared before anything is read",
        default=None,
        argument="live_params",
        parse=parse_params,
        action="append",
        metavar="K=V",
    )
    to: str | None = option(
        "--to",
        "the savepoint's own folder; default: JOB_DIR/savepoints/bootstrap",
        default=None,
        argument="savepoint",
        metavar="URL",
    )
    output: str = option(
        "--output",
        "the history's output; default: discard, which touches no sink",
        default="discard",
        argument="output",
        choices=OUTPUTS,
    )
    kept: tuple[str, ...] = option(
        "--keep-position",
        "this source continues after the history; the others start from their beginning",
        default=(),
        argument="keep_positions",
        parse=lambda names, _: tuple(names),
        action="append",
        metavar="SOURCE",
    )

    def __post_init__(self) -> None:
        check_word("output", self.output, OUTPUTS)
        check_params(self.params)
        check_params(self.live_params or {})
        check_secret_params({**self.params, **(self.live_params or {})}, self.secret_params)

    @property
    def target(self) -> str:
        return self.to or f"{self.job_dir.rstrip('/')}/savepoints/{ORIGIN}"

    @property
    def purpose(self) -> BootstrapPurpose:
        return BootstrapPurpose(self.target, self.digest)

    @property
    def digest(self) -> str:
        """What distinguishes it from a bootstrap of another history to the same location."""
        asked = [
            sorted(self.params.items()),
            self.output,
            sorted(self.kept),
            [each.isoformat() for each in self.interval or ()],
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def scratch_of(directory: JobDirectory, target: str) -> JobDirectory:
    """Return the job directory in which the history for a savepoint is read."""
    name = check_name(open_storage(target).url.rpartition("/")[2], what="savepoint")
    return JobDirectory(directory.storage.at(f"bootstraps/{name}"))


def find_made(target: str, digest: str) -> Savepoint | None:
    """Return the savepoint that a bootstrap has made, or None."""
    url = open_storage(target).url
    if not open_storage(url).exists(MANIFEST):
        return None
    found = open_savepoint(url)
    if found.record.origin == ORIGIN and found.record.labels.get(LABEL) == digest:
        return found
    raise ConfigError(
        f"{url}: there is a savepoint of this name, made of something else; choose another one"
    )


def check_not_begun(directory: JobDirectory, clock: Clock) -> None:
    """Refuse to make a first state of a job that has one; nothing is written."""
    with refusing(directory.url, "read"):
        wait_for_free_lease(directory.storage, clock)
        begun = [
            f"query {name!r} has a checkpoint"
            for name in directory.query_names()
            if CheckpointLogs(directory.checkpoint(name)).exists()
        ]
        last = newest_run(directory)
        begun += [f"run {last.run_id!r} is recorded"] if last is not None else []
        last_restore = Journal(directory.storage).last_restore()
        begun += ["it was set to a savepoint"] if last_restore is not None else []
    if begun:
        raise ConfigError(
            f"{directory.url}: the job has begun already ({begun[0]}), and a bootstrap makes a "
            "job's first state; name a directory in which none has begun. To change the state: "
            "'spark-stream state rewrite'"
        )


def check_same(scratch: JobDirectory, spec: BootstrapSpec) -> None:
    """Refuse to continue a bootstrap of another history."""
    with refusing(scratch.url, "read"):
        before = IdentityRecord.read(scratch.storage, IDENTITY)
    if before is not None and before.bootstrap != spec.purpose:
        other, location = before.bootstrap, of_caller("--to", "savepoint")
        what = "another job lies there; "
        if other is not None:
            what = (
                f"a bootstrap began at {before.made} for {other.savepoint} with other parameters, "
                "and did not end; end it with those parameters, remove that folder, or "
            )
        raise ConfigError(f"{scratch.url}: {what}give this one another {location}")


def check_has_rows(scratch: JobDirectory, queries: Iterable[str], *, output: str) -> None:
    """Refuse history that has no row for a query, once it is read."""
    batches = {name: CheckpointLogs(scratch.checkpoint(name)).position() for name in queries}
    empty = [name for name, position in batches.items() if position.last_commit < 0]
    if not empty:
        return
    what = f"query {empty[0]!r}: history has no row for it, so there is nothing to begin from"
    written = sorted(set(batches) - set(empty)) if output == "keep" else []
    if written:
        raise CheckpointError(
            f"{what}. The output of {', '.join(written)} is written, as "
            f"{set_option('output', 'keep')} requires; remove it by hand, and remove "
            f"{scratch.url}, before you bootstrap again"
        )
    remove_scratch(scratch)
    raise ConfigError(f"{what}; check the parameters")


def remove_scratch(scratch: JobDirectory) -> None:
    """Remove a scratch directory that is no longer needed. Idempotent."""
    remove_tree(scratch.storage)
    remove_if_empty(scratch.url.rpartition("/")[0])


@dataclasses.dataclass(frozen=True)
class BootstrapSnapshot(RunSnapshot):
    """The state of a bootstrap at one poll."""

    made: bool = False
    has_read: bool = False
    reader_gone: bool = True


def assess_bootstrap(snapshot: BootstrapSnapshot) -> Assessment:
    """Return the state of a bootstrap."""
    if snapshot.made:
        return Assessment(RunState.FINISHED)
    assessment = assess(snapshot)
    is_over = snapshot.exit is not None or snapshot.submission_gone
    if snapshot.submission is None:  # a person's command, which says no more of itself
        is_over = snapshot.reader_gone
    has_lease = assessment.run_state in {RunState.RUNNING, RunState.ENDING, RunState.FOREIGN}
    if snapshot.has_read and not is_over and not has_lease:
        return Assessment(RunState.RUNNING)
    return assessment


class BootstrapWatcher(RunWatcher):
    """Watches one bootstrap, of a *target* savepoint and the *digest* of its request."""

    def __init__(
        self,
        directory: JobDirectory,
        run_id: str,
        clock: Clock,
        *,
        target: str,
        digest: str,
        driver_id: str | None = None,
        ask: Callable[[Handle], LaunchStatus | None] | None = None,
    ) -> None:
        super().__init__(directory.storage, run_id, clock, driver_id, ask=ask)
        self._target = target
        self._digest = digest
        self._scratch = scratch_of(directory, target)
        self._observer = LeaseObserver(self._scratch.storage, clock)
        self._saving_since: float | None = None
        self.requests = self._scratch.storage

    def made(self) -> Savepoint | None:
        """Return the savepoint; None while there is none."""
        return find_made(self._target, self._digest)

    def has_ended(self) -> bool:
        """Whether all history is read, and the savepoint is being taken; one read."""
        return self._scratch.run(RUN_ID).final() is not None

    def poll(self) -> BootstrapSnapshot:
        seen = super().poll()
        # A driver puts the final checkpoint, gives its lease up, puts the savepoint, and ends: what
        # comes first is read last, or a driver would be taken for one that has ended in vain.
        has_read = self._scratch.run(RUN_ID).final() is not None
        lease = seen.lease
        facts = {f.name: getattr(seen, f.name) for f in dataclasses.fields(seen)}
        facts |= {"run_id": RUN_ID, "directory": self._scratch}
        facts["attempt"] = self._scratch.run(RUN_ID).last_attempt()
        facts["has_read"] = has_read
        facts["reader_gone"] = lease is None or lease.owner.is_gone()
        return BootstrapSnapshot(**facts, made=self.made() is not None)

    def decide(self, snapshot: RunSnapshot) -> Assessment:
        """Decide from one snapshot."""
        assessment = (
            assess_bootstrap(snapshot)
            if isinstance(snapshot, BootstrapSnapshot)
            else super().decide(snapshot)
        )
        is_saving = assessment.run_state is RunState.RUNNING and snapshot.liveness in TAKEABLE
        if not is_saving:
            self._saving_since = None
            return assessment
        now = self._clock.monotonic()
        if self._saving_since is None:
            self._saving_since = now
        if now - self._saving_since > _SAVING_TIMEOUT_S:
            reason = f"all history is read, and there is no savepoint in {_SAVING_TIMEOUT_S:.0f} s"
            return Assessment(RunState.FAILED, reason)
        return assessment

    def clean(self) -> None:
        """Remove what a driver has left that died when its savepoint was made."""
        seen = self.poll()
        is_over = seen.submission is None or seen.exit is not None or seen.submission_gone
        if is_over and seen.liveness in TAKEABLE:
            remove_scratch(self._scratch)
