"""A real Airflow on a real YARN, in both deploy modes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated import Gated
from services import Airflow, end_drivers, postgres_server, wait_for

from tests.real.hadoop.tasks import AIRFLOW_TESTS
from tests.real.hadoop.yarn import ENDED, Yarn

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1200)]

TASK = "count"
ENDS = ("success", "failed")
MODES = ("client", "cluster")
DAGS = Path(__file__).with_name("dags")


@pytest.fixture(scope="module")
def airflow(yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Give an Airflow whose connection leads to YARN."""
    folder = tmp_path_factory.mktemp("airflow")
    dags, data = folder / "dags", folder / "data"
    shutil.copytree(DAGS, dags, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(AIRFLOW_TESTS / "dags" / "jobs", dags / "jobs")
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"conf": yarn.spark_conf()}}
    with postgres_server() as database:
        started = Airflow(
            folder / "home",
            dags,
            database,
            TEST_DATA=str(data),
            HADOOP_CONF_DIR=str(yarn.conf),
            SPARK_LOCAL_IP="127.0.0.1",
            AIRFLOW_CONN_YARN=json.dumps(connection),
            AIRFLOW__SPARK_STREAM__DRIVER_OUTLIVES_TASK="True",
        )
        try:
            started.start()
            yield started
        finally:
            started.stop()
            end_drivers(data)


def begin(airflow: Airflow, dag_id: str) -> tuple[Gated, str]:
    """Start a run, and wait until its last batch is held and its task deferred."""
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)
    run_id = airflow.trigger(dag_id)
    wait_for("an executor has the last batch", gated.holders, within=400)
    airflow.follow(dag_id, run_id, TASK, until=("deferred",), within=180)
    return gated, run_id


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_application_master_is_replaced_by_the_next_try(
    airflow: Airflow, yarn: Yarn, mode: str
) -> None:
    """The task is tried again, its second driver ends the run, and no row is lost or doubled."""
    dag_id = f"killed_{mode}"
    gated, run_id = begin(airflow, dag_id)
    for process in yarn.masters():
        process.kill()
    wait_for("YARN has seen it", lambda: yarn.app()["state"] in ENDED, within=60)
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, TASK, until=ENDS, within=500)
    final = airflow.xcom(dag_id, run_id, TASK)

    assert "success" == states[-1], airflow.logs(dag_id, run_id, TASK)
    assert ("FINISHED", 2) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()
    wait_for("YARN knows the end", lambda: yarn.app()["finalStatus"] == "SUCCEEDED", within=60)
    assert "FAILED" == yarn.apps()[-2]["finalStatus"]


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_is_marked_failed_ends_its_application(
    airflow: Airflow, yarn: Yarn, mode: str
) -> None:
    """Airflow's user ends what runs on YARN."""
    dag_id = f"marked_{mode}"
    _, run_id = begin(airflow, dag_id)
    airflow.mark(dag_id, run_id, TASK, "failed")

    wait_for("the application has ended", lambda: yarn.app()["state"] in ENDED, within=240)
    wait_for("no container is left", lambda: yarn.masters() == [], within=60)
