"""Upgrade requests: what was requested, and how far it is; without Spark.

:mod:`airflow_provider.runtime.cli.upgrading` does it. This is what those use as well who only ask
for it and wait: the request, and whether the new version is in force.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Final

from airflow_provider.runtime.clock import parse_duration
from airflow_provider.runtime.control.observer import (
    Assessment,
    RunState,
    RunWatcher,
    View,
    assess,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver
from airflow_provider.runtime.jobdir.run_options import option
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    UpgradeStep,
    read_upgrade,
    rejection_of,
    upgrade_id,
)
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.typed_json import Address, Seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.control.launchers.protocol import Look
    from airflow_provider.runtime.jobdir.submissions import HandleRecord

_SILENCE_S: Final = 3600.0  # a stop or a revert takes no lease; silence must end some time
_DECIDED: Final = frozenset({UpgradeStep.ACCEPTED, UpgradeStep.ROLLED_BACK})


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpgradeSpec(RunSpec):
    """``submissions/<driver id>.upgrade.json``: which version is to take whose place, and how.

    Attributes:
        job_dir: the directory of the version that runs; all else of the run is the new version's.
        to: the new version's directory.
        probation_s: how long the new version is watched.
        progress_timeout_s: how long it may commit nothing while there is something to read.
        stop_timeout_s: how long the old version may take to stop.
    """

    COMMAND: ClassVar[str] = "upgrade"
    PLACES = ("submissions/{driver_id}.upgrade.json",)

    to: Address = option(
        "--to", "of the new version", argument="new_job_dir", required=True, metavar="NEW_JOB_DIR"
    )
    probation_s: Seconds = option(
        "--probation",
        "how long the new version is watched (default: 10 minutes)",
        default=600.0,
        argument="probation",
        parse=lambda value: parse_duration(value, name="--probation"),
        metavar="DURATION",
    )
    progress_timeout_s: Seconds = option(
        "--progress-timeout",
        "how long it may commit nothing while there is something to read, meanwhile "
        "(default: 2 minutes)",
        default=120.0,
        argument="progress_timeout",
        parse=lambda value: parse_duration(value, name="--progress-timeout"),
        metavar="DURATION",
    )
    stop_timeout_s: Seconds = option(
        "--stop-timeout",
        "how long the old version may take to stop (default: 10 minutes)",
        default=600.0,
        argument="stop_timeout",
        parse=lambda value: parse_duration(value, name="--stop-timeout"),
        metavar="DURATION",
    )

    def new_version(self) -> RunSpec:
        """Return the request of the new version's run."""
        asked = {field.name: getattr(self, field.name) for field in dataclasses.fields(RunSpec)}
        return RunSpec(**{**asked, "job_dir": self.to})


@dataclasses.dataclass(frozen=True)
class UpgradeView(View):
    """What one look at an upgrade has shown.

    Attributes:
        record: how far it is; None before it has begun.
    """

    record: UpgradeRecord | None = None


def assess_upgrade(view: UpgradeView, *, run_id: str) -> Assessment:
    """Decide what is going on, from one look.

    A driver holds the new version's lease while it tries it, and none while it stops the old
    version or takes back what the new one has written.
    """
    record = view.record
    if record is not None and record.step is UpgradeStep.ACCEPTED:
        return Assessment(RunState.DONE)
    if record is not None and record.step is UpgradeStep.ROLLED_BACK:
        return Assessment(RunState.FAILED, rejection_of(record), fatal=True)
    assessment = assess(view, run_id=run_id)
    has_launch_ended = view.launch is not None and view.launch.is_over
    is_gone = view.submission_gone or view.submission_lost
    is_over = view.exit is not None or is_gone or has_launch_ended
    if record is None or view.submission is None or is_over:
        return assessment
    # Between two leases; one that reverts holds it in another name.
    return assessment if assessment.run_state is RunState.RUNNING else Assessment(RunState.STARTING)


class UpgradeWatcher(RunWatcher):
    """Looks at one upgrade again and again.

    Submissions and the record lie in the old version's directory; lease, attempts and requests are
    those of the new version.

    Args:
        directory: the old version's.
        to: the new version's directory.
        clock: measures how long a heartbeat has not changed.
        driver_id: the submission to watch; None for the last one.
        ask: as of :class:`RunWatcher`.
    """

    def __init__(
        self,
        directory: JobDirectory,
        to: str,
        clock: Clock,
        *,
        driver_id: str | None = None,
        ask: Callable[[HandleRecord], Look] | None = None,
    ) -> None:
        new = open_storage(to)
        super().__init__(
            directory.storage,
            upgrade_id(new.url),
            clock,
            driver_id,
            observer=LeaseObserver(new, clock),
            ask=ask,
        )
        self._new = JobDirectory(new).run(self.run_id)
        self._silent_since: float | None = None
        self.requests = new

    def record(self) -> UpgradeRecord | None:
        """Return how far the upgrade is; None before it has begun."""
        return read_upgrade(self._directory, self.run_id)

    def has_ended(self) -> bool:
        """Tell whether it is known which version is in force; one read."""
        record = self.record()
        return record is not None and record.step in _DECIDED

    def look(self) -> UpgradeView:
        """Look once."""
        seen = super().look()
        # Read last: a driver records its step, and then gives its lease up or ends.
        facts = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
        facts |= {"attempt": self._new.last_attempt(), "progress": self._new.progress()}
        return UpgradeView(**facts, record=self.record())

    def decide(self, view: View) -> Assessment:
        """Decide from one look.

        Without a lease only time tells that the machine of a driver is gone that left no word.
        """
        if not isinstance(view, UpgradeView):
            return super().decide(view)
        assessment = assess_upgrade(view, run_id=self.run_id)
        has_begun = view.record is not None and assessment.run_state is RunState.STARTING
        if not has_begun or view.liveness not in TAKEABLE:
            self._silent_since = None
            return assessment
        now_s = self._clock.monotonic()
        self._begun = now_s  # it has come up, whatever it does without a lease
        if self._silent_since is None:
            self._silent_since = now_s
        silent_s = now_s - self._silent_since
        if silent_s <= _SILENCE_S or view.submission is None:
            return assessment
        reason = f"nothing was heard of the upgrade's driver in {silent_s:.0f} seconds"
        lost = view.submission.driver_id  # so that the next try starts another one
        return Assessment(RunState.FAILED, reason, lost=lost, waited_s=silent_s)
