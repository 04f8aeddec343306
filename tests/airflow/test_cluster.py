"""The operator on a standalone cluster, of which one part after the other is killed in a batch."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from gated import Gated
from services import Airflow, wait_for

from tests.cluster import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(400)]

CONNECTION = "a_cluster"
TASK = "count"
ENDS = ("success", "failed")


@pytest.fixture(scope="module")
def cluster(
    airflow_services: Airflow, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Give a master with two workers, and an Airflow that has a connection to it."""
    started = Cluster(tmp_path_factory.mktemp("spark") / "cluster")
    host, _, port = started.url.rpartition(":")
    airflow_services.call(
        "POST",
        "/connections",
        connection_id=CONNECTION,
        conn_type="spark",
        host=host,
        port=int(port),
    )
    yield started
    airflow_services.call("DELETE", f"/connections/{CONNECTION}")
    started.end()


@pytest.fixture
def workers(cluster: Cluster) -> Cluster:
    """Return the cluster with two workers, whatever an earlier test has killed."""
    while cluster.alive < 2:
        cluster.worker()
    cluster.await_workers()
    return cluster


def launcher_of(gated: Gated) -> psutil.Process:
    (submission,) = gated.documents("runs/*/submissions/*.process.json")
    return psutil.Process(submission["identity"]["processes"][0][0])


# --- what is killed, when all but the last batch are committed, and its executor holds that ----


def kill_executor(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    del airflow
    os.kill(cluster.worker_of(gated.holders()[-1]).executor(), signal.SIGKILL)
    wait_for("another executor has the batch", lambda: len(gated.holders()) == 2, within=90)


def lose_machine(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    del airflow
    cluster.worker_of(gated.holders()[-1]).lose_machine()
    wait_for("another executor has the batch", lambda: len(gated.holders()) == 2, within=90)


def kill_driver(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    del cluster, airflow
    (attempt,) = gated.documents("runs/*/attempts/*.json")
    os.kill(attempt["pid"], signal.SIGKILL)


def kill_launcher(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    del cluster, airflow
    launcher_of(gated).kill()


def lose_host(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    """Kill the launcher, the JVM and the Python of the driver at once."""
    del cluster, airflow
    launcher = launcher_of(gated)
    everybody = [launcher, *launcher.children(recursive=True)]
    assert len(everybody) > 2  # a JVM and Python are below it
    for process in everybody:
        process.suspend()  # so that none sees another one die
    for process in everybody:
        process.kill()


def kill_triggerer(cluster: Cluster, gated: Gated, airflow: Airflow) -> None:
    del cluster, gated
    triggerer = airflow.processes["triggerer"]
    runner = psutil.Process(triggerer.pid).children(recursive=True)
    triggerer.kill()
    triggerer.wait()
    for process in runner:
        process.kill()
    airflow.launch("triggerer")


KILLS: dict[str, tuple[Callable[[Cluster, Gated, Airflow], None], int]] = {
    "executor": (kill_executor, 1),
    "machine": (lose_machine, 1),
    "launcher": (kill_launcher, 1),
    "driver": (kill_driver, 2),
    "host": (lose_host, 2),
    "triggerer": (kill_triggerer, 1),
}


def check_one_driver(gated: Gated, attempts: int) -> None:
    """Check that each attempt had a lease and a driver of its own, after that of the last one."""
    records: list[dict[str, Any]] = gated.documents("runs/*/attempts/*.json")
    leases = gated.documents("leases/*.json")
    assert attempts == len(records) == len({lease["driver_id"] for lease in leases})
    for before, after in itertools.pairwise(records):
        assert before["token"] < after["token"]
        assert before["driver_id"] != after["driver_id"]
        assert before["ended"] is None or before["ended"] <= after["started"]


@pytest.mark.parametrize("victim", list(KILLS))
def test_the_result_is_exact_whatever_of_a_cluster_dies_in_a_batch(
    airflow_services: Airflow, workers: Cluster, victim: str
) -> None:
    """
    The driver heals the loss of executors and machines, a retry that of the driver or of its host,
    and the loss of launcher and triggerer costs nothing: the task is green, the result exact, and
    no two drivers were at work.
    """
    airflow, dag_id = airflow_services, f"clustered_{victim}"
    gated = Gated(Path(airflow.environment["TEST_DATA"]), dag_id)
    kill, attempts = KILLS[victim]

    run_id = airflow.trigger(dag_id)
    wait_for("the last batch is planned", gated.in_last_batch, within=120)
    wait_for("an executor has the batch", gated.holders, within=60)
    airflow.follow(dag_id, run_id, TASK, until=("deferred",), within=60)
    kill(workers, gated, airflow)
    gated.open_gate()
    states = airflow.follow(dag_id, run_id, TASK, until=ENDS, within=180)

    assert "success" == states[-1], airflow.logs(dag_id, run_id, TASK)
    final = airflow.xcom(dag_id, run_id, TASK)
    assert ("FINISHED", attempts) == (final["outcome"], final["attempts"])
    assert gated.truth() == gated.result()
    check_one_driver(gated, attempts)
