"""Reconciler: the task's decision for every state of a job directory, and every setting."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.control.submit import ON_EXISTING, Action, reconcile
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.run_records import CANCELLED, FAILED
from airflow_provider.runtime.observe.snapshot import RunSnapshot
from airflow_provider.runtime.observe.state import assess
from airflow_provider.runtime.testing.job_directories import (
    a_final,
    a_submission,
    an_attempt,
    an_exit,
)
from tests.unit.support import a_lease
from tests.unit.test_observer import NOTHING

FATAL = {"failure_class": "NON_RECOVERABLE", "condition": "c", "reason": "r"}
HELD = {"lease": a_lease(), "liveness": Liveness.LIVE}
SUBMITTED = {"submission": a_submission()}
REMOTE: dict[str, Any] = {"submission": dataclasses.replace(a_submission(), is_remote=True)}
ANOTHERS = {"lease": a_lease("r2", "other"), "liveness": Liveness.LIVE}
REPLACED = {"lease": a_lease("r0", "other"), "liveness": Liveness.LIVE}

# What is found, and what follows: alone, with on_existing="wait" and "fail" where that differs, and
# when the driver at work was asked to end.
STATES: dict[str, tuple[dict[str, Any], Action, dict[str, Action]]] = {
    "no run": ({}, Action.SUBMIT, {}),
    "intent only": ({**SUBMITTED, "submission_started": False}, Action.SUBMIT, {}),
    "an intent that was revoked": (
        {**SUBMITTED, "submission_started": False, "submission_gone": True},
        Action.SUBMIT,
        {},
    ),
    "submission without a reply": (SUBMITTED, Action.ADOPT, {"fail": Action.REFUSE}),
    "submission without a reply, its process gone": (
        {**SUBMITTED, "submission_gone": True},
        Action.SUBMIT,
        {},
    ),
    "submission to a cluster, its process gone": (
        {**REMOTE, "submission_gone": True},
        Action.ADOPT,
        {"fail": Action.REFUSE},
    ),
    "submission to a cluster that was accepted": (
        {**REMOTE, "submission_gone": True, "launch": LaunchStatus(LaunchState.QUEUED)},
        Action.ADOPT,
        {"fail": Action.REFUSE},
    ),
    "submission to a cluster that has lost it": (
        {**REMOTE, "submission_gone": True, "launch": LaunchStatus(LaunchState.GONE)},
        Action.SUBMIT,
        {},
    ),
    "submission to a cluster that was not": (
        {**REMOTE, "submission_gone": True, "exit": an_exit(1)},
        Action.SUBMIT,
        {},
    ),
    "submission that was waited for in vain": (
        {**SUBMITTED, "submission_lost": True},
        Action.SUBMIT,
        {},
    ),
    "... whose driver came up after all": (
        {**SUBMITTED, **HELD, "submission_lost": True},
        Action.ADOPT,
        {"fail": Action.REFUSE},
    ),
    "driver alive": ({**SUBMITTED, **HELD}, Action.ADOPT, {"fail": Action.REFUSE}),
    "driver alive that a person has started": (HELD, Action.ADOPT, {"fail": Action.REFUSE}),
    "driver alive, what looked after it dead": (
        {**SUBMITTED, **HELD, "submission_gone": True},
        Action.ADOPT,
        {"fail": Action.REFUSE},
    ),
    "driver alive, a second submission lost to it": (
        {**HELD, "submission": a_submission("d2"), "exit": an_exit(5)},
        Action.ADOPT,
        {"fail": Action.REFUSE},
    ),
    "driver dead": ({**SUBMITTED, **HELD, "liveness": Liveness.DEAD}, Action.SUBMIT, {}),
    "driver gone without a record": (
        {**SUBMITTED, "lease": a_lease(), "liveness": Liveness.FREE},
        Action.SUBMIT,
        {},
    ),
    "attempt cancelled": (
        {**SUBMITTED, "exit": an_exit(3), "attempt": an_attempt(outcome=CANCELLED)},
        Action.SUBMIT,
        {},
    ),
    "attempt failed": (
        {**SUBMITTED, "exit": an_exit(3), "attempt": an_attempt(outcome=FAILED)},
        Action.SUBMIT,
        {},
    ),
    "attempt failed for good, and somebody tries again": (
        {**SUBMITTED, "exit": an_exit(4), "attempt": an_attempt(outcome=FAILED, failure=FATAL)},
        Action.SUBMIT,
        {},
    ),
    "ended with 0 and nothing": ({**SUBMITTED, "exit": an_exit(0)}, Action.SUBMIT, {}),
    "final checkpoint": ({"final": a_final()}, Action.FINISH, {}),
    "final checkpoint, its driver closing": (
        {**SUBMITTED, **HELD, "final": a_final()},
        Action.FINISH,
        {},
    ),
    "final checkpoint, another run at work": ({**ANOTHERS, "final": a_final()}, Action.FINISH, {}),
    "another run at work": (ANOTHERS, Action.REFUSE, {"wait": Action.WAIT}),
    "another run at work, a submission of ours": (
        {**ANOTHERS, **SUBMITTED},
        Action.REFUSE,
        {"wait": Action.WAIT},
    ),
    "another run's driver dead": ({**ANOTHERS, "liveness": Liveness.DEAD}, Action.SUBMIT, {}),
    "the run to be undone at work": (REPLACED, Action.WAIT, {}),
}

EVERY = list(itertools.product(STATES, ON_EXISTING))


def decide(state: str, on_existing: str, *, is_leaving: bool = False):
    view: RunSnapshot = dataclasses.replace(NOTHING, **STATES[state][0])
    return reconcile(
        view,
        assess(view),
        on_existing=on_existing,
        replays="r0",
        is_leaving=is_leaving,
    )


@pytest.mark.parametrize(("state", "on_existing"), EVERY)
def test_what_is_found_decides(state, on_existing):
    """Each state of a job directory has one answer for each setting."""
    _, usual, others = STATES[state]
    expected = others.get(on_existing, usual)

    decision = decide(state, on_existing)

    assert expected is decision.action
    assert (expected is Action.REFUSE) == bool(decision.reason)
    assert (state == "the run to be undone at work") == decision.ends_replaced


@pytest.mark.parametrize(("state", "on_existing"), EVERY)
def test_a_driver_that_was_asked_to_end_is_waited_for(state, on_existing):
    """
    Whatever would be done with a driver of the run that is at work, one that ends is waited for; where
    there is none, it changes nothing.
    """
    is_at_work = decide(state, "adopt").action is Action.ADOPT
    before = decide(state, on_existing).action

    after = decide(state, on_existing, is_leaving=True).action

    assert (Action.WAIT if is_at_work else before) is after


@pytest.mark.parametrize(
    ("failure", "exit_code", "fatal"),
    [(FATAL, 1, True), (FATAL, -9, True), (None, 1, False), (None, 4, True)],
)
def test_a_failure_for_good_is_one_whatever_the_submitter_exits_with(failure, exit_code, fatal):
    """
    In deploy mode cluster the exit code is that of who waited; what the driver has recorded counts.
    """
    attempt = an_attempt(outcome=FAILED, failure=failure)
    view = dataclasses.replace(NOTHING, **REMOTE, exit=an_exit(exit_code), attempt=attempt)

    assert fatal is assess(view).fatal
