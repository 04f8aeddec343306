"""Scheduler, triggerer, DAG processor and API server as processes on PostgreSQL, and real Spark."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from gated import MINUTES, Gated
from services import Airflow, demo, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

FLIGHTS = "flights_daily_delays"


@pytest.mark.whole  # test_clearing.py clears; the job: tests/spark/test_flights_jobs.py; `make demo`
def test_the_example_dag_waits_without_a_worker_slot_and_a_clear_repeats_nothing(
    airflow_services: Airflow,
) -> None:
    """
    Triggered by REST, the task is deferred while Spark runs and green with the final checkpoint;
    cleared, it is green again without another attempt.
    """
    airflow = airflow_services
    task_id = "daily_delays"

    run_id = airflow.trigger(FLIGHTS)
    states = airflow.follow(FLIGHTS, run_id, task_id, until=("success", "failed"), within=180)
    final = airflow.xcom(FLIGHTS, run_id, task_id)
    data = Path(airflow.environment["FLIGHTS_DATA"])
    result = demo().read_result(next((data / "output").glob("[!.]*")))
    airflow.clear(FLIGHTS, run_id, task_id)
    again = airflow.follow(FLIGHTS, run_id, task_id, until=("success", "failed"), within=60)
    final_again = airflow.xcom(FLIGHTS, run_id, task_id)

    assert "success" == states[-1], airflow.logs(FLIGHTS, run_id, task_id)
    assert "deferred" in states
    assert ("FINISHED", 1) == (final["outcome"], final["attempts"])
    assert [] == demo().compare(result, final)
    assert "success" == again[-1], airflow.logs(FLIGHTS, run_id, task_id)
    assert 2 == airflow.task(FLIGHTS, run_id, task_id)["try_number"]
    assert final == final_again
    assert 1 == len(list((data / "jobs").glob("*/runs/*/attempts/*.json")))


@pytest.mark.whole  # test_operator.py adopts drivers that are alive, or are starting
def test_a_driver_outlives_its_worker_and_the_next_try_adopts_it(
    airflow_services: Airflow,
) -> None:
    """
    After kill -9 of the task's process and of its supervisor the driver goes on, the next try
    waits for the same driver, and the result is exact.
    """
    airflow, dag_id, task_id = airflow_services, "held_by_a_worker", "count"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)

    run_id = airflow.trigger(dag_id)
    attempt = wait_for("the last batch is planned", gated.in_last_batch, within=180)
    (submission,) = gated.documents("runs/*/submissions/*.process.json")
    launcher = psutil.Process(submission["identity"]["processes"][0][0])
    task = launcher.parent()
    supervisor = task.parent()
    assert 1 not in {supervisor.pid, task.pid}  # neither is init
    for process in (supervisor, task):
        process.send_signal(signal.SIGKILL)
    wait_for("a second try has looked at the run", lambda: gated.claims() == 2, within=90)
    alive = psutil.pid_exists(attempt["pid"])
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, task_id, until=("success", "failed"), within=90)
    final = airflow.xcom(dag_id, run_id, task_id)

    assert "success" == states[-1], airflow.logs(dag_id, run_id, task_id)
    assert alive
    assert 2 == airflow.task(dag_id, run_id, task_id)["try_number"]
    assert ("FINISHED", 1) == (final["outcome"], final["attempts"])
    assert 1 == len({lease["driver_id"] for lease in gated.documents("leases/*.json")})
    assert [attempt["driver_id"]] == [
        a["driver_id"] for a in gated.documents("runs/*/attempts/*.json")
    ]
    assert gated.truth() == gated.result()


@pytest.mark.long
def test_a_killed_driver_fails_the_try_and_the_retry_resumes_exactly(
    airflow_services: Airflow,
) -> None:
    """
    After kill -9 of the driver the deferred task fails its try, and the retry submits a driver
    that resumes: two attempts, an exact result. The triggerer ends the task, which has its XCom. A
    DAG that waits until the output is complete goes on then.
    """
    airflow, dag_id, task_id = airflow_services, "held_by_the_triggerer", "count"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)

    following = airflow.trigger("follows")
    run_id = airflow.trigger(dag_id)
    attempt = wait_for("the last batch is planned", gated.in_last_batch, within=180)
    state = airflow.task(dag_id, run_id, task_id)["state"]
    os.kill(attempt["pid"], signal.SIGKILL)
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, task_id, until=("success", "failed"), within=120)
    final = airflow.xcom(dag_id, run_id, task_id)
    followed = airflow.follow(
        "follows", following, "complete", until=("success", "failed"), within=60
    )

    assert "deferred" == state
    assert "The driver outlives this task's process" in airflow.logs(dag_id, run_id, task_id)
    assert "success" == followed[-1], airflow.logs("follows", following, "complete")
    assert "success" == states[-1], airflow.logs(dag_id, run_id, task_id)
    assert "up_for_retry" in states
    assert "scheduled" not in states[states.index("deferred", states.index("up_for_retry")) :]
    assert ("FINISHED", 2) == (final["outcome"], final["attempts"])
    assert 2 == len({lease["driver_id"] for lease in gated.documents("leases/*.json")})
    assert gated.truth() == gated.result()


@pytest.mark.whole
def test_a_task_cleared_while_it_is_deferred_ends_green(airflow_services: Airflow) -> None:
    """
    Cleared while its driver is at work, a task without retries ends green and exactly, whether
    its old trigger could still stop the driver or not.
    """
    airflow, dag_id, task_id = airflow_services, "cleared", "count"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)

    run_id = airflow.trigger(dag_id)
    wait_for("the last batch is planned", gated.in_last_batch, within=180)
    airflow.follow(dag_id, run_id, task_id, until=("deferred",), within=30)
    airflow.clear(dag_id, run_id, task_id)
    wait_for("the next try has looked at the run", lambda: gated.claims() > 1, within=60)
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, task_id, until=("success", "failed"), within=120)
    final = airflow.xcom(dag_id, run_id, task_id)

    assert "success" == states[-1], airflow.logs(dag_id, run_id, task_id)
    assert 2 == airflow.task(dag_id, run_id, task_id)["try_number"]
    assert "FINISHED" == final["outcome"]
    assert gated.truth() == gated.result()


@pytest.mark.whole
def test_a_task_marked_as_failed_stops_its_driver_and_a_clear_resumes(
    airflow_services: Airflow,
) -> None:
    """
    Marked as failed while deferred, the task's driver ends with a savepoint; cleared later, the
    run resumes in a second attempt, and its result is exact.
    """
    airflow, dag_id, task_id = airflow_services, "marked", "count"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)

    def ended() -> str | None:
        return gated.documents("runs/*/attempts/1.json")[0]["outcome"]

    def halting() -> bool:
        return gated.documents("runs/*/progress.json")[0]["phase"] == "committing"

    run_id = airflow.trigger(dag_id)
    wait_for("the last batch is planned", gated.in_last_batch, within=180)
    airflow.follow(dag_id, run_id, task_id, until=("deferred",), within=30)
    airflow.mark(dag_id, run_id, task_id, "failed")
    wait_for("the driver ends its batch", halting, within=30)
    gated.open_gate()
    outcome = wait_for("the driver has ended", ended, within=60)
    (savepoint,) = gated.documents("savepoints/on-kill-*/savepoint.json")
    airflow.clear(dag_id, run_id, task_id)
    states = airflow.follow(dag_id, run_id, task_id, until=("success", "failed"), within=120)
    final = airflow.xcom(dag_id, run_id, task_id)

    assert "CANCELLED" == outcome
    assert [MINUTES - 1] == [query["batch"] for query in savepoint["queries"].values()]
    assert "success" == states[-1], airflow.logs(dag_id, run_id, task_id)
    assert ("FINISHED", 2) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()
