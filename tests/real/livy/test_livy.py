"""The contract of launchers on a real Livy server, and a job that it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from services import end_drivers

from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.runtime.base.runtime_zip import write_package
from airflow_provider.runtime.testing import launchers
from airflow_provider.runtime.testing.launchers import LauncherCase, RacingLauncherContract
from tests.real.hadoop.tasks import ENTRY, Task
from tests.real.livy.server import Livy, running

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

DEADLINE_S = 240.0  # spark-submit starts a JVM before each program


@pytest.fixture(scope="module")
def livy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Livy]:
    with running(Livy(tmp_path_factory.mktemp("livy") / "server")) as started:
        yield started


class TestRealLivy(RacingLauncherContract):
    """Batches of Livy's, each a ``spark-submit`` of this machine."""

    @pytest.fixture
    def case(self, livy: Livy, monkeypatch: pytest.MonkeyPatch) -> Livy:
        monkeypatch.setattr(launchers, "_DEADLINE_S", DEADLINE_S)
        livy.begin()
        return livy

    def test_a_stranger_is_refused(self, case: LauncherCase) -> None:
        """Livy's server tells nobody apart without Kerberos or LDAP."""
        pytest.skip("livy: its server knows logins by Kerberos and LDAP alone")


@pytest.fixture
def task(
    livy: Livy,
    tmp_path: Path,
    callable_outside_of_a_task: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Task]:
    """A task whose driver is a batch."""
    del callable_outside_of_a_task
    livy.begin()
    connection = {"conn_type": "livy", "host": livy.proxy.url}
    monkeypatch.setenv("AIRFLOW_CONN_LIVY", json.dumps(connection))
    runtime = tmp_path / "runtime.zip"
    write_package(runtime, replaces=False)
    made = Task(
        tmp_path,
        "livy",
        None,
        job=f"file://{ENTRY}",
        conn_id="livy",
        launcher="livy",
        launcher_options={
            "entry_point": str(runtime.with_name("spark_stream_driver.py")),
            "runtime": str(runtime),
        },
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
    )
    yield made
    made.end()
    end_drivers(tmp_path)


def test_a_job_runs_as_a_batch(livy: Livy, task: Task) -> None:
    """Its rows are exact, and the task has followed the batch to its end."""
    task.gated.open_gate()
    result = task.begin().result()

    task.check_exact(result, attempts=1)
    assert [f"spark-stream-{task.driver_id()}"] == [each["name"] for each in livy.batches()]


def test_a_server_that_forgets_its_batches_loses_no_run(livy: Livy, task: Task) -> None:
    """The batch's driver has the lease: the task follows it, whatever the new server says."""
    trial = task.begin()
    task.await_last_batch(trial)
    livy.restart()
    forgotten = livy.batches()
    task.gated.open_gate()
    result = trial.result()

    assert [] == forgotten
    task.check_exact(result, attempts=1)


def test_a_killed_batch_is_resumed_by_the_next_try(livy: Livy, task: Task) -> None:
    """Its try fails as one that is worth another one, whose batch ends the run exactly."""
    trial = task.begin()
    task.await_last_batch(trial)
    livy.kill_batches()
    error = trial.exception()
    task.gated.open_gate()
    result = task.begin().result()

    assert isinstance(error, SparkRunFailedError)
    task.check_exact(result, attempts=2)
