"""State of a run: its snapshot, the assessment of it, and its condition in words; pure.

:func:`assess` decides for operators and triggers. :func:`run_condition` decides for all that show a
run to people: ``status``, ``ls``, the page in Airflow's UI, and Prometheus' text.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_LEASE, EXIT_USAGE
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED
from airflow_provider.runtime.observe.endings import recorded_failure, silent_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import (
        AttemptRecord,
        FinalCheckpoint,
        ProgressRecord,
        RewoundRecord,
    )
    from airflow_provider.runtime.jobdir.submissions import ExitRecord, SubmissionRecord
    from airflow_provider.runtime.observe.endings import Remains

STATES: Final = (
    "absent",
    "starting",
    "running",
    "killed",
    "failed",
    "cancelled",
    "suspended",
    "finished",
    "undone",
    "unverified",
    "damaged",
)
"""The words, the way of a run first."""
COMING_UP: Final = (
    "Spark's JVM starts, the job's function is called, and the driver takes the lease, which "
    "usually takes 10 to 30 seconds"
)
IN_A_SHELL: Final[Mapping[str, str]] = {
    "absent": "nobody has begun it: spark-stream run begins it",
    "starting": f"wait: {COMING_UP}; spark-stream watch follows it",
    "running": "spark-stream watch follows it, spark-stream stop ends it",
    **{each.value: step for each, step in AFTER_A_COMMAND.items()},
    "cancelled": "repeat the command: it resumes",
    "suspended": "the same command begins a run that goes on from here",
    "finished": "nothing: all is read, flushed and published",
    "undone": "the same command begins another run from there",
    "unverified": "do not use its output, and find out who has changed the job directory",
    "damaged": "restore a savepoint into a new job directory, or put the document back",
}
"""What to do next, by the state, or by the class of the failure: for a reader at a shell."""
IN_AIRFLOW: Final[Mapping[str, str]] = {
    **IN_A_SHELL,
    "absent": "nobody has begun it: its task does, when it runs",
    "starting": f"wait: {COMING_UP}",
    "running": "nothing: its driver is at work",
    **{each.value: step for each, step in AFTER_A_TASK.items()},
    "cancelled": "clear the task: the run resumes",
    "suspended": "the next run of the DAG goes on from here",
    "undone": "the next run of the task begins from there",
}
"""The same for a reader who has a task."""


@dataclasses.dataclass(frozen=True)
class RunSnapshot:
    """What one read of a run's documents has shown.

    Attributes:
        lease: the job's newest lease, of whatever run.
        liveness: what is known of its holder.
        attempt: the run's last attempt.
        submission: the submission watched, or the run's last one.
        exit: how its process ended, if that is known.
        submission_gone: whether its process has certainly ended, or will never start.
        submission_started: whether its process has come up at all.
        submission_lost: whether a wait for its driver to come up has timed out.
        handle: its run on a cluster; None while that is not known, and for ``spark-submit``.
        launch: what the launcher has said of that run last; None when nobody has asked.
        host: the machine of the submission's process; empty where that is not known.
        waits_for: what the submission's process waits for before it starts the driver.
        is_driver_gone: whether the driver has certainly ended, while the process that records how
            is still at it.
        remains: what a driver that recorded no end has left; None while it may live.
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
    submission_lost: bool = False
    handle: Handle | None = None
    launch: LaunchStatus | None = None
    host: str = ""
    waits_for: str = ""
    is_driver_gone: bool = False
    remains: Remains | None = None


class RunState(str, enum.Enum):
    """The state of a run, as assessed from a snapshot."""

    DONE = "done"  # the final checkpoint is there
    RUNNING = "running"  # a driver of this run is alive, or may be
    STARTING = "starting"  # a driver was submitted and has not taken the lease yet
    ENDING = "ending"  # its driver has ended, and how is not recorded yet
    FOREIGN = "foreign"  # a driver of another run is alive
    FAILED = "failed"  # the watched driver ended without a final checkpoint
    ABSENT = "absent"  # nobody is at work on this run
    # Of a run that is supervised, and whose driver is alive (see observe/supervise.py):
    UNHEALTHY = "unhealthy"  # it makes no progress
    DUE = "due"  # it is well, and the time for which it was to be watched is over


@dataclasses.dataclass(frozen=True)
class Assessment:
    """A verdict and its reason.

    Attributes:
        fatal: whether another attempt cannot help.
        failure: what the driver has recorded of its end; None when it could not.
        lost: a submitted driver that has not come up in time, and may be replaced.
        waited_s: for how long.
    """

    run_state: RunState
    reason: str = ""
    fatal: bool = False
    failure: dict[str, Any] | None = None
    lost: str | None = None
    waited_s: float = 0.0


