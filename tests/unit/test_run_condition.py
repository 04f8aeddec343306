"""Condition of a run: its state in people's words, since when, its last error, the next step."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.failures.messages import AFTER_A_COMMAND, AFTER_A_TASK
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED, RewoundRecord
from airflow_provider.runtime.observe.state import (
    IN_A_SHELL,
    IN_AIRFLOW,
    STATES,
    Assessment,
    RunSnapshot,
    RunState,
    damaged,
    run_condition,
)
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    a_final,
    a_progress,
    a_submission,
    an_attempt,
    an_exit,
)

LATER = "2026-01-01T00:10:00.000Z"
NOTHING = RunSnapshot(
    final=None,
    lease=None,
    liveness=Liveness.FREE,
    attempt=None,
    submission=None,
    exit=None,
    submission_gone=False,
)
KILLED = an_attempt(2)
FULL = {"failure_class": "ENVIRONMENT", "reason": "No space left on device"}
WRONG = {"failure_class": "NON_RECOVERABLE", "reason": "no such column"}
RESTARTS = {"count": 3, "worked_s": 1.0, "state": {}, "failure": FULL}
CASES = {
    "absent": (RunState.ABSENT, {}),
    "absent, and another run goes on": (RunState.FOREIGN, {}),
    "running": (RunState.RUNNING, {"attempt": KILLED}),
    "starting": (RunState.STARTING, {"attempt": an_attempt(outcome=FAILED)}),
    "killed": (RunState.ABSENT, {"attempt": KILLED}),
    "killed, and another run goes on": (RunState.FOREIGN, {"attempt": KILLED}),
    "killed, as its submission tells": (RunState.FAILED, {"attempt": KILLED}),
    "failed": (RunState.ABSENT, {"attempt": an_attempt(outcome=FAILED)}),
    "failed, before its first attempt": (RunState.FAILED, {}),
    "cancelled": (RunState.ABSENT, {"attempt": an_attempt(outcome=CANCELLED)}),
    "suspended": (RunState.DONE, {"final": a_final(outcome="SUSPENDED"), "attempt": KILLED}),
    "finished": (RunState.DONE, {"final": a_final()}),
}


def condition(run_state=RunState.ABSENT, undone=None, problem=None, *, fatal=False, **seen):
    view = dataclasses.replace(NOTHING, **seen)
    assessed = Assessment(run_state, "run 'r9' is running this job", fatal=fatal)
    return run_condition(view, assessed, undone=undone, problem=problem)


@pytest.mark.parametrize(("run_state", "seen"), CASES.values(), ids=CASES)
def test_each_state_has_a_word_and_a_next_step(request, run_state, seen):
    """
    Runs that were killed, have failed, or were cancelled are told apart; an undone one is undone,
    whatever it was before.
    """
    word = request.node.callspec.id.partition(",")[0]
    undone = RewoundRecord(run_id="r1", savepoint="/s", at=LATER, by="rewind")
    found, taken_back = condition(run_state, **seen), condition(run_state, undone, **seen)

    assert (word, True) == (found.state, bool(found.next_step))
    assert ("undone", LATER, None) == (taken_back.state, taken_back.since, taken_back.error)
    assert taken_back.next_step.startswith("undone by rewind: the job was set to /s; ")
    assert {found.state, taken_back.state} <= set(STATES)


def test_who_has_a_task_is_not_told_to_give_a_command():
    """
    Each state has a next step for both, also a failure that a retry does not help.
    """
    wrong = an_attempt(outcome=FAILED, failure=WRONG)
    view = dataclasses.replace(NOTHING, attempt=wrong)
    found = run_condition(view, Assessment(RunState.ABSENT), steps=IN_AIRFLOW)

    classes = {each.value for each in FailureClass}
    assert AFTER_A_TASK[FailureClass.NON_RECOVERABLE] == found.next_step
    assert {*STATES, *classes} - {"failed", "killed"} == set(IN_A_SHELL) == set(IN_AIRFLOW)
    assert [] == [step for step in IN_AIRFLOW.values() if "command" in step or "spark-" in step]


def test_a_killed_run_is_dead_since_it_was_last_heard_of():
    """
    By the last progress of its own attempt; that of an earlier one says nothing.
    """
    heard = a_progress(at=LATER, attempt=2)

    assert LATER == condition(attempt=KILLED, progress=heard).since
    assert NOW == condition(attempt=KILLED, progress=dataclasses.replace(heard, attempt=1)).since


def test_an_ended_run_is_so_since_it_has_ended():
    """
    The final checkpoint's time, the attempt's end, the time of the submission, the exit of a driver.
    """
    ended = an_attempt(outcome=FAILED, ended=LATER, failure=FULL)

    assert LATER == condition(attempt=ended).since
    assert NOW == condition(RunState.DONE, final=a_final(), attempt=ended).since
    assert NOW == condition(RunState.STARTING, submission=a_submission()).since
    assert NOW == condition(RunState.FAILED, exit=an_exit()).since


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
        ({"run_state": RunState.RUNNING, "attempt": an_attempt(restarts=RESTARTS)}, "3 restart(s)"),
        ({"run_state": RunState.RUNNING, "attempt": an_attempt()}, None),
        ({"final": a_final(), "attempt": an_attempt(outcome=FAILED, failure=FULL)}, None),
    ],
)
def test_the_last_error_is_what_the_driver_has_recorded_or_its_exit(seen, error):
    """
    A run that is well has none, also if an attempt of it has failed before.
    """
    found = condition(**seen).error

    assert (error is None) == (found is None)
    assert (error or "") in (found or "")


def test_what_a_retry_cannot_help_is_said():
    """
    Whether the driver has recorded it, or its exit code tells; of another failure it is not said.
    """
    wrong = condition(attempt=an_attempt(outcome=FAILED, failure=WRONG)).next_step
    usage = condition(RunState.FAILED, exit=an_exit(2), fatal=True).next_step
    full = condition(attempt=an_attempt(outcome=FAILED, failure=FULL)).next_step

    assert [AFTER_A_COMMAND[FailureClass.NON_RECOVERABLE]] * 2 == [wrong, usage]
    assert AFTER_A_COMMAND[FailureClass.ENVIRONMENT] == full


def test_a_run_that_waits_for_another_names_it():
    """
    The next step of a run without a driver depends on who has the lease.
    """
    assert "run 'r9' is running this job" == condition(RunState.FOREIGN).next_step


def test_what_is_not_believed_or_not_readable_is_said():
    """
    A final checkpoint that the records contradict, and a damaged document.
    """
    contradicted = condition(RunState.DONE, problem="its record says otherwise", final=a_final())

    assert ("unverified", "its record says otherwise") == (contradicted.state, contradicted.error)
    assert ("damaged", "not a JSON") == (damaged("not a JSON").state, damaged("not a JSON").error)
