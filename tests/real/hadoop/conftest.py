"""HDFS and YARN of each version, for all tests of a module."""

from __future__ import annotations

import json
from collections.abc import Iterator

import drivers as started_drivers
import pytest

from tests.airflow.conftest import callable_outside_of_a_task  # noqa: F401 - a fixture
from tests.real.hadoop.daemons import VERSIONS
from tests.real.hadoop.hdfs import Hdfs, running
from tests.real.hadoop.yarn import Yarn
from tests.real.hadoop.yarn import running as running_yarn

DRIVER_S = 500.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a driver beside the servers more time than one that has the machine to itself."""
    monkeypatch.setattr(started_drivers, "EXIT_S", DRIVER_S)


@pytest.fixture(scope="module", params=VERSIONS)
def hdfs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hdfs]:
    with running(Hdfs(tmp_path_factory.mktemp("hdfs") / "cluster", request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def yarn(hdfs: Hdfs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with running_yarn(Yarn(tmp_path_factory.mktemp("yarn") / "cluster", hdfs)) as started:
        yield started


@pytest.fixture
def calm(hdfs: Hdfs) -> Iterator[Hdfs]:
    """HDFS that an earlier test may have left in an outage, and that is well after this one."""
    yield hdfs
    hdfs.heal()


@pytest.fixture
def connected(
    yarn: Yarn,
    callable_outside_of_a_task: None,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Yarn]:
    """YARN, with a connection to it, and nothing that an earlier test has killed or begun."""
    del callable_outside_of_a_task
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"conf": yarn.spark_conf()}}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(connection))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    yield yarn
    yarn.heal()
    yarn.end_applications()
