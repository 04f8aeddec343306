"""Watching a run from outside, through its job directory alone: status, operators, triggers.

:class:`RunWatcher` looks, :func:`judge` decides. A watcher may live in another process, on another
machine, and start long after the run did.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_LEASE, EXIT_USAGE
from airflow_provider.runtime.failures import Failure, FailureClass
from airflow_provider.runtime.final import verify_final
from airflow_provider.runtime.jobdir import (
    CANCELLED,
    AttemptRecord,
    ExitRecord,
    FinalCheckpoint,
    JobDirectory,
    ProgressRecord,
    SubmissionRecord,
)
from airflow_provider.runtime.lease import LeaseObserver, LeaseRecord, Liveness
from airflow_provider.runtime.process import ProcessIdentity
from airflow_provider.runtime.storage import Document, Storage

if TYPE_CHECKING:
    from airflow_provider.runtime.clock import Clock

START_TIMEOUT_S: Final = 600.0  # a cluster may queue a driver for long; silence must end some time
_PROCESS_TIMEOUT_S: Final = (
    60.0  # the process that submits says that it is there in a second or two
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessRecord(Document):
    """``submissions/<driver id>.process.json``: the process that looks after the driver."""

    identity: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClaimRecord(Document):
    """``runs/<run id>/claim.json``: which try of an Airflow task watches the run."""

    generation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class WatchRecord(Document):
    """``runs/<run id>/watch.json``: which trigger waits for a claim.

    Attributes:
        generation: the claim.
        trigger: the trigger that began to wait last; the same one in another triggerer is another;
            empty when it waits no more.
    """

    generation: int
    trigger: str


@dataclasses.dataclass(frozen=True)
class View:
    """What one look at a run has shown.

    Attributes:
        lease: the job's newest lease, of whatever run.
        liveness: what is known of its holder.
        attempt: the run's last attempt.
        submission: the submission watched, or the run's last one.
        exit: how its process ended, if that is known.
        submission_gone: whether its process has certainly ended.
        submission_started: whether its process has come up at all.
    """

    final: FinalCheckpoint | None
    lease: LeaseRecord | None
    liveness: Liveness
    attempt: AttemptRecord | None
    submission: SubmissionRecord | None
    exit: ExitRecord | None
    submission_gone: bool
    progress: ProgressRecord | None = None
    submission_started: bool = True


class Verdict(str, enum.Enum):
    """What a view comes to."""

    DONE = "done"  # the final checkpoint is there
    RUNNING = "running"  # a driver of this run is alive, or may be
    STARTING = "starting"  # a driver was submitted and has not taken the lease yet
    FOREIGN = "foreign"  # a driver of another run is alive
    FAILED = "failed"  # the watched driver ended without a final checkpoint
    ABSENT = "absent"  # nobody is at work on this run
    # Of a run that is supervised, and whose driver is alive (see supervising.py):
    UNHEALTHY = "unhealthy"  # it does not get on
    DUE = "due"  # it is well, and the time for which it was to be watched is over


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A verdict and its reason.

    Attributes:
        fatal: whether another attempt cannot help.
        failure: what the driver has recorded of its end; None when it could not.
    """

    verdict: Verdict
    reason: str = ""
    fatal: bool = False
    failure: dict[str, Any] | None = None


def judge(view: View, *, run_id: str) -> Judgement:
    """Decide what is going on with *run_id*, from one look."""
    if view.final is not None:
        return Judgement(Verdict.DONE)
    held = view.liveness in {Liveness.LIVE, Liveness.UNKNOWN}
    if held and view.lease is not None:
        if view.lease.run_id == run_id:
            return Judgement(Verdict.RUNNING)
        return Judgement(Verdict.FOREIGN, _foreign_reason(view.lease))
    if view.submission is None:
        return Judgement(Verdict.ABSENT)
    return _judge_submission(view)


def _judge_submission(view: View) -> Judgement:
    if view.exit is not None:
        return _judge_exit(view, view.exit)
    if _lease_of_submission(view) or view.submission_gone:
        reason = _attempt_reason(view) or "the driver died without a final checkpoint"
        failure = _recorded_failure(view)
        fatal = failure is not None and _is_for_good(failure)
        return Judgement(Verdict.FAILED, reason, fatal=fatal, failure=failure)
    return Judgement(Verdict.STARTING)


def _judge_exit(view: View, ended: ExitRecord) -> Judgement:
    reason = _attempt_reason(view)
    if reason is None:
        tail = next((line for line in reversed(ended.last_lines) if line.strip()), "")
        reason = (
            f"the driver ended with exit code {ended.exit_code} and left no final checkpoint"
            f"{': ' + tail if tail else ''}"
        )
    fatal = ended.exit_code in {EXIT_USAGE, EXIT_FATAL}
    if ended.exit_code == EXIT_LEASE:
        reason = f"another driver held the lease: {reason}"
    return Judgement(Verdict.FAILED, reason, fatal=fatal, failure=_recorded_failure(view))


def _lease_of_submission(view: View) -> bool:
    return (
        view.lease is not None
        and view.submission is not None
        and view.lease.driver_id == view.submission.driver_id
    )


