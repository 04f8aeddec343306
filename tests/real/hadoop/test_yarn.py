"""The operator on a real YARN, of which one part after the other dies; both deploy modes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import end_drivers

from airflow_provider.hooks.yarn import yarn_tag
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.triggers import polling
from tests.real.hadoop.daemons import await_that
from tests.real.hadoop.tasks import Task
from tests.real.hadoop.yarn import EXPIRY_MS, FULL, Yarn

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(1200)]

MODES = ("client", "cluster")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for an Airflow that is not there."""
    monkeypatch.setattr(polling, "HOLD_S", 0.0)


@pytest.fixture
def task(
    request: pytest.FixtureRequest, connected: Yarn, tmp_path: Path
) -> Iterator[Callable[..., Task]]:
    """Return a function that makes the test's task."""
    del connected
    made: list[Task] = []

    def make(mode: str, **arguments: object) -> Task:
        made.append(Task(tmp_path, request.node.originalname, mode, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.end()
    end_drivers(tmp_path)  # and the spark-submit of one whose YARN a failed test has killed


@pytest.mark.parametrize("mode", MODES)
def test_a_run_ends_with_its_final_checkpoint(
    connected: Yarn, task: Callable[..., Task], mode: str
) -> None:
    """Its application has the tag, and has succeeded; the job directory is in HDFS."""
    hdfs = connected.hdfs
    name = "SPARK_STREAM_HDFS"
    own = {f"spark.yarn.appMasterEnv.{name}": hdfs.spark_url}
    job = task(
        mode, **({"conf": own} if mode == "cluster" else {"env_vars": {name: hdfs.spark_url}})
    )
    job.job_dir = f"{hdfs.url}/jobs/whole-{mode}"
    job.gated.open_gate()
    result = job.begin().result()

    assert ("FINISHED", 1) == (result["outcome"], result["attempts"])
    assert job.gated.truth() == job.gated.result()
    assert yarn_tag(job.driver_id()) in connected.app()["applicationTags"]
    await_that("YARN knows the end", lambda: connected.app()["state"] == "FINISHED")
    assert "SUCCEEDED" == connected.app()["finalStatus"]


# --- what dies, when the executor holds the last batch -------------------------------------------


def kill_master(yarn: Yarn) -> None:
    """Kill the application master: the driver itself in deploy mode cluster."""
    for process in yarn.masters():
        process.kill()


def kill_container(yarn: Yarn) -> None:
    """Kill the executor, for which Spark asks again."""
    before = yarn.executors()
    for process in before:
        process.kill()
    await_that(
        "there is another executor",
        lambda: any(each not in before for each in yarn.executors()),
    )


def restart_node(yarn: Yarn) -> None:
    """Kill the NodeManager, and start it before YARN takes it for lost: containers live on."""
    yarn.node.kill()
    yarn.node.start()
    yarn.wait()


def lose_node(yarn: Yarn) -> None:
    """Kill the NodeManager for so long that YARN gives up all that it ran."""
    yarn.node.kill()
    await_that("YARN has lost its node", lambda: yarn.nodes() == 0, within=6 * EXPIRY_MS / 1000)
    yarn.node.start()
    yarn.wait()


def restart_manager(yarn: Yarn) -> None:
    """Kill the ResourceManager and start it again: it recovers the application."""
    yarn.manager.kill()
    yarn.manager.start()
    yarn.wait()


KILLS: dict[str, Callable[[Yarn], None]] = {
    "application master": kill_master,
    "container": kill_container,
    "node, restarted": restart_node,
    "node, lost": lose_node,
    "manager": restart_manager,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victim", KILLS)
def test_the_result_is_exact_whatever_of_yarn_dies_in_a_batch(
    connected: Yarn, task: Callable[..., Task], victim: str, mode: str
) -> None:
    """The try goes on, or fails as one that is worth another one, which ends exactly."""
    job = task(mode)
    trial = job.begin()
    job.await_last_batch(trial)
    if mode == "cluster":
        status = job.status()
        assert status is not None
        assert LaunchState.RUNNING is status.state
    KILLS[victim](connected)
    job.gated.open_gate()
    attempts = 1
    if isinstance(error := trial.exception(), SparkRunFailedError):
        attempts, trial = 2, job.begin()
    print(f"{victim}, {mode}: {attempts} attempts: {error}")

    job.check_exact(trial.result(), attempts=attempts)


def test_a_driver_is_found_by_its_tag_after_the_manager_was_restarted(
    connected: Yarn, task: Callable[..., Task]
) -> None:
    """While no ResourceManager answers its state is unknown; then it is the same application."""
    job = task("cluster")
    trial = job.begin()
    job.await_last_batch(trial)
    states = [job.status()]
    connected.manager.kill()
    states.append(job.status())
    connected.manager.start()
    connected.wait()
    states.append(job.status())
    job.gated.open_gate()

    known = [each for each in states if each is not None]
    running, unknown = LaunchState.RUNNING, LaunchState.UNKNOWN
    assert [running, unknown, running] == [each.state for each in known]
    assert known[0].reason.split()[0] == known[2].reason.split()[0]
    job.check_exact(trial.result(), attempts=1)


# --- drivers that have not spoken ----------------------------------------------------------------


def test_a_driver_in_a_queue_without_room_runs_when_there_is_some(
    connected: Yarn, task: Callable[..., Task]
) -> None:
    """It is queued for as long as it takes, which is no failure."""
    job = task("cluster", yarn_queue=FULL)
    job.gated.open_gate()
    trial = job.begin()
    await_that("YARN has it", lambda: _state(job) is LaunchState.QUEUED)
    connected.set_room(90)
    try:
        connected.refresh_queues()
        job.check_exact(trial.result(), attempts=1)
    finally:
        connected.set_room(1)
        connected.refresh_queues()


def test_a_queued_driver_is_ended_from_airflow(connected: Yarn, task: Callable[..., Task]) -> None:
    """A killed task leaves nothing in the queue that could come up later."""
    job = task("cluster", yarn_queue=FULL)
    trial = job.begin()
    await_that("YARN has it", lambda: _state(job) is LaunchState.QUEUED)
    job.operator.on_kill()
    await_that("YARN has ended it", lambda: connected.app()["state"] == "KILLED")

    assert isinstance(trial.exception(), SparkRunFailedError)
    assert LaunchState.ENDED is _state(job)


@pytest.mark.parametrize("mode", MODES)
def test_a_running_driver_is_ended_from_airflow(
    connected: Yarn, task: Callable[..., Task], mode: str
) -> None:
    """It is asked, and its application ends; the next try goes on from there."""
    job = task(mode)
    trial = job.begin()
    job.await_last_batch(trial)
    job.operator.on_kill()
    await_that(
        "the application has ended",
        lambda: connected.app()["state"] in {"FINISHED", "FAILED", "KILLED"},
    )
    assert isinstance(trial.exception(), SparkRunFailedError)
    job.gated.open_gate()

    job.check_exact(job.begin().result(), attempts=2)


def program(folder: Path, text: str) -> str:
    """Write a program that is in the place of the driver's Python."""
    file = folder / "python"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return os.fspath(file)


def test_a_driver_that_never_speaks_is_ended_by_its_application_master(
    connected: Yarn, task: Callable[..., Task], tmp_path: Path
) -> None:
    """It makes no SparkContext: Spark gives up, and the try fails with what YARN says of it."""
    silent = program(tmp_path, "exec sleep 300")
    conf = {"spark.yarn.appMasterEnv.PYSPARK_PYTHON": silent, "spark.yarn.am.waitTime": "20s"}
    job = task("cluster", conf=conf)
    error = job.begin().exception()

    assert isinstance(error, SparkRunFailedError)
    assert connected.app()["id"] in str(error)
    assert "exit code 13" in str(error)
    assert "FAILED" == connected.app()["finalStatus"]
    await_that("no container is left", lambda: connected.masters() == [])


def test_a_driver_whose_python_fails_fails_with_yarns_reason(
    connected: Yarn, task: Callable[..., Task], tmp_path: Path
) -> None:
    """YARN says so long before anybody would have waited in vain."""
    failing = program(tmp_path, "exit 7")
    job = task("cluster", conf={"spark.yarn.appMasterEnv.PYSPARK_PYTHON": failing})
    error = job.begin().exception()

    assert isinstance(error, SparkRunFailedError)
    assert connected.app()["id"] in str(error)
    assert "exit code 7" in str(error)


def _state(job: Task) -> LaunchState | None:
    if not job.submitted() or (status := job.status()) is None:
        return None
    return status.state