def assess(view: RunSnapshot, *, run_id: str) -> Assessment:
    """Decide what is going on with *run_id*, from one look."""
    if view.final is not None:
        return Assessment(RunState.DONE)
    held = view.liveness in {Liveness.LIVE, Liveness.UNKNOWN}
    if held and view.lease is not None:
        if view.lease.run_id == run_id:
            return Assessment(RunState.RUNNING)
        return Assessment(RunState.FOREIGN, _foreign_reason(view.lease))
    if view.submission is None:
        return Assessment(RunState.ABSENT)
    return _assess_submission(view)


def _assess_submission(view: RunSnapshot) -> Assessment:
    if view.exit is not None and not _is_under_way(view):
        return assess_end(view, view.exit.exit_code)
    if view.launch is not None and view.launch.is_over:
        return assess_end(view, view.launch.exit_code)
    if _is_ending(view):
        return Assessment(RunState.ENDING)
    if _lease_of_submission(view) or (view.submission_gone and not _is_under_way(view)):
        return assess_end(view, None)
    if view.submission_lost:
        return Assessment(
            RunState.FAILED, "the driver was submitted, and has never taken the lease"
        )
    return Assessment(RunState.STARTING)


def _is_ending(view: RunSnapshot) -> bool:
    """Whether the driver has ended, and its launcher has yet to record how."""
    is_remote = view.submission is not None and view.submission.is_remote
    attempt = _own_attempt(view)
    return view.is_driver_gone and not is_remote and (attempt is None or attempt.outcome is None)


def _is_under_way(view: RunSnapshot) -> bool:
    """Whether the driver was submitted to the cluster, even if the submitting process has died."""
    was_given = view.exit.exit_code == 0 if view.exit is not None else view.submission_started
    is_remote = view.submission is not None and view.submission.is_remote
    return is_remote and was_given and _own_attempt(view) is None and not _lease_of_submission(view)


def assess_end(view: RunSnapshot, exit_code: int | None) -> Assessment:
    """Decide about a run whose watched driver has ended without a final checkpoint."""
    # In deploy mode cluster the exit code is that of the process that waited for the driver.
    attempt = _own_attempt(view)
    if attempt is not None and attempt.outcome == CANCELLED:
        return Assessment(RunState.FAILED, f"attempt {attempt.attempt} was cancelled")
    failure = ending_of(view)
    reason = f"{failure.describe()} ({_which_driver(view, failure)})"
    if exit_code == EXIT_LEASE:
        reason = f"another driver held the lease: {reason}"
    is_permanent = exit_code in {EXIT_USAGE, EXIT_FATAL} or failure.is_fatal
    return Assessment(RunState.FAILED, reason, fatal=is_permanent, failure=failure.to_dict())


def ending_of(view: RunSnapshot) -> Failure:
    """Return the failure with which the watched driver ended, recorded or not."""
    attempt = _own_attempt(view) if view.submission is not None else view.attempt
    recorded = recorded_failure(attempt)
    if recorded is not None:
        return recorded
    is_its_lease = view.lease is not None and (
        view.submission is None or _lease_of_submission(view)
    )
    owner = view.lease.owner.host if view.lease is not None and is_its_lease else ""
    launch, ended = view.launch, view.exit
    known = launch.exit_code if launch is not None else None
    return silent_failure(
        ended.exit_code if ended is not None else known,
        ended.last_lines if ended is not None else (),
        host=attempt.host if attempt is not None else owner or view.host,
        remains=view.remains,
        cluster=launch.describe(view.handle) if launch is not None and view.handle else "",
    )


def _which_driver(view: RunSnapshot, failure: Failure) -> str:
    """Return which attempt of which machine ended how, as far as the failure does not say."""
    attempt = _own_attempt(view)
    which = f"attempt {attempt.attempt}" if attempt is not None else "before its first attempt"
    host = attempt.host if attempt is not None else failure.host
    where = f" on {host}" if host else ""
    elsewhere = f", failed on {failure.host}" if failure.host not in {"", host} else ""
    is_said = view.exit is None or "exit code" in failure.reason or recorded_failure(attempt)
    code = "" if is_said or view.exit is None else f", exit code {view.exit.exit_code}"
    return f"{which}{where}{elsewhere}{code}"


def _lease_of_submission(view: RunSnapshot) -> bool:
    return (
        view.lease is not None
        and view.submission is not None
        and view.lease.driver_id == view.submission.driver_id
    )


def _own_attempt(view: RunSnapshot) -> AttemptRecord | None:
    """Return the attempt of the driver that is watched."""
    attempt, submission = view.attempt, view.submission
    if attempt is None or submission is None or attempt.driver_id != submission.driver_id:
        return None
    return attempt


def _foreign_reason(lease: LeaseRecord) -> str:
    return (
        f"run {lease.run_id!r} is running this job (lease {lease.token}, on "
        f"{lease.owner.host}); wait for it, cancel it, or give each run its own job directory"
    )


