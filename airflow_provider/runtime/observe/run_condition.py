"""Condition of a run in people's words: its state, since when, its last error, and the next step.

One pure function decides, from one look at the job directory, for all that show it: ``status``,
``ls``, the page in Airflow's UI, and Prometheus' text.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors.failure import Failure, FailureClass
from airflow_provider.runtime.failures.next_steps import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.observe.observer import Assessment, RunState, View, ending_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.run_records import RewoundRecord

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
    view: View,
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
    state = _state(view, assessment.run_state, is_undone=undone is not None)
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


def _state(view: View, run_state: RunState, *, is_undone: bool) -> str:
    if is_undone:
        return "undone"
    if view.final is not None:
        return view.final.outcome.lower()
    attempt = view.attempt
    if run_state in {RunState.RUNNING, RunState.STARTING} or attempt is None:
        unbegun = {RunState.FOREIGN: "absent", RunState.ENDING: "failed"}
        return unbegun.get(run_state, run_state.value)
    return attempt.outcome.lower() if attempt.outcome is not None else "killed"


def _since(view: View, state: str) -> str | None:
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


def _error(view: View, assessment: Assessment, state: str) -> str | None:
    attempt = view.attempt
    if state in {"running", "starting"}:
        if attempt is None or attempt.restarts is None or not attempt.restarts["count"]:
            return None
        last = Failure.from_dict(attempt.restarts["failure"]).describe()
        return f"{attempt.restarts['count']} restart(s) in the driver, the last one after {last}"
    if view.final is not None or state in {"cancelled", "absent"}:
        return None
    return ending_of(view).describe()


def _next(view: View, assessment: Assessment, state: str, steps: Mapping[str, str]) -> str:
    if state == "absent" and assessment.run_state is RunState.FOREIGN:
        return assessment.reason
    if state == "starting" and view.waits_for:
        return f"waits for {view.waits_for}"
    if state not in {"failed", "killed"}:
        return steps[state]
    is_permanent = state == "failed" and assessment.fatal
    failure_class = FailureClass.NON_RECOVERABLE if is_permanent else ending_of(view).failure_class
    return steps[failure_class.value]
