"""State of a run: one set of words, and what each of them follows from; pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_LEASE, EXIT_USAGE
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.errors.fixes import RESTORE_ELSEWHERE
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.observe.endings import recorded_failure, silent_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot

COMING_UP: Final = (
    "Spark's JVM starts, the job's function is called, and the driver takes the lease, which "
    "usually takes 10 to 30 seconds"
)
IN_A_SHELL: Final[Mapping[str, str]] = {
    "absent": "no driver has begun it: spark-stream run begins it",
    "starting": f"wait: {COMING_UP}; spark-stream watch follows it",
    "running": "spark-stream watch follows it, spark-stream stop ends it",
    **{each.value: step for each, step in AFTER_A_COMMAND.items()},
    "cancelled": "repeat the command: it resumes",
    "suspended": "the same command begins a run that continues from here",
    "finished": "nothing: all is read, flushed and published",
    "rewound": "the same command begins another run from there",
    "unverified": "do not use its output, and find out who has changed the job directory",
    "damaged": f"put the document back, or, if there is a savepoint, {RESTORE_ELSEWHERE}",
}
"""What to do next, by the state, or by the class of the failure: for a reader at a shell."""
IN_AIRFLOW: Final[Mapping[str, str]] = {
    **IN_A_SHELL,
    "absent": "no driver has begun it: its task does, when it runs",
    "starting": f"wait: {COMING_UP}",
    "running": "nothing: its driver is at work",
    **{each.value: step for each, step in AFTER_A_TASK.items()},
    "cancelled": "clear the task: the run resumes",
    "suspended": "the next run of the DAG continues from here",
    "rewound": "the next run of the task begins from there",
}
"""The same for a reader who has a task."""


class RunState(str, enum.Enum):
    """The state of a run; operators, triggers, commands, metrics and the page use these words."""

    ABSENT = "absent"  # no driver has begun it
    STARTING = "starting"  # a driver was submitted and has not taken the lease yet
    RUNNING = "running"  # a driver of this run is alive, or may be
    KILLED = "killed"  # its driver ended without recording how
    FAILED = "failed"  # its driver ended with a failure
    CANCELLED = "cancelled"
    SUSPENDED = "suspended"
    FINISHED = "finished"
    REWOUND = "rewound"  # the job went back to before it, or into the middle of it
    UNVERIFIED = "unverified"  # its records contradict its final checkpoint
    DAMAGED = "damaged"  # a document cannot be read
    # Of a driver, for a task that waits for the run:
    ENDING = "ending"  # the driver has ended, and how is not recorded yet
    FOREIGN = "foreign"  # a driver of another run is alive
    UNHEALTHY = "unhealthy"  # the driver is alive, and makes no progress
    DUE = "due"  # the driver is healthy, and the time of its supervision is over
    # Of a task whose run is not known, on the page:
    WAITING = "waiting"  # the task has not begun
    MISSING = "missing"  # its job directory is not the one in which the job has begun
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return str(self.value)

    @property
    def is_done(self) -> bool:
        """Whether the run has its final checkpoint."""
        return self in {RunState.FINISHED, RunState.SUSPENDED}

    @property
    def is_at_work(self) -> bool:
        """Whether a driver is at work on the run, or about to be."""
        return self in {RunState.STARTING, RunState.RUNNING}

    @property
    def has_failed(self) -> bool:
        """Whether the last driver ended without a final checkpoint."""
        return self in {RunState.FAILED, RunState.KILLED, RunState.CANCELLED}


@dataclasses.dataclass(frozen=True)
class Assessment:
    """A verdict and its reason.

    Attributes:
        fatal: whether another attempt cannot help.
        failure: the failure that the driver recorded; None if it recorded none.
        lost: a submitted driver that has not come up in time, and may be replaced.
        waited_s: for how long.
    """

    run_state: RunState
    reason: str = ""
    fatal: bool = False
    failure: dict[str, Any] | None = None
    lost: str | None = None
    waited_s: float = 0.0


def assess(snapshot: RunSnapshot) -> Assessment:
    """Return the state of a run."""
    if snapshot.final is not None:
        return Assessment(RunState(snapshot.final.outcome.lower()))
    held = snapshot.liveness in {Liveness.LIVE, Liveness.UNKNOWN}
    if held and snapshot.lease is not None:
        if snapshot.lease.run_id == snapshot.run_id:
            return Assessment(RunState.RUNNING)
        return Assessment(RunState.FOREIGN, _foreign_reason(snapshot.lease))
    if snapshot.submission is None:
        return Assessment(_left_state(snapshot.attempt))
    return _assess_submission(snapshot)


def _left_state(attempt: AttemptRecord | None) -> RunState:
    if attempt is None:
        return RunState.ABSENT
    return {FAILED: RunState.FAILED, CANCELLED: RunState.CANCELLED}.get(
        str(attempt.outcome), RunState.KILLED
    )


def _assess_submission(snapshot: RunSnapshot) -> Assessment:
    if snapshot.launch is not None and snapshot.launch.is_over:
        return assess_end(snapshot, snapshot.launch.exit_code)
    if snapshot.exit is not None:
        return assess_end(snapshot, snapshot.exit.exit_code)
    if _is_ending(snapshot):
        return Assessment(RunState.ENDING)
    if _lease_of_submission(snapshot) or (snapshot.submission_gone and not _is_under_way(snapshot)):
        return assess_end(snapshot, None)
    if snapshot.submission_lost:
        return Assessment(
            RunState.FAILED, "the driver was submitted, and has never taken the lease"
        )
    return Assessment(RunState.STARTING)


def _is_ending(snapshot: RunSnapshot) -> bool:
    is_remote = snapshot.submission is not None and snapshot.submission.is_remote
    attempt = snapshot.own_attempt
    return (
        snapshot.is_driver_gone and not is_remote and (attempt is None or attempt.outcome is None)
    )


def _is_under_way(snapshot: RunSnapshot) -> bool:
    """Whether a driver that has not spoken may come up without the process that submitted it."""
    is_remote = snapshot.submission is not None and snapshot.submission.is_remote
    return (
        is_remote
        and snapshot.submission_started
        and snapshot.own_attempt is None
        and not _lease_of_submission(snapshot)
    )


def assess_end(snapshot: RunSnapshot, exit_code: int | None) -> Assessment:
    """Decide about a run whose watched driver has ended without a final checkpoint."""
    # In deploy mode cluster the exit code may be that of the process that waited for the driver.
    attempt = snapshot.own_attempt
    run_state = _left_state(attempt) if attempt is not None else RunState.FAILED
    if attempt is not None and run_state is RunState.CANCELLED:
        return Assessment(run_state, f"attempt {attempt.attempt} was cancelled")
    failure = ending_of(snapshot)
    reason = f"{failure.describe()} ({_which_driver(snapshot, failure)})"
    if exit_code == EXIT_LEASE:
        reason = f"another driver held the lease: {reason}"
    is_permanent = exit_code in {EXIT_USAGE, EXIT_FATAL} or failure.is_fatal
    return Assessment(run_state, reason, fatal=is_permanent, failure=failure.to_dict())


def ending_of(snapshot: RunSnapshot) -> Failure:
    """Return the failure with which the watched driver ended, recorded or not."""
    attempt = snapshot.own_attempt
    recorded = recorded_failure(attempt)
    if recorded is not None:
        return recorded
    is_its_lease = snapshot.lease is not None and (
        snapshot.submission is None or _lease_of_submission(snapshot)
    )
    owner = snapshot.lease.owner.host if snapshot.lease is not None and is_its_lease else ""
    launch, ended = snapshot.launch, snapshot.exit
    code = launch.exit_code if launch is not None else None
    if code is None and ended is not None:
        code = ended.exit_code
    lines = ended.last_lines if ended is not None else ()
    cluster = ""
    # Of a driver that never reached it a cluster knows less than the log of spark-submit.
    if launch is not None and snapshot.handle is not None:
        says = launch.state is not LaunchState.GONE or not lines
        cluster = launch.describe(snapshot.handle) if says else ""
    return silent_failure(
        code,
        lines,
        host=attempt.host if attempt is not None else owner or snapshot.host,
        remains=snapshot.remains,
        cluster=cluster,
    )


def _which_driver(snapshot: RunSnapshot, failure: Failure) -> str:
    attempt = snapshot.own_attempt
    which = f"attempt {attempt.attempt}" if attempt is not None else "before its first attempt"
    host = attempt.host if attempt is not None else failure.host
    where = f" on {host}" if host else ""
    elsewhere = f", failed on {failure.host}" if failure.host not in {"", host} else ""
    is_said = snapshot.exit is None or "exit code" in failure.reason or recorded_failure(attempt)
    code = "" if is_said or snapshot.exit is None else f", exit code {snapshot.exit.exit_code}"
    return f"{which}{where}{elsewhere}{code}"


def _lease_of_submission(snapshot: RunSnapshot) -> bool:
    return (
        snapshot.lease is not None
        and snapshot.submission is not None
        and snapshot.lease.driver_id == snapshot.submission.driver_id
    )


def _foreign_reason(lease: LeaseRecord) -> str:
    return (
        f"run {lease.run_id!r} is running this job (lease {lease.token}, on "
        f"{lease.owner.host}); wait for it, cancel it, or give each run its own job directory"
    )


def launch_line(snapshot: RunSnapshot) -> str | None:
    """Return the line about a driver's run on its launcher; None for no line."""
    if snapshot.handle is None or snapshot.final is not None:
        return None
    if snapshot.launch is None:
        return f"{snapshot.handle.launcher} {snapshot.handle.id}"
    return snapshot.launch.describe(snapshot.handle)


