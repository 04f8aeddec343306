"""Observer of a run through its job directory alone, from any process and machine.

:mod:`.snapshot` reads, :mod:`.state` decides, and a watcher does both repeatedly.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.base.clock import Due, to_iso
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.preconditions import rewound_error
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.observe.beats import BeatObserver
from airflow_provider.runtime.observe.snapshot import RunSnapshot, read_snapshot
from airflow_provider.runtime.observe.state import Assessment, RunState, assess, assess_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.api.launchers import Handle
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint

START_TIMEOUT_S: Final = 600.0  # a cluster may queue a driver for long; silence must end some time
_PROCESS_TIMEOUT_S: Final = (
    60.0  # the process that submits says that it is there in a second or two
)
_EXIT_TIMEOUT_S: Final = 10.0  # a launcher records an exit in a second, but on a full disk
# How often the heartbeat of a driver at work is read, or at each fifth poll, if that is sooner:
# after two or three heartbeats, in a quarter of a lease's timeout.
LIFE_S: Final = 5.0
_LIFE_POLLS: Final = 5
LAUNCH_S: Final = 15.0
"""How often a launcher is asked about a driver that has not the lease."""
_ON_CLUSTER: Final = frozenset({LaunchState.QUEUED, LaunchState.RUNNING})
AWAY_TIMEOUT_S: Final = 3600.0  # a service that does not answer says nothing against the driver


class RunWatcher:
    """Polls one run.

    Args:
        storage: the job directory.
        clock: measures how long a heartbeat has not changed.
        driver_id: the submission to watch; None for the run's last one.
        observer: the observer of the job's lease; None for a new one.
        ask: asks a cluster about a driver without a lease, and returns None if it cannot be asked
            from here; None to use stored answers.

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
        ask: Callable[[Handle], LaunchStatus | None] | None = None,
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
        self._polls = 0  # since its life was read
        self._ask_launcher = ask
        self._launch_due = Due(clock, LAUNCH_S)
        self._launch: LaunchStatus | None = None  # the last answer
        self._asked_after_exit = False
        self._on_cluster_since: float | None = None
        self._beats = BeatObserver(clock)
        self.run_id = run_id
        self.requests = storage

    def poll(self) -> RunSnapshot:
        """Read the documents of the run once.

        Raises:
            OSError: the storage cannot be read, or nothing of the watched driver is there.
        """
        return read_snapshot(
            self._directory, self.run_id, driver_id=self._driver_id, observer=self._observer
        )

    def decide(self, snapshot: RunSnapshot) -> Assessment:
        return assess(snapshot)

    def assess(self) -> Assessment:
        """Poll and decide; a driver that never comes up ends as failed.

        While the driver lives, a poll reads only the document that ends the wait, and the heartbeat
        every :data:`LIFE_S` seconds, or at each fifth poll.
        """
        token, self._alive = self._alive, None  # after a poll that fails the next one is whole
        if token is not None and self._goes_on(token):
            self._alive = token
            return Assessment(RunState.RUNNING)
        return self.assess_snapshot(self.poll())

    def _goes_on(self, token: int) -> bool:
        if self.has_ended():
            return False
        self._polls += 1
        if not self._life_due() and self._polls < _LIFE_POLLS:
            return True
        self._polls = 0
        lease, liveness = self._observer.look()
        return lease is not None and lease.since == token and liveness is Liveness.LIVE

    def has_ended(self) -> bool:
        """Whether the document that ends the wait is there; one read."""
        return self._run.final() is not None

    def assess_snapshot(self, snapshot: RunSnapshot) -> Assessment:
        snapshot, assessment = self._after_asking(snapshot)
        self._alive = None
        is_at_work = assessment.run_state is RunState.RUNNING and snapshot.liveness is Liveness.LIVE
        if is_at_work and snapshot.lease is not None:
            self._alive = snapshot.lease.since
            self._polls = 0
            self._life_due()  # it has just been seen to
        is_queued = snapshot.launch is not None and snapshot.launch.state is LaunchState.QUEUED
        if is_queued or snapshot.waits_for:
            self._begun = self._clock.monotonic()  # a driver in a queue is not late
        if assessment.run_state is not RunState.ENDING:
            self._ending_since = None
        elif self._ending_since is None:
            self._ending_since = self._clock.monotonic()
        elif self._clock.monotonic() - self._ending_since >= _EXIT_TIMEOUT_S:
            return assess_end(snapshot, None)
        waited = self._clock.monotonic() - self._begun
        if assessment.run_state is RunState.STARTING and waited > _start_timeout_s(snapshot):
            reason = (
                f"the driver was submitted, but has not taken the lease in {waited:.0f} seconds"
            )
            if snapshot.launch is not None and snapshot.handle is not None:
                reason += f"; {snapshot.launch.describe(snapshot.handle)}"
            lost = snapshot.submission.driver_id if snapshot.submission is not None else None
            return Assessment(RunState.FAILED, reason, lost=lost, waited_s=waited)
        return assessment

    def _after_asking(self, snapshot: RunSnapshot) -> tuple[RunSnapshot, Assessment]:
        """Ask the launcher if the lease leaves the state open, and decide; not at each poll.

        What it said before ``spark-submit`` ended is no news of the driver's end.
        """
        snapshot = self._beats.judge(snapshot)
        assessment = self.decide(snapshot)
        is_open = snapshot.launch is None or not snapshot.launch.is_over
        run_state = assessment.run_state
        unclear = run_state is RunState.STARTING or run_state.has_failed
        if self._ask_launcher is None or snapshot.handle is None or not (is_open and unclear):
            return snapshot, assessment
        is_exit_new = snapshot.exit is not None and not self._asked_after_exit
        if self._launch_due() or is_exit_new:
            self._asked_after_exit = snapshot.exit is not None
            answer = self._ask_launcher(snapshot.handle)
            if answer is None:
                return snapshot, assessment
            snapshot = self._after_answer(answer, snapshot.handle, snapshot)
        if self._launch is None:
            return snapshot, assessment
        snapshot = dataclasses.replace(snapshot, launch=self._launch)
        if self._launch.state in _ON_CLUSTER:
            # The process that waited for the driver has failed, such as at a manager that restarts.
            snapshot = dataclasses.replace(snapshot, exit=None)
        return snapshot, self.decide(snapshot)

    def _after_answer(
        self, answer: LaunchStatus, handle: Handle, snapshot: RunSnapshot
    ) -> RunSnapshot:
        self._launch = self._answer(_with_submission(answer, snapshot), handle)
        if answer.state not in _ON_CLUSTER:
            self._on_cluster_since = None
        elif self._on_cluster_since is None:
            self._on_cluster_since = self._clock.monotonic()
        # A driver puts its final checkpoint, and why it fails, before it ends.
        return self.poll() if self._launch.is_over else snapshot

    def _answer(self, answer: LaunchStatus, handle: Handle) -> LaunchStatus:
        with contextlib.suppress(OSError):  # the next watcher asks, too
            self._run.put_launch_status(handle.driver_id, answer, to_iso(self._clock.now()))
        return answer

    def has_left(self, driver_id: str) -> bool:
        """Whether a driver certainly no longer needs the process that gives it to a cluster.

        That process has ended, or the cluster has said for a while that it has the driver: it makes
        further things there after the driver itself, such as the files that a pod mounts.
        """
        if self._run.end_of(driver_id) is not None:
            return True
        since = self._on_cluster_since
        return since is not None and self._clock.monotonic() - since >= LAUNCH_S

    def settle(self, poll_s: float = 0.2) -> tuple[RunSnapshot, Assessment]:
        """Poll until it is known whether a driver lives, or comes up; one lease timeout at most."""
        while True:
            snapshot = self.poll()
            if snapshot.final is not None or snapshot.liveness is not Liveness.UNKNOWN:
                snapshot, assessment = self._after_asking(snapshot)
                if assessment.run_state is not RunState.STARTING or self._beats.is_known:
                    return snapshot, assessment
            self._clock.sleep(poll_s)

    def verified_final(self) -> FinalCheckpoint | None:
        """Return the final checkpoint, verified; None while there is none.

        Raises:
            CheckpointError: it contradicts the records.
            ConfigError: the run was rewound.
        """
        final = self._run.final()
        if final is None:
            return None
        rewound = self._run.rewound()
        if (error := rewound_error(self._directory.url, self.run_id, rewound)) is not None:
            raise error
        return verify_final(self._directory, final)


def _with_submission(answer: LaunchStatus, snapshot: RunSnapshot) -> LaunchStatus:
    """Return a cluster's answer; before ``spark-submit`` has ended, a missing run is no end."""
    submission = snapshot.submission
    is_submitting = (
        submission is not None
        and submission.launcher is None
        and snapshot.exit is None
        and not snapshot.submission_gone
    )
    if answer.state is LaunchState.GONE and is_submitting:
        return LaunchStatus(LaunchState.RUNNING, None, f"spark-submit is at work: {answer.reason}")
    return answer


def _start_timeout_s(snapshot: RunSnapshot) -> float:
    if snapshot.launch is not None and snapshot.launch.state is LaunchState.UNKNOWN:
        return AWAY_TIMEOUT_S
    return START_TIMEOUT_S if snapshot.submission_started else _PROCESS_TIMEOUT_S
