"""Ends of a driver whose task is ended from outside: the table in docs/airflow.md."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from gated import Gated
from services import Airflow, end_process, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(600)]

POLICIES = ("stop", "cancel", "detach")
TASK = "count"
# How the driver's attempt ends, and whether it leaves a savepoint.
ENDINGS = {
    "stop": ("CANCELLED", True),
    "cancel": ("CANCELLED", False),
    "detach": ("FINISHED", False),
}
LEFT_ALONE = dict.fromkeys(POLICIES, ("FINISHED", False))


class Case:
    """A task that waits for a driver, which stands still in its last batch.

    Args:
        airflow: where it runs.
        kind: which of the DAGs.
        policy: its ``on_kill``.
        run_id: its DAG run.
    """

    def __init__(self, airflow: Airflow, kind: str, policy: str, run_id: str) -> None:
        self.airflow = airflow
        self.policy = policy
        self.dag_id = f"ending_{kind}_{policy}"
        self.run_id = run_id
        data = Path(airflow.environment["TEST_DATA"]) / "ending" / f"{kind}_{policy}"
        self.gated = Gated(data, run_id)
        airflow.trigger(self.dag_id, dag_run_id=run_id)

    def path(self) -> str:
        return f"/dags/{self.dag_id}/dagRuns/{self.run_id}"

    def follow(self, *until: str, within: float) -> list[str]:
        return self.airflow.follow(self.dag_id, self.run_id, TASK, until=until, within=within)

    def is_asked(self) -> bool:
        return bool(self.gated.documents("requests/*/*.json"))

    def ending(self) -> tuple[str, bool]:
        """Return how the driver has ended, and whether there is a savepoint."""

        def ended() -> str | None:
            return self.gated.documents("runs/*/attempts/*.json")[-1]["outcome"]

        outcome = wait_for(f"the driver of {self.dag_id} has ended", ended, within=60)
        return outcome, bool(self.gated.documents("savepoints/*/savepoint.json"))


def begin(airflow: Airflow, kind: str, run_id: str) -> list[Case]:
    """Bring a driver under each policy into its last batch."""
    cases = [Case(airflow, kind, policy, run_id) for policy in POLICIES]
    for case in cases:
        wait_for("the last batch is planned", case.gated.in_last_batch, within=120)
        if kind != "working":
            case.follow("deferred", within=30)
    return cases


def end(cases: list[Case]) -> dict[str, tuple[str, bool]]:
    """Wait until drivers are asked to end, or open the gate if they are not to be; and their end."""
    for case in cases:
        if case.policy != "detach":
            wait_for(f"{case.dag_id} was asked to end", case.is_asked, within=120)
    for case in cases:
        case.gated.open_gate()
    return {case.policy: case.ending() for case in cases}


def delete(case: Case) -> None:
    """Delete the DAG run; one that is running has to be marked before, says Airflow."""
    case.airflow.call("PATCH", case.path(), state="failed")
    case.airflow.call("DELETE", case.path())


def mark(state: str) -> Callable[[Case], None]:
    return lambda case: case.airflow.mark(case.dag_id, case.run_id, TASK, state)


@pytest.mark.parametrize(
    ("run_id", "act"),
    [("deleted", delete), ("succeeded", mark("success"))],
    ids=["deleted", "marked_as_success"],
)
def test_a_task_that_is_marked_or_deleted_ends_its_driver_as_on_kill_says(
    airflow_services: Airflow, run_id: str, act: Callable[[Case], None]
) -> None:
    """
    Marked, or deleted with its DAG run, while it is deferred: the driver takes a savepoint and
    ends, ends at once, or goes on to its final checkpoint.
    """
    cases = begin(airflow_services, "deferred", run_id)
    for case in cases:
        act(case)

    assert ENDINGS == end(cases)


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        pytest.param("limited", "skipped", id="dagrun_timeout"),
        pytest.param("working", "failed", id="execution_timeout_in_a_worker"),
    ],
)
def test_a_timeout_ends_the_driver_as_on_kill_says(
    airflow_services: Airflow, kind: str, state: str
) -> None:
    """
    A DAG run's timeout skips the deferred task, a task's own timeout fails the one that waits in a
    worker; either way the driver ends, or goes on, as ``on_kill`` says.
    """
    cases = begin(airflow_services, kind, kind)
    states = {case.follow(state, "success", within=150)[-1] for case in cases}

    assert {state} == states
    assert ENDINGS == end(cases)


def test_timeouts_pauses_and_restarts_leave_the_driver_of_a_deferred_task_alone(
    airflow_services: Airflow,
) -> None:
    """
    The task's own timeout does not count while it is deferred; a triggerer that is restarted goes
    on with the same drivers; in a paused DAG the driver ends, and its task when the DAG goes on.
    """
    airflow = airflow_services
    cases = begin(airflow, "deferred", "left_alone")
    timed_out = time.monotonic() + 6  # seconds, one more than its execution_timeout

    def trigger_of(case: Case) -> str:
        claims = case.gated.documents("runs/*/claims/*.json")
        return str(max(claims, key=lambda each: each["generation"])["trigger"])

    triggers = {case.policy: trigger_of(case) for case in cases}
    end_process(airflow.processes["triggerer"], signal.SIGTERM, within=30)
    airflow.launch("triggerer")
    for case in cases:
        airflow.call("PATCH", f"/dags/{case.dag_id}", is_paused=True)
        before = {"", triggers[case.policy]}  # none, while none waits
        wait_for("another", lambda: trigger_of(case) not in before, within=90)
    wait_for("the timeout is over", lambda: time.monotonic() > timed_out, within=10)
    for case in cases:
        case.gated.open_gate()
    endings = {case.policy: case.ending() for case in cases}
    paused = {case.follow("scheduled", "success", "failed", within=60)[-1] for case in cases}
    for case in cases:
        airflow.unpause(case.dag_id)
    states = {case.follow("success", "failed", within=60)[-1] for case in cases}

    assert LEFT_ALONE == endings
    assert ({"scheduled"}, {"success"}) == (paused, states)
    assert [False] * 3 == [case.is_asked() for case in cases]
    for case in cases:
        assert case.gated.truth() == case.gated.result()