def launch_line(view: RunSnapshot) -> str | None:
    """Return which run of which launcher a driver is, and what that says; None for no line.

    Of a run that has its final checkpoint nobody needs to know.
    """
    if view.handle is None or view.final is not None:
        return None
    if view.launch is None:
        return f"{view.handle.launcher} {view.handle.id}"
    return view.launch.describe(view.handle)


def driver_at_work(view: RunSnapshot, run_state: RunState) -> str | None:
    """Return the driver that runs or starts on behalf of the run; None when there is none."""
    if run_state is RunState.RUNNING and view.lease is not None:
        return view.lease.driver_id
    if run_state is RunState.STARTING and view.submission is not None and view.submission_started:
        return view.submission.driver_id
    return None


@dataclasses.dataclass(frozen=True)
class RunCondition:
    """What people want to know of a run at a glance.

    Attributes:
        state: one of :data:`STATES`.
        since: when it came into that state, as its record says; of a killed run, when its
            driver was last heard of. None when nothing says.
        error: why it is not well, or was not when it was last started again in its driver; in one
            line. None when it is well.
        next_step: what to do next.
    """

    state: str
    since: str | None
    error: str | None
    next_step: str

    @property
    def is_at_work(self) -> bool:
        """Whether a driver is at work on the run, or about to be."""
        return self.state in {"starting", "running"}


def run_condition(
    view: RunSnapshot,
    assessment: Assessment,
    *,
    undone: RewoundRecord | None = None,
    problem: str | None = None,
    steps: Mapping[str, str] = IN_A_SHELL,
) -> RunCondition:
    """Decide about a run.

    Args:
        view: one look at it.
        assessment: its assessment.
        undone: the record that the job went back to before the run, or into the middle of it.
        problem: why its final checkpoint is not believed.
        steps: what to do next, in the caller's words.
    """
    state = _word(view, assessment.run_state, is_undone=undone is not None)
    if undone is not None:
        by = f" by {undone.by}" if undone.by is not None else ""
        where = undone.savepoint or "where it was before the run"
        return RunCondition(
            state, undone.at, None, f"undone{by}: the job was set to {where}; {steps[state]}"
        )
    if problem is not None:
        return RunCondition("unverified", _since(view, state), problem, steps["unverified"])
    return RunCondition(
        state=state,
        since=_since(view, state),
        error=_error(view, assessment, state),
        next_step=_next(view, assessment, state, steps),
    )


def damaged(problem: str) -> RunCondition:
    """Return the condition of a run of which a document cannot be read."""
    return RunCondition("damaged", None, problem, IN_A_SHELL["damaged"])


def _word(view: RunSnapshot, run_state: RunState, *, is_undone: bool) -> str:
    if is_undone:
        return "undone"
    if view.final is not None:
        return view.final.outcome.lower()
    attempt = view.attempt
    if run_state in {RunState.RUNNING, RunState.STARTING} or attempt is None:
        unbegun = {RunState.FOREIGN: "absent", RunState.ENDING: "failed"}
        return unbegun.get(run_state, run_state.value)
    return attempt.outcome.lower() if attempt.outcome is not None else "killed"


def _since(view: RunSnapshot, state: str) -> str | None:
    if view.final is not None:
        return view.final.committed
    attempt, lease, submission = view.attempt, view.lease, view.submission
    if state == "starting":
        return submission.submitted if submission is not None else None
    if state == "running" and lease is not None:
        return lease.acquired
    if attempt is None:
        return view.exit.ended if view.exit is not None else None
    if state == "killed" and view.progress is not None:
        is_its = view.progress.attempt == attempt.attempt
        return view.progress.at if is_its else attempt.started
    return attempt.ended or attempt.started


def _error(view: RunSnapshot, assessment: Assessment, state: str) -> str | None:
    attempt = view.attempt
    if state in {"running", "starting"}:
        if attempt is None or attempt.restarts is None or not attempt.restarts["count"]:
            return None
        last = Failure.from_dict(attempt.restarts["failure"]).describe()
        return f"{attempt.restarts['count']} restart(s) in the driver, the last one after {last}"
    if view.final is not None or state in {"cancelled", "absent"}:
        return None
    return ending_of(view).describe()


def _next(view: RunSnapshot, assessment: Assessment, state: str, steps: Mapping[str, str]) -> str:
    if state == "absent" and assessment.run_state is RunState.FOREIGN:
        return assessment.reason
    if state == "starting" and view.waits_for:
        return f"waits for {view.waits_for}"
    if state not in {"failed", "killed"}:
        return steps[state]
    is_permanent = state == "failed" and assessment.fatal
    failure_class = FailureClass.NON_RECOVERABLE if is_permanent else ending_of(view).failure_class
    return steps[failure_class.value]