def driver_at_work(snapshot: RunSnapshot, run_state: RunState) -> str | None:
    """Return the driver that runs or starts on behalf of the run; None when there is none."""
    if run_state is RunState.RUNNING and snapshot.lease is not None:
        return snapshot.lease.driver_id
    if (
        run_state is RunState.STARTING
        and snapshot.submission is not None
        and snapshot.submission_started
    ):
        return snapshot.submission.driver_id
    return None


def driver_to_come(snapshot: RunSnapshot) -> str | None:
    """Return the submitted driver that has not come up, and still may; None if there is none.

    The lease may be an earlier driver's. A cluster that does not answer may have the driver, even
    if the process that submitted it has failed.
    """
    submission, launch = snapshot.submission, snapshot.launch
    if submission is None or snapshot.final is not None or snapshot.own_attempt is not None:
        return None
    if snapshot.handle is not None and (launch is None or not launch.is_over):
        snapshot = dataclasses.replace(snapshot, exit=None)
    is_to_come = _assess_submission(snapshot).run_state is RunState.STARTING
    return submission.driver_id if is_to_come else None


@dataclasses.dataclass(frozen=True)
class RunCondition:
    """The condition of a run at a glance.

    Attributes:
        since: when it came into that state; of a killed run, the last report of its driver. None if
            no record says.
        error: why it is unhealthy, or has last restarted a query; None if it is healthy.
    """

    state: RunState
    since: str | None
    error: str | None
    next_step: str


