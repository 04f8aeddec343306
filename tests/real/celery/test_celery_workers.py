"""The real CeleryExecutor with two workers, of which one is killed or shut down; real Spark."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from gated import Gated
from services import wait_for

if TYPE_CHECKING:
    from tests.real.celery.conftest import CeleryAirflow

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(300)]

TASK = "count"
ENDS = ("success", "failed")


@pytest.fixture
def airflow(celery_airflow: CeleryAirflow) -> CeleryAirflow:
    """Give an Airflow with two workers, whatever an earlier test has done to one."""
    for name, process in [*celery_airflow.processes.items()]:
        if process.poll() is not None:
            celery_airflow.launch(name)
    return celery_airflow


def begin(airflow: CeleryAirflow, dag_id: str, *, state: str) -> tuple[Gated, str, str]:
    """Start a run, wait until its driver stands still in its last batch; return its worker, too."""
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)
    run_id = airflow.trigger(dag_id)
    wait_for("the last batch is planned", gated.in_last_batch, within=120)
    airflow.follow(dag_id, run_id, TASK, until=(state,), within=30)
    return gated, run_id, airflow.worker_of(dag_id, run_id)


def check_exact(airflow: CeleryAirflow, gated: Gated, run_id: str, *, attempts: int) -> int:
    """Check that the task is green and its rows are exact; return how often it was tried."""
    dag_id = gated.root.name
    states = airflow.follow(dag_id, run_id, TASK, until=ENDS, within=120)
    assert "success" == states[-1], airflow.logs(dag_id, run_id, TASK)
    final = airflow.xcom(dag_id, run_id, TASK)
    assert ("FINISHED", attempts) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()
    records = gated.documents("runs/*/attempts/*.json")
    assert attempts == len({record["driver_id"] for record in records})
    for before, after in itertools.pairwise(records):
        assert before["token"] < after["token"]
    return int(airflow.task(dag_id, run_id, TASK)["try_number"])


def driver_lives(gated: Gated) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        driver = psutil.Process(gated.documents("runs/*/attempts/*.json")[0]["pid"])
        return bool(driver.status() != psutil.STATUS_ZOMBIE)
    return False


def test_a_driver_outlives_the_worker_that_has_deferred_its_task(airflow: CeleryAirflow) -> None:
    """After kill -9 of that worker the driver goes on, and the other worker ends the task."""
    gated, run_id, worker = begin(airflow, "celery_killed_while_deferred", state="deferred")

    airflow.kill_worker(worker)
    alive = driver_lives(gated)
    gated.open_gate()

    assert alive
    assert 1 == check_exact(airflow, gated, run_id, attempts=1)


def test_a_task_that_waits_in_a_killed_worker_adopts_its_driver_in_another_one(
    airflow: CeleryAirflow,
) -> None:
    """After kill -9 of its worker the task is tried again, and its driver was never replaced."""
    gated, run_id, worker = begin(airflow, "celery_killed_while_it_waits", state="running")

    airflow.kill_worker(worker)
    alive = driver_lives(gated)
    wait_for("the next try has looked at the run", lambda: gated.claims() == 2, within=90)
    gated.open_gate()

    assert alive
    assert 2 == check_exact(airflow, gated, run_id, attempts=1)


def test_a_container_that_is_lost_with_its_driver_is_replaced_exactly(
    airflow: CeleryAirflow,
) -> None:
    """Where the driver does not outlive the task it is not deferred, and the next try resumes."""
    gated, run_id, worker = begin(airflow, "celery_container_lost", state="running")

    airflow.lose_container(worker)
    wait_for("the driver is gone", lambda: not driver_lives(gated), within=10)
    gated.open_gate()

    assert 2 == check_exact(airflow, gated, run_id, attempts=2)
    assert "it waits itself" in airflow.logs("celery_container_lost", run_id, TASK)


def test_a_warm_shutdown_leaves_the_driver_of_a_deferred_task(airflow: CeleryAirflow) -> None:
    """The idle worker ends at SIGTERM, the driver goes on, and the other worker ends the task."""
    gated, run_id, worker = begin(airflow, "celery_shut_down_while_deferred", state="deferred")

    airflow.processes[worker].terminate()
    airflow.processes[worker].wait(30)
    alive = driver_lives(gated)
    gated.open_gate()

    assert alive
    assert 1 == check_exact(airflow, gated, run_id, attempts=1)


def test_a_warm_shutdown_waits_for_a_task_that_waits_itself(airflow: CeleryAirflow) -> None:
    """So a rollout of a container that its driver needs ends the run first: one try, one driver."""
    gated, run_id, worker = begin(airflow, "celery_shut_down_while_it_waits", state="running")

    airflow.processes[worker].terminate()
    wait_for("it begins to shut down", lambda: "Warm shutdown" in airflow.log(worker), within=30)
    alive = driver_lives(gated) and airflow.processes[worker].poll() is None
    gated.open_gate()

    assert alive
    assert 1 == check_exact(airflow, gated, run_id, attempts=1)
    airflow.processes[worker].wait(60)
