"""Condition of a run: its state in one word, since when, its last error, the next step."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.observe.snapshot import RunSnapshot, read_snapshot
from airflow_provider.runtime.observe.state import (
    IN_A_SHELL,
    IN_AIRFLOW,
    RunCondition,
    RunState,
    assess,
    damaged,
    run_condition,
)
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    JobDirectoryBuilder,
    a_final,
    a_progress,
    a_submission,
    an_attempt,
    an_exit,
    rewind_run,
)
from tests.unit.support import a_lease

LATER = "2026-01-01T00:10:00.000Z"
KILLED = an_attempt(2)
FULL = {"failure_class": "ENVIRONMENT", "reason": "No space left on device"}
WRONG = {"failure_class": "NON_RECOVERABLE", "reason": "no such column"}
RESTARTS = {"count": 3, "worked_s": 1.0, "state": {}, "failure": FULL}
ALIVE: dict[str, Any] = {"lease": a_lease(), "liveness": Liveness.LIVE}
ANOTHERS: dict[str, Any] = {"lease": a_lease("r9"), "liveness": Liveness.LIVE}
SUBMITTED: dict[str, Any] = {"submission": a_submission()}
CASES: dict[str, dict[str, Any]] = {
    "absent": {},
    "absent, and another run goes on": ANOTHERS,
    "running": {**ALIVE, "attempt": KILLED},
    "starting": {**SUBMITTED, "attempt": an_attempt(driver_id="d0", outcome=FAILED)},
    "killed": {"attempt": KILLED},
    "killed, and another run goes on": {**ANOTHERS, "attempt": KILLED},
    "killed, as its submission tells": {**SUBMITTED, "attempt": KILLED, "submission_gone": True},
    "killed, and its exit is about to be recorded": {
        **SUBMITTED,
        "attempt": KILLED,
        "is_driver_gone": True,
    },
    "failed": {"attempt": an_attempt(outcome=FAILED)},
    "failed, before its first attempt": {**SUBMITTED, "exit": an_exit()},
    "failed, before its first attempt, about to be recorded": {**SUBMITTED, "is_driver_gone": True},
    "failed, before its first attempt, after another driver": {
        **SUBMITTED,
        "exit": an_exit(),
        "attempt": an_attempt(driver_id="d0", outcome=CANCELLED),
    },
    "cancelled": {"attempt": an_attempt(outcome=CANCELLED)},
    "suspended": {"final": a_final(outcome="SUSPENDED"), "attempt": KILLED},
    "finished": {"final": a_final()},
}


def condition(problem: str | None = None, **seen: Any) -> RunCondition:
    snapshot = RunSnapshot("r1", **seen)
    return run_condition(snapshot, assess(snapshot), problem=problem)


@pytest.mark.parametrize("case", CASES)
def test_each_state_has_a_word_and_a_next_step(case: str) -> None:
    """Runs that were killed, have failed, or were cancelled are told apart."""
    found = condition(**CASES[case])

    assert case.partition(",")[0] == found.state
    assert found.next_step


def test_a_run_that_was_rewound_is_so_whatever_it_was_before(job: JobDirectoryBuilder) -> None:
    """With what has rewound it, when, and to where."""
    job.finished("r1")
    rewind_run(job.directory, "r1", savepoint="/s", at=LATER)
    snapshot = read_snapshot(job.directory)

    found = run_condition(snapshot, assess(snapshot))

    assert (RunState.REWOUND, LATER, None) == (found.state, found.since, found.error)
    assert found.next_step.startswith("rewound by rewind: the job was set to /s; ")


@pytest.fixture
def job(tmp_path: Any) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin().request_run()


def test_who_has_a_task_is_not_told_to_give_a_command() -> None:
    """Each state has a next step for both, also a failure that a retry does not help."""
    snapshot = RunSnapshot("r1", attempt=an_attempt(outcome=FAILED, failure=WRONG))
    found = run_condition(snapshot, assess(snapshot), steps=IN_AIRFLOW)

    states = {state.value for state in RunState}
    states -= {"failed", "killed", "ending", "foreign", "unhealthy", "due"}
    states -= {"waiting", "missing", "unknown"}  # of a task, not of a run
    assert AFTER_A_TASK[FailureClass.NON_RECOVERABLE] == found.next_step
    assert {*states, *(each.value for each in FailureClass)} == set(IN_A_SHELL) == set(IN_AIRFLOW)
    assert [] == [step for step in IN_AIRFLOW.values() if "command" in step or "spark-" in step]


def test_a_killed_run_is_dead_since_it_was_last_heard_of() -> None:
    """By the last progress of its own attempt; that of an earlier one says nothing."""
    heard = a_progress(at=LATER, attempt=2)

    assert LATER == condition(attempt=KILLED, progress=heard).since
    assert NOW == condition(attempt=KILLED, progress=dataclasses.replace(heard, attempt=1)).since


def test_an_ended_run_is_so_since_it_has_ended() -> None:
    """
    The final checkpoint's time, the attempt's end, the time of the submission, the exit of a driver.
    """
    ended = an_attempt(outcome=FAILED, ended=LATER, failure=FULL)

    assert LATER == condition(attempt=ended).since
    assert NOW == condition(final=a_final(), attempt=ended).since
    assert NOW == condition(**SUBMITTED).since
    assert NOW == condition(**SUBMITTED, exit=an_exit()).since


@pytest.mark.parametrize(
    ("seen", "error"),
    [
        (
            {"attempt": an_attempt(outcome=FAILED, failure=FULL)},
            "ENVIRONMENT: on worker-7: No space left on",
        ),
        ({"attempt": an_attempt(outcome=CANCELLED)}, None),
        ({"attempt": KILLED}, "the driver was killed, or its machine was lost"),
        (
            {"attempt": KILLED, "exit": an_exit(137, "Killed")},
            "ENVIRONMENT: on worker-7: the driver was killed by SIGKILL (exit code 137) (Killed)",
        ),
        ({**ALIVE, "attempt": an_attempt(restarts=RESTARTS)}, "3 restart(s)"),
        ({**ALIVE, "attempt": an_attempt()}, None),
        ({"final": a_final(), "attempt": an_attempt(outcome=FAILED, failure=FULL)}, None),
    ],
)
def test_the_last_error_is_what_the_driver_has_recorded_or_its_exit(
    seen: dict[str, Any], error: str | None
) -> None:
    """A run that is well has none, also if an attempt of it has failed before."""
    found = condition(**seen).error

    assert (error is None) == (found is None)
    assert (error or "") in (found or "")


def test_what_a_retry_cannot_help_is_said() -> None:
    """
    Whether the driver has recorded it, or its exit code tells; of another failure it is not said.
    """
    wrong = condition(attempt=an_attempt(outcome=FAILED, failure=WRONG)).next_step
    usage = condition(**SUBMITTED, exit=an_exit(2)).next_step
    full = condition(attempt=an_attempt(outcome=FAILED, failure=FULL)).next_step

    assert [AFTER_A_COMMAND[FailureClass.NON_RECOVERABLE]] * 2 == [wrong, usage]
    assert AFTER_A_COMMAND[FailureClass.ENVIRONMENT] == full


def test_a_run_that_waits_for_another_names_it() -> None:
    """The next step of a run without a driver depends on who has the lease."""
    assert condition(**ANOTHERS).next_step.startswith("run 'r9' is running this job")


def test_what_is_not_believed_or_not_readable_is_said() -> None:
    """A final checkpoint that the records contradict, and a damaged document."""
    contradicted = condition("its record says otherwise", final=a_final())

    assert ("unverified", "its record says otherwise") == (contradicted.state, contradicted.error)
    assert ("damaged", "not a JSON") == (damaged("not a JSON").state, damaged("not a JSON").error)
