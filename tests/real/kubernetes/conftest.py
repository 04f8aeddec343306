"""Kubernetes for all tests of a session, and a connection to it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider.triggers import polling
from tests.airflow.conftest import callable_outside_of_a_task  # noqa: F401 - a fixture
from tests.airflow.services import end_drivers
from tests.real.hadoop.tasks import Task
from tests.real.kubernetes.cluster import NAMESPACE, SUBMITTER, Cluster, running
from tests.real.kubernetes.node import ADDRESS
from tests.real.kubernetes.provider import add_provider

CONNECTION = "pods"


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("kubernetes: its node needs root, and iproute2")
    add_provider()
    # What pods see is below the folder of all tests; sockets have short names only.
    folder = Path(tempfile.mkdtemp(prefix="k8s-"))
    shared = tmp_path_factory.getbasetemp()
    with running(Cluster(folder, shared)) as started:
        yield started
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def connected(
    cluster: Cluster,
    callable_outside_of_a_task: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Cluster]:
    """The cluster, with a connection to it, and no pod of an earlier test."""
    del callable_outside_of_a_task
    extra = {"conf": dict(cluster.spark_conf()), "namespace": NAMESPACE}
    connection = {"conn_type": "spark", "host": f"k8s://{cluster.url}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PODS", json.dumps(connection))
    monkeypatch.setenv("KUBECONFIG", str(cluster.login_of(SUBMITTER)))
    monkeypatch.setenv("SPARK_LOCAL_IP", ADDRESS)  # where pods find a driver on this machine
    monkeypatch.setattr(polling, "HOLD_S", 0.0)
    yield cluster
    cluster.heal()
    cluster.end_pods()


@pytest.fixture
def task(
    request: pytest.FixtureRequest, connected: Cluster, tmp_path: Path
) -> Iterator[Callable[..., Task]]:
    """Return a function that makes the test's task."""
    del connected
    made: list[Task] = []

    def make(mode: str, **arguments: object) -> Task:
        name = request.node.originalname
        made.append(Task(tmp_path, name, mode, **{"conn_id": CONNECTION, **arguments}))
        return made[-1]

    yield make
    for each in made:
        each.end()
    end_drivers(tmp_path)
