"""Upgrade requests and their outcome, for operators and triggers; without Spark."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from airflow_provider.runtime.base.typed_json import Address, NonNegative, Seconds
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.run_options import SECONDS, RunOptions, option
from airflow_provider.runtime.jobdir.run_spec import DriverSpec, RunSpec
from airflow_provider.runtime.jobdir.upgrade_record import (
    FOLDER,
    UpgradeRecord,
    last_step,
    read_upgrade,
    rejection_of,
    upgrade_id,
)
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.snapshot import RunSnapshot
from airflow_provider.runtime.observe.state import Assessment, RunState, assess
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.base.clock import Clock


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeSpec(RunOptions, DriverSpec):
    """The request of an upgrade: which version takes whose place, and how.

    Attributes:
        job_dir: the directory of the version that runs; all else of the run is the new version's.
        mode: decided by the upgrade, and so no option of it; the same of *replayable_runs*.
        to: the new version's directory.
        trial_period_s: how long the new version is watched.
        progress_timeout_s: how long it may commit nothing while it has input.
        stop_timeout_s: how long the old version may take to stop.
    """

    COMMAND: ClassVar[str] = "upgrade"

    mode: str = "streaming"
    replayable_runs: NonNegative = 1
    to: Address = option(
        "--to",
        "the directory of the new version",
        argument="new_job_dir",
        required=True,
        metavar="NEW_JOB_DIR",
    )
    trial_period_s: Seconds = option(
        "--trial-period",
        "how long the new version is watched (default: 10 minutes)",
        default=600.0,
        argument="trial_period",
        **SECONDS,
    )
    progress_timeout_s: Seconds = option(
        "--progress-timeout",
        "how long it may commit nothing while there is something to read, meanwhile "
        "(default: 2 minutes)",
        default=120.0,
        argument="progress_timeout",
        **SECONDS,
    )
    stop_timeout_s: Seconds = option(
        "--stop-timeout",
        "how long the old version may take to stop (default: 10 minutes)",
        default=600.0,
        argument="stop_timeout",
        **SECONDS,
    )

    def __post_init__(self) -> None:
        self.check()
        self.check_params()

    def new_version(self) -> RunSpec:
        shared = (*dataclasses.fields(RunOptions), *dataclasses.fields(DriverSpec))
        asked = {each.name: getattr(self, each.name) for each in shared}
        return RunSpec(**{**asked, "job_dir": self.to})


@dataclasses.dataclass(frozen=True)
class UpgradeSnapshot(RunSnapshot):
    """The state of an upgrade at one poll; *record* is None before it has begun."""

    record: UpgradeRecord | None = None


def assess_upgrade(snapshot: UpgradeSnapshot) -> Assessment:
    """Decide by the record if the upgrade is decided, else by the lease."""
    record = snapshot.record
    if record is None or record.is_open:
        return assess(snapshot)
    if record.is_accepted:
        return Assessment(RunState.FINISHED)
    return Assessment(RunState.FAILED, rejection_of(record), fatal=True)


class UpgradeWatcher(RunWatcher):
    """Polls one upgrade; see :class:`RunWatcher`."""

    def __init__(
        self,
        directory: JobDirectory,
        request: Mapping[str, str],
        clock: Clock,
        *,
        driver_id: str | None = None,
        ask: Callable[[Handle], LaunchStatus | None] | None = None,
    ) -> None:
        new = open_storage(request["to"])
        super().__init__(
            directory.storage,
            upgrade_id(new.url),
            clock,
            driver_id,
            observer=LeaseObserver(directory.storage.at(FOLDER), clock),
            ask=ask,
        )
        self._new = JobDirectory(new).run(self.run_id)
        self._known: UpgradeRecord | None = None
        self.requests = new

    def record(self) -> UpgradeRecord | None:
        if self._known is None:
            self._known = read_upgrade(self._directory, self.run_id)
        else:
            self._known = last_step(self._directory, self._known)
        return self._known

    def has_ended(self) -> bool:
        """Whether the upgrade is decided; one read."""
        record = self.record()
        return record is not None and not record.is_open

    def poll(self) -> UpgradeSnapshot:
        seen = super().poll()
        # Read last: a driver records its step, and then gives its lease up or ends.
        facts = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
        facts |= {"attempt": self._new.last_attempt(), "progress": self._new.progress()}
        return UpgradeSnapshot(**facts, record=self.record())

    def decide(self, snapshot: RunSnapshot) -> Assessment:
        if not isinstance(snapshot, UpgradeSnapshot):
            return super().decide(snapshot)
        return assess_upgrade(snapshot)


def upgrade_to(new_job_dir: str) -> dict[str, str]:
    """Return the request by which a trigger finds the watcher of an upgrade."""
    return {"command": UpgradeSpec.COMMAND, "to": new_job_dir}
