"""The steps of an upgrade, their records and the lease; the trial period. No Spark."""

from __future__ import annotations

import abc
import dataclasses
import logging
import uuid
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.errors import LeaseHeldError, StopError, StopRefusedError
from airflow_provider.runtime.jobdir.lease import (
    HEARTBEAT_S,
    TIMEOUT_S,
    Lease,
    acquire_lease,
)
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.upgrade_record import (
    FOLDER,
    UpgradeRecord,
    UpgradeStep,
    check_may_begin,
    newest_upgrade,
    overtaken,
    put_upgrade,
    read_upgrade,
    upgrade_id,
    worker_of,
)
from airflow_provider.runtime.observe.health import DriverSample, Health, Limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.observe.health import QuerySample

log = logging.getLogger(__name__)

MOST_BATCHES: Final = 90
"""What was written can be reverted for a hundred batches; then records of epochs are folded."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """How a new version is tried: for how long, within which limits."""

    trial_period_s: float
    limits: Limits
    stop_timeout_s: float


@dataclasses.dataclass(frozen=True)
class TrialPeriod:
    """The observations of a trial so far; pure."""

    trial: Trial
    begins: Mapping[str, int]
    began_s: float
    health: Health = dataclasses.field(default_factory=Health)

    def after(
        self, queries: Mapping[str, QuerySample], *, report: str, now_s: float
    ) -> tuple[TrialPeriod, str | None]:
        sample = DriverSample(0, "this machine", report, queries)
        health, problem = self.health.after(sample, self.trial.limits, now_s)
        known = dataclasses.replace(self, health=health)
        if problem is not None:
            query = f"query {problem.query!r}: " if problem.query is not None else ""
            return known, f"{query}{problem.reason}"
        batches = max((q.committed - self._begin(n) for n, q in queries.items()), default=0)
        if now_s - self.began_s < self.trial.trial_period_s and batches < MOST_BATCHES:
            return known, None
        silent = [
            name
            for name in self.begins
            if name not in queries or queries[name].committed <= self._begin(name)
        ]
        if silent:
            return known, (
                f"query {silent[0]!r} has committed no batch in {self.trial.trial_period_s:g} "
                "seconds"
            )
        return known, ""

    def _begin(self, query: str) -> int:
        return self.begins.get(query, -1)


class UpgradeSteps(abc.ABC):
    """One upgrade, by a process that holds its lease from the first step to the decision.

    *driver_id* is None for the command line; *command* continues it in a shell. Another process may
    take the lease after *timeout_s* of silence.
    """

    def __init__(
        self,
        directory: JobDirectory,
        new: JobDirectory,
        entry: str,
        *,
        driver_id: str | None,
        clock: Clock,
        command: str = "",
        heartbeat_s: float = HEARTBEAT_S,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._directory = directory
        self._new = new
        self._entry = entry
        self._id = upgrade_id(new.url)
        self._driver_id = driver_id or uuid.uuid4().hex
        self._clock = clock
        self._command = command
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._lease: Lease | None = None
        self._known: UpgradeRecord | None = None

    def decide(self) -> FinalCheckpoint | None:
        """Continue the upgrade from its last step until the decision.

        Returns:
            The final checkpoint of the new version, which is driven until its run ends; None if it
            was rejected and reverted, so that the old one may continue.

        Raises:
            ConfigError: the upgrade cannot be begun; nothing was written.
            LeaseHeldError, LeaseLostError: another process is at work on an upgrade of the job.
        """
        self._known = read_upgrade(self._directory, self._id)
        if self._known is None:
            check_may_begin(self._directory, self._new)
            self.check()
        try:
            if self._known is None or self._known.is_open:
                self._lease = self._acquire()
                self._known = self._begin_or_take_over()
            return self._go_on()
        finally:
            self._release()

    # --- what is done ---------------------------------------------------------------------------

    @abc.abstractmethod
    def check(self) -> None:
        """Check the new version against the state of the old one, which runs meanwhile."""

    @abc.abstractmethod
    def stop_old(self) -> str:
        """Stop the old version, if it runs, and return the savepoint of its end. Idempotent."""

    @abc.abstractmethod
    def drive_new(self) -> FinalCheckpoint | str:
        """Drive the new version; return why it is rejected, if it is."""

    @abc.abstractmethod
    def revert_new(self) -> None:
        """Revert the rows of the rejected version, and bar it from running again. Idempotent."""

    # --- what is recorded -----------------------------------------------------------------------

    @property
    def record(self) -> UpgradeRecord:
        assert self._known is not None  # noqa: S101 - by the caller: it has begun
        return self._known

    def has_accepted(self) -> bool:
        return self.record.is_accepted

    def accept(self) -> None:
        """Record that the new version is active, while it is driven.

        After an OSError it is not known whether that was recorded; the same call finds out.
        """
        failpoints.hit("upgrade.decided")
        self._put(self.record.after(UpgradeStep.ACCEPTED))
        failpoints.hit("upgrade.accepted")
        log.info("%s: the version in %s is active", self._directory.url, self._new.url)

    def _go_on(self) -> FinalCheckpoint | None:
        if self.record.step is UpgradeStep.STOPPING:
            savepoint = self._stop()
            failpoints.hit("upgrade.stopped")
            self._put(self.record.after(UpgradeStep.TRIAL, savepoint=savepoint))
            failpoints.hit("upgrade.trial")
        if self.record.step in {UpgradeStep.TRIAL, UpgradeStep.ACCEPTED}:
            ended = self.drive_new()
            if not isinstance(ended, str):
                return ended
            failpoints.hit("upgrade.decided")
            self._put(self.record.after(UpgradeStep.REJECTED, reason=ended))
            failpoints.hit("upgrade.rejected")
        if self.record.step is UpgradeStep.REJECTED:
            log.warning("%s: rejected: %s", self._new.url, self.record.reason)
            self._check_lease()
            self.revert_new()
            failpoints.hit("upgrade.reverted")
            self._put(self.record.after(UpgradeStep.ROLLED_BACK))
            failpoints.hit("upgrade.rolled_back")
        return None

    def _stop(self) -> str:
        self._check_lease()
        try:
            return self.stop_old()
        except (StopError, StopRefusedError) as error:
            reason = f"it was not begun: {error}"
            self._put(self.record.after(UpgradeStep.ROLLED_BACK, reason=reason))
            raise

    def _begin_or_take_over(self) -> UpgradeRecord:
        """Write the first step, or the current one as another writer's, which fences others out."""
        found = read_upgrade(self._directory, self._id)  # another one may have come and gone
        if found is not None and not found.is_open:
            return found
        if found is not None:
            return put_upgrade(self._directory, found.taken_over(self._driver_id, self._command))
        begun = put_upgrade(
            self._directory,
            UpgradeRecord(
                number=check_may_begin(self._directory, self._new),
                by=self._driver_id,
                id=self._id,
                to=self._new.url,
                entry=self._entry,
                old_run_id=last_run(self._directory).run_id,
                began=to_iso(self._clock.now()),
                command=self._command,
            ),
        )
        failpoints.hit("upgrade.stopping")
        return begun

    def _put(self, record: UpgradeRecord) -> None:
        self._known = put_upgrade(self._directory, record)
        if not record.is_open:
            self._release()

    # --- who may --------------------------------------------------------------------------------

    def _acquire(self) -> Lease:
        storage = self._directory.storage.at(FOLDER)
        try:
            return acquire_lease(
                storage,
                run_id=self._id,
                driver_id=self._driver_id,
                owner=identify_this(),
                clock=self._clock,
                timeout_s=self._timeout_s,
                heartbeat_s=self._heartbeat_s,
            )
        except LeaseHeldError as error:
            newest = newest_upgrade(self._directory)
            who = "another process"
            if newest is not None and newest.is_open:
                worker = worker_of(self._directory, newest)
                who = f"{worker.name} on {worker.host}"
            raise LeaseHeldError(
                f"{self._directory.url}: {who} is at work on an upgrade of this job; "
                "wait for its decision, which 'spark-stream status' shows"
            ) from error

    def _check_lease(self) -> None:
        if self._lease is None:
            return
        if self._lease.is_lost():
            raise overtaken(self._directory, self.record)
        self._lease.check()

    def _release(self) -> None:
        if self._lease is not None:
            self._lease.release()
