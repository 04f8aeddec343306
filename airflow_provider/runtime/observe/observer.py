"""Observer of a run, from outside, through its job directory alone: status, operators, triggers.

:class:`RunWatcher` looks, :mod:`.state` decides. A watcher may live in another process, on another
machine, and start long after the run did.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.launchers import Handle, LaunchState, LaunchStatus
from airflow_provider.runtime.base.clock import Due, to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.preconditions import rewound_error
from airflow_provider.runtime.jobdir.submissions import (
    LaunchStatusRecord,
    ProcessRecord,
    SubmissionRecord,
)
from airflow_provider.runtime.jobdir.verify_final import verify_final
from airflow_provider.runtime.observe.endings import Remains
from airflow_provider.runtime.observe.state import (
    Assessment,
    RunSnapshot,
    RunState,
    assess,
    assess_end,
)
from airflow_provider.runtime.storage.mounts import full_disk
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, RewoundRecord

START_TIMEOUT_S: Final = 600.0  # a cluster may queue a driver for long; silence must end some time
_PROCESS_TIMEOUT_S: Final = (
    60.0  # the process that submits says that it is there in a second or two
)
_EXIT_TIMEOUT_S: Final = 10.0  # a launcher records an exit in a second, but on a full disk
# How often the heartbeat of a driver at work is read, or at each fifth look, if that is sooner:
# after two or three heartbeats, in a quarter of a lease's timeout.
LIFE_S: Final = 5.0
_LIFE_LOOKS: Final = 5
LAUNCH_S: Final = 15.0
"""How often a launcher is asked about a driver that has not the lease."""
AWAY_TIMEOUT_S: Final = 3600.0  # a service that does not answer says nothing against the driver


class RunWatcher:
    """Looks at one run again and again.

    Args:
        storage: the job directory.
        run_id: the run.
        clock: measures how long a heartbeat has not changed.
        driver_id: the submission to watch; None for the run's last one.
        observer: what has watched the job's lease so far; None to begin.
        ask: asks a launcher about a driver that has not the lease; None to go by what others were
            answered.

    Attributes:
        requests: the job directory in which its drivers get requests.
    """

    def __init__(
        self,
        storage: Storage,
        run_id: str,
        clock: Clock,
        driver_id: str | None = None,
        *,
        observer: LeaseObserver | None = None,
        ask: Callable[[Handle], LaunchStatus] | None = None,
    ) -> None:
        self._storage = storage
        self._directory = JobDirectory(storage)
        self._run = self._directory.run(run_id)
        self._observer = observer or LeaseObserver(storage, clock)
        self._clock = clock
        self._begun = clock.monotonic()
        self._driver_id = driver_id
        self._ending_since: float | None = None
        self._alive: int | None = None  # the lease of the run's driver, if it was seen alive last
        self._life_due = Due(clock, LIFE_S)
        self._looks = 0  # since its life was seen to
        self._ask_launcher = ask
        self._launch_due = Due(clock, LAUNCH_S)
        self._launch: LaunchStatus | None = None  # the last answer
        self.run_id = run_id
        self.requests = storage

    def look(self) -> RunSnapshot:
        """Look once.

        Raises:
            OSError: the storage cannot be read, or nothing of the watched driver is there.
        """
        lease, liveness = self._observer.look()
        submission = self._submission()
        if self._driver_id is not None and submission is None and lease is None:
            # A job directory that vanishes is taken for one that is away, such as an unmounted one.
            raise FileNotFoundError(
                errno.ENOENT,
                f"the record of driver {self._driver_id} is gone: the job directory was emptied, "
                "or is not mounted",
                self._storage.url,
            )
        # Read after the lease: a driver puts its final checkpoint before it gives the lease up.
        final = self._run.final()
        driver_id = submission.driver_id if submission is not None else None
        process = self._run.process_of(driver_id) if driver_id is not None else None
        on_cluster = driver_id is not None and submission is not None and submission.launcher
        handle = self._run.handle_of(str(driver_id)) if on_cluster else None
        is_started = handle is not None or (process is not None and not process.is_revoked)
        attempt = self._run.last_attempt()
        is_silent = final is None and (attempt is None or attempt.outcome is None)
        is_over = is_silent and liveness in {Liveness.DEAD, Liveness.FREE}
        return RunSnapshot(
            final=final,
            lease=lease,
            liveness=liveness,
            attempt=attempt,
            submission=submission,
            exit=self._run.exit_of(driver_id) if driver_id is not None else None,
            submission_gone=process is not None and _is_gone(process),
            submission_started=is_started,
            submission_lost=driver_id is not None and self._run.is_lost(driver_id),
            progress=self._run.progress(),
            handle=handle,
            launch=self._recorded_launch(handle),
            host=process.identity.host if process is not None else "",
            waits_for=process.waits_for if process is not None else "",
            is_driver_gone=process is not None and process.driver_is_gone,
            remains=_remains_of(self._directory) if is_over else None,
        )

    def _recorded_launch(self, handle: Handle | None) -> LaunchStatus | None:
        record = self._run.launch_status_of(handle.driver_id) if handle is not None else None
        return record.status() if record is not None else None

    def decide(self, view: RunSnapshot) -> Assessment:
        """Decide from one look."""
        return assess(view, run_id=self.run_id)

    def assess(self) -> Assessment:
        """Look, and decide; a driver that never comes up ends as failed.

        While the run's driver is known to live only one thing is looked for each time: what it is
        waited for. Its life is seen to every :data:`LIFE_S` seconds, or at each fifth look.
        """
        token, self._alive = self._alive, None  # after a look that fails the next one is whole
        if token is not None and self._goes_on(token):
            self._alive = token
            return Assessment(RunState.RUNNING)
        return self.assess_view(self.look())

    def _goes_on(self, token: int) -> bool:
        """Whether a driver that was alive still is, and has not reached its end."""
        if self.has_ended():
            return False
        self._looks += 1
        if not self._life_due() and self._looks < _LIFE_LOOKS:
            return True
        self._looks = 0
        lease, liveness = self._observer.look()
        return lease is not None and lease.since == token and liveness is Liveness.LIVE

    def has_ended(self) -> bool:
        """Whether what the run is waited for is there; one read."""
        return self._run.final() is not None

    def assess_view(self, view: RunSnapshot) -> Assessment:
        """Decide from one look, and from how long a driver has not come up."""
        view, assessment = self._after_asking(view)
        self._alive = None
        is_at_work = assessment.run_state is RunState.RUNNING and view.liveness is Liveness.LIVE
        if is_at_work and view.lease is not None:
            self._alive = view.lease.since
            self._looks = 0
            self._life_due()  # it has just been seen to
        is_queued = view.launch is not None and view.launch.state is LaunchState.QUEUED
        if is_queued or view.waits_for:
            self._begun = self._clock.monotonic()  # nobody waits for what has not its turn yet
        if assessment.run_state is not RunState.ENDING:
            self._ending_since = None
        elif self._ending_since is None:
            self._ending_since = self._clock.monotonic()
        elif self._clock.monotonic() - self._ending_since >= _EXIT_TIMEOUT_S:
            return assess_end(view, None)
        waited = self._clock.monotonic() - self._begun
        if assessment.run_state is RunState.STARTING and waited > _start_timeout_s(view):
            reason = (
                f"the driver was submitted, but has not taken the lease in {waited:.0f} seconds"
            )
            if view.launch is not None and view.handle is not None:
                reason += f"; {view.launch.describe(view.handle)}"
            lost = view.submission.driver_id if view.submission is not None else None
            return Assessment(RunState.FAILED, reason, lost=lost, waited_s=waited)
        return assessment

    def _after_asking(self, view: RunSnapshot) -> tuple[RunSnapshot, Assessment]:
        """Ask the launcher where the lease does not tell, and decide.

        Not at each look: a service may be paid, and limits how often it is asked.
        """
        assessment = self.decide(view)
        is_open = view.launch is None or not view.launch.is_over
        unclear = assessment.run_state in {RunState.STARTING, RunState.FAILED}
        if self._ask_launcher is None or view.handle is None or not (is_open and unclear):
            return view, assessment
        if self._launch_due() or self._launch is None:
            self._launch = self._answer(self._ask_launcher(view.handle), view.handle)
            if self._launch.is_over:
                # A driver puts its final checkpoint, and why it fails, before it ends.
                view = self.look()
        view = dataclasses.replace(view, launch=self._launch)
        return view, self.decide(view)

    def _answer(self, answer: LaunchStatus, handle: Handle) -> LaunchStatus:
        """Return the launcher's answer, and store it for others when it has changed."""
        with contextlib.suppress(OSError):  # the next watcher asks, too
            before = self._recorded_launch(handle)
            if answer != before:
                self._run.put_launch_status(
                    handle.driver_id, LaunchStatusRecord.of(answer, to_iso(self._clock.now()))
                )
        return answer

    def settle(self, poll_s: float = 0.2) -> tuple[RunSnapshot, Assessment]:
        """Look until it is known whether a driver lives; takes one lease timeout at most."""
        while True:
            view = self.look()
            if view.final is not None or view.liveness is not Liveness.UNKNOWN:
                return self._after_asking(view)
            self._clock.sleep(poll_s)

    def undone(self) -> RewoundRecord | None:
        """Return the record that the job went back to before the run; one read."""
        return self._run.rewound()

    def verified_final(self) -> FinalCheckpoint | None:
        """Return the final checkpoint, verified; None while there is none.

        Raises:
            CheckpointError: it says what is not so.
            ConfigError: the job went back before the run, so what it says does not count any more.
        """
        final = self._run.final()
        if final is None:
            return None
        rewound = self._run.rewound()
        if (error := rewound_error(self._directory.url, self.run_id, rewound)) is not None:
            raise error
        return verify_final(self._directory, final)

    def _submission(self) -> SubmissionRecord | None:
        if self._driver_id is not None:
            path = f"submissions/{self._driver_id}.json"
            return SubmissionRecord.read(self._run.storage, path)
        submissions = self._run.submissions()
        return submissions[-1] if submissions else None


def _start_timeout_s(view: RunSnapshot) -> float:
    """Return how long a driver may take from the end of its time in a queue to its lease."""
    if view.launch is not None and view.launch.state is LaunchState.UNKNOWN:
        return AWAY_TIMEOUT_S
    return START_TIMEOUT_S if view.submission_started else _PROCESS_TIMEOUT_S


def _is_gone(process: ProcessRecord) -> bool:
    return process.is_revoked or process.identity.is_gone()


def _remains_of(directory: JobDirectory) -> Remains:
    """Return what is left in a job directory; what cannot be read is left out."""
    folder = local_path_of(directory.url)
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, SparkStreamError):
        for query in directory.query_names():
            batch = CheckpointLogs(directory.checkpoint(query)).position().open_batch
            if batch is not None:
                found[query] = batch
    return Remains(found, full_disk([folder]) if folder is not None else None)
