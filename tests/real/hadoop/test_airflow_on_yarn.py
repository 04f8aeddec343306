"""A real Airflow on a real YARN in deploy mode cluster: the driver is an application master."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gated import Gated
from services import Airflow, end_drivers, postgres_server, wait_for

from tests.real.hadoop.tasks import AIRFLOW_TESTS
from tests.real.hadoop.yarn import Yarn

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1200)]

TASK = "count"
ENDS = ("success", "failed")
KILLED, MARKED = "clustered_driver", "clustered_host"


@pytest.fixture(scope="module")
def airflow(yarn: Yarn, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Give an Airflow whose connection leads to YARN."""
    folder = tmp_path_factory.mktemp("airflow")
    dags, data = folder / "dags", folder / "data"
    dags.mkdir()
    shutil.copy(AIRFLOW_TESTS / "dags" / "clustered.py", dags)
    shutil.copytree(AIRFLOW_TESTS / "dags" / "jobs", dags / "jobs")
    extra = {"deploy-mode": "cluster", "conf": yarn.spark_conf()}
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    with postgres_server() as database:
        started = Airflow(
            folder / "home",
            dags,
            database,
            TEST_DATA=str(data),
            HADOOP_CONF_DIR=str(yarn.conf),
            SPARK_LOCAL_IP="127.0.0.1",
            AIRFLOW_CONN_A_CLUSTER=json.dumps(connection),
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


def test_a_killed_application_master_is_replaced_by_the_next_try(
    airflow: Airflow, yarn: Yarn
) -> None:
    """The task is tried again, its second driver ends the run, and no row is lost or doubled."""
    gated, run_id = begin(airflow, KILLED)
    for process in yarn.masters():
        process.kill()
    gated.open_gate()
    states = airflow.follow(KILLED, run_id, TASK, until=ENDS, within=500)
    final = airflow.xcom(KILLED, run_id, TASK)

    assert "success" == states[-1], airflow.logs(KILLED, run_id, TASK)
    assert ("FINISHED", 2) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()
    states_on_yarn = [app["finalStatus"] for app in yarn.apps()[-2:]]
    assert ["FAILED", "SUCCEEDED"] == states_on_yarn


def test_a_task_that_is_marked_failed_ends_its_application(airflow: Airflow, yarn: Yarn) -> None:
    """Airflow's user ends what runs on YARN."""
    _, run_id = begin(airflow, MARKED)
    airflow.mark(MARKED, run_id, TASK, "failed")

    ended = ("FINISHED", "FAILED", "KILLED")
    wait_for("the application has ended", lambda: yarn.app()["state"] in ended, within=240)
    assert [] == yarn.masters()