def run_condition(
    snapshot: RunSnapshot,
    assessment: Assessment,
    *,
    problem: str | None = None,
    steps: Mapping[str, str] = IN_A_SHELL,
) -> RunCondition:
    """Return the condition of a run.

    Args:
        snapshot: its snapshot.
        assessment: the assessment of that snapshot.
        problem: why its final checkpoint is invalid.
        steps: what to do next, in the caller's words.
    """
    rewound = snapshot.rewound
    if rewound is not None:
        where = rewound.savepoint or "where it was before the run"
        then = steps[RunState.REWOUND.value]
        step = f"rewound by {rewound.by}: the job was set to {where}; {then}"
        return RunCondition(RunState.REWOUND, rewound.at, None, step)
    state = assessment.run_state
    if state in {RunState.FOREIGN, RunState.ENDING}:
        is_ending = state is RunState.ENDING
        attempt = snapshot.own_attempt if is_ending else snapshot.attempt
        is_unbegun = is_ending and attempt is None
        state = RunState.FAILED if is_unbegun else _left_state(attempt)
    since = _since(snapshot, state)
    if problem is not None:
        step = steps[RunState.UNVERIFIED.value]
        return RunCondition(RunState.UNVERIFIED, since, problem, step)
    next_step = _next(snapshot, assessment, state, steps)
    return RunCondition(state, since, _error(snapshot, state), next_step)


def damaged(problem: str) -> RunCondition:
    """Return the condition of a run of which a document cannot be read."""
    return RunCondition(RunState.DAMAGED, None, problem, IN_A_SHELL[RunState.DAMAGED.value])


def _since(snapshot: RunSnapshot, state: RunState) -> str | None:
    if snapshot.final is not None:
        return snapshot.final.committed
    attempt, lease, submission = snapshot.own_attempt, snapshot.lease, snapshot.submission
    if state is RunState.STARTING:
        return submission.submitted if submission is not None else None
    if state is RunState.RUNNING and lease is not None:
        return lease.acquired
    if attempt is None:
        return snapshot.exit.at if snapshot.exit is not None else None
    if state is RunState.KILLED and snapshot.progress is not None:
        is_its = snapshot.progress.attempt == attempt.attempt
        return snapshot.progress.at if is_its else attempt.started
    return attempt.ended or attempt.started


def _error(snapshot: RunSnapshot, state: RunState) -> str | None:
    if state.is_at_work:
        restarts = snapshot.attempt.restarts if snapshot.attempt is not None else None
        return describe_restarts(restarts) if restarts is not None and restarts["count"] else None
    if snapshot.final is not None or state in {RunState.CANCELLED, RunState.ABSENT}:
        return None
    return ending_of(snapshot).describe()


def describe_restarts(restarts: Mapping[str, Any]) -> str:
    """Return how often a driver has restarted its queries, and after which failure last."""
    last = Failure.from_dict(restarts["failure"]).describe()
    return f"{restarts['count']} restart(s) in the driver, the last one after {last}"


def _next(
    snapshot: RunSnapshot, assessment: Assessment, state: RunState, steps: Mapping[str, str]
) -> str:
    if state is RunState.ABSENT and assessment.run_state is RunState.FOREIGN:
        return assessment.reason
    if state is RunState.STARTING and snapshot.waits_for:
        return f"waits for {snapshot.waits_for}"
    if state not in {RunState.FAILED, RunState.KILLED}:
        return steps[state.value]
    is_permanent = state is RunState.FAILED and assessment.fatal
    failure_class = (
        FailureClass.NON_RECOVERABLE if is_permanent else ending_of(snapshot).failure_class
    )
    return steps[failure_class.value]