def _attempt_reason(view: View) -> str | None:
    """Return what the watched driver itself has recorded about its end."""
    attempt = _own_attempt(view)
    if attempt is None:
        return None
    if attempt.outcome == CANCELLED:
        return f"attempt {attempt.attempt} was cancelled"
    if attempt.failure is None:
        return None
    failure = Failure.from_dict(attempt.failure)
    elsewhere = f", failed on {failure.host}" if failure.host not in {"", attempt.host} else ""
    return f"{failure.describe()} (attempt {attempt.attempt} on {attempt.host}{elsewhere})"


def _recorded_failure(view: View) -> dict[str, Any] | None:
    attempt = _own_attempt(view)
    return attempt.failure if attempt is not None else None


def _is_for_good(failure: dict[str, Any]) -> bool:
    return Failure.from_dict(failure).failure_class is FailureClass.NON_RECOVERABLE


def _own_attempt(view: View) -> AttemptRecord | None:
    """Return the attempt of the driver that is watched."""
    attempt, submission = view.attempt, view.submission
    if attempt is None or submission is None or attempt.driver_id != submission.driver_id:
        return None
    return attempt


def _foreign_reason(lease: LeaseRecord) -> str:
    return (
        f"run {lease.run_id!r} is running this job (lease {lease.token}, on "
        f"{lease.owner['host']}); wait for it, cancel it, or give each run its own job directory"
    )


def driver_at_work(view: View, verdict: Verdict) -> str | None:
    """Return the driver that runs or starts on behalf of the run; None when there is none."""
    if verdict is Verdict.RUNNING and view.lease is not None:
        return view.lease.driver_id
    if verdict is Verdict.STARTING and view.submission is not None and view.submission_started:
        return view.submission.driver_id
    return None


class RunWatcher:
    """Looks at one run again and again.

    Args:
        storage: the job directory.
        run_id: the run.
        clock: measures how long a heartbeat has stood still.
        driver_id: the submission to watch; None for the run's last one.

    Attributes:
        requests: the job directory in which its drivers are asked for something.
    """

    def __init__(
        self, storage: Storage, run_id: str, clock: Clock, driver_id: str | None = None
    ) -> None:
        self._storage = storage
        self._directory = JobDirectory(storage)
        self._run = self._directory.run(run_id)
        self._observer = LeaseObserver(storage, clock)
        self._clock = clock
        self._begun = clock.monotonic()
        self._driver_id = driver_id
        self.run_id = run_id
        self.requests = storage

    def look(self) -> View:
        """Look once."""
        lease, liveness = self._observer.look()
        submission = self._submission()
        # Read after the lease: a driver puts its final checkpoint before it gives the lease up.
        final = self._run.final()
        attempts = self._run.attempts()
        process = self._process(submission)
        return View(
            final=final,
            lease=lease,
            liveness=liveness,
            attempt=attempts[-1] if attempts else None,
            submission=submission,
            exit=self._run.exit_of(submission.driver_id) if submission else None,
            submission_gone=process is not None and process.is_gone(),
            submission_started=process is not None,
            progress=self._run.progress(),
        )

    def decide(self, view: View) -> Judgement:
        """Decide from one look."""
        return judge(view, run_id=self.run_id)

    def judge(self) -> Judgement:
        """Look once and decide; a driver that never comes up ends as failed."""
        return self.judge_view(self.look())

    def judge_view(self, view: View) -> Judgement:
        """Decide from one look, and from how long a driver has not come up."""
        judgement = self.decide(view)
        waited = self._clock.monotonic() - self._begun
        patience = START_TIMEOUT_S if view.submission_started else _PROCESS_TIMEOUT_S
        if judgement.verdict is Verdict.STARTING and waited > patience:
            reason = (
                f"the driver was submitted, but has not taken the lease in {waited:.0f} seconds"
            )
            return Judgement(Verdict.FAILED, reason)
        return judgement

    def settle(self, poll_s: float = 0.2) -> tuple[View, Judgement]:
        """Look until it is known whether a driver lives; takes one lease timeout at most."""
        while True:
            view = self.look()
            if view.final is not None or view.liveness is not Liveness.UNKNOWN:
                return view, self.decide(view)
            self._clock.sleep(poll_s)

    def verified_final(self) -> FinalCheckpoint | None:
        """Return the final checkpoint, verified; None while there is none.

        Raises:
            CheckpointError: it says what is not so.
        """
        final = self._run.final()
        return verify_final(self._directory, final) if final is not None else None

    def _submission(self) -> SubmissionRecord | None:
        if self._driver_id is not None:
            path = f"submissions/{self._driver_id}.json"
            return SubmissionRecord.read(self._run.storage, path)
        submissions = self._run.submissions()
        return submissions[-1] if submissions else None

    def _process(self, submission: SubmissionRecord | None) -> ProcessIdentity | None:
        if submission is None:
            return None
        path = f"submissions/{submission.driver_id}.process.json"
        record = ProcessRecord.read(self._run.storage, path)
        return ProcessIdentity.from_dict(record.identity) if record is not None else None
