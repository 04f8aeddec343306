"""The operator on a real Kubernetes, of which one part after the other dies; both deploy modes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.hooks.kubernetes_pods import LABEL, PodsClient, pods_client
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.errors import SubmissionRefusedError
from airflow_provider.runtime.observe import observer
from tests.real.hadoop.tasks import Task
from tests.real.kubernetes.cluster import ASKER, DRIVER, EXECUTOR, NOBODY, Cluster
from tests.real.kubernetes.servers import await_that

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(400)]

MODES = ("client", "cluster")
LONGEST = 253  # name of a pod
TOO_MUCH = {"spark.driver.memory": "900g"}
UNKNOWN_IMAGE = {"spark.kubernetes.driver.container.image": "localhost:1/nothing:1"}


@pytest.mark.parametrize("mode", MODES)
def test_a_run_ends_with_its_final_checkpoint(
    connected: Cluster, task: Callable[..., Task], mode: str
) -> None:
    """Its pods have the label; that of its driver has succeeded."""
    job = task(mode)
    trial = job.begin()
    job.await_last_batch(trial)
    (executor,) = connected.running(EXECUTOR)
    job.gated.open_gate()
    job.check_exact(trial.result(), attempts=1)

    assert job.driver_id() == executor.metadata.labels[LABEL]
    if mode == "cluster":
        await_that("the pod is over", lambda: connected.driver().status.phase == "Succeeded")
        assert LaunchState.ENDED is _state(job)
        assert job.driver_id() == connected.driver().metadata.labels[LABEL]


@pytest.mark.parametrize("mode", MODES)
def test_pods_of_a_job_with_a_long_directory_have_short_names(
    connected: Cluster, task: Callable[..., Task], mode: str
) -> None:
    """Spark alone makes their names of the application's, which contains the directory."""
    job = task(mode, name="long" * (LONGEST // 5))
    assert LONGEST < len(f"spark-stream {job.job_dir} -exec-1")
    trial = job.begin()
    job.await_last_batch(trial)
    (executor,) = connected.running(EXECUTOR)
    job.gated.open_gate()
    job.check_exact(trial.result(), attempts=1)

    assert f"spark-stream-{job.driver_id()}-exec-1" == executor.metadata.name


# --- what dies, when the executor holds the last batch -------------------------------------------


def kill_driver(cluster: Cluster) -> None:
    """Kill the driver's pod, as ``kubectl delete --force`` does."""
    for pod in cluster.running(DRIVER):
        cluster.delete(pod, grace_s=0)


def evict_driver(cluster: Cluster) -> None:
    """Evict the driver's pod, as a node that is drained does."""
    for pod in cluster.running(DRIVER):
        cluster.evict(pod)


def kill_executor(cluster: Cluster) -> None:
    """Kill the executor's pod, for which Spark makes another one."""
    before = {pod.metadata.name for pod in cluster.running(EXECUTOR)}
    for pod in cluster.running(EXECUTOR):
        cluster.delete(pod, grace_s=0)
    await_that(
        "there is another executor",
        lambda: any(pod.metadata.name not in before for pod in cluster.running(EXECUTOR)),
    )


def restart_kubelet(cluster: Cluster) -> None:
    """Kill the kubelet, and start it again: containers live on."""
    cluster.node.kubelet.kill()
    cluster.node.kubelet.start()
    cluster.node.kubelet.await_ready(cluster.has_node)


def restart_api_server(cluster: Cluster) -> None:
    """Kill the API server, and start it again: its objects are there."""
    cluster.plane.api.kill()
    cluster.plane.start_api()


KILLS: dict[str, tuple[Callable[[Cluster], None], tuple[str, ...]]] = {
    "driver": (kill_driver, ("cluster",)),
    "driver, evicted": (evict_driver, ("cluster",)),
    "executor": (kill_executor, MODES),
    "kubelet": (restart_kubelet, ("cluster",)),
    "API server": (restart_api_server, MODES),
}


@pytest.mark.parametrize(
    ("victim", "mode"), [(name, mode) for name, (_, modes) in KILLS.items() for mode in modes]
)
def test_the_result_is_exact_whatever_of_the_cluster_dies_in_a_batch(
    connected: Cluster, task: Callable[..., Task], victim: str, mode: str
) -> None:
    """The try goes on, or fails as one that is worth another one, which ends exactly."""
    job = task(mode)
    trial = job.begin()
    job.await_last_batch(trial)
    if mode == "cluster":
        assert LaunchState.RUNNING is _state(job)
    KILLS[victim][0](connected)
    job.gated.open_gate()
    attempts = 1
    if isinstance(error := trial.exception(), SparkRunFailedError):
        attempts, trial = 2, job.begin()
    print(f"{victim}, {mode}: {attempts} attempts: {error}")

    job.check_exact(trial.result(), attempts=attempts)
    assert attempts == (2 if victim.startswith("driver") else 1)


def test_a_driver_is_found_by_its_label_after_the_api_server_was_restarted(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """While no API server answers its state is unknown; then it is the same pod."""
    job = task("cluster")
    trial = job.begin()
    job.await_last_batch(trial)
    states = [job.status()]
    connected.plane.api.kill()
    states.append(job.status())
    connected.plane.start_api()
    states.append(job.status())
    job.gated.open_gate()

    known = [each for each in states if each is not None]
    running, unknown = LaunchState.RUNNING, LaunchState.UNKNOWN
    assert [running, unknown, running] == [each.state for each in known]
    assert known[0].reason == known[2].reason
    assert "does not answer" in known[1].reason
    job.check_exact(trial.result(), attempts=1)


# --- drivers that have not spoken ----------------------------------------------------------------


def test_a_driver_without_room_is_queued_and_is_ended_from_airflow(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """No node has its memory: it waits, and a killed task leaves nothing that could come up."""
    job = task("cluster", conf=TOO_MUCH)
    trial = job.begin()
    await_that("Kubernetes has it", lambda: "Insufficient memory" in _reason(job))
    assert LaunchState.QUEUED is _state(job)
    job.operator.on_kill()

    await_that("the pod is gone", lambda: not connected.of_role(DRIVER))
    assert isinstance(trial.exception(), SparkRunFailedError)
    assert LaunchState.GONE is _state(job)


def test_a_driver_whose_image_cannot_be_pulled_runs_with_the_reason_and_is_ended(
    connected: Cluster,
    task: Callable[..., Task],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has a node, so it has to come up in time; then its pod is deleted."""
    job = task("cluster", conf=UNKNOWN_IMAGE)
    monkeypatch.setattr(observer, "START_TIMEOUT_S", 20.0)
    trial = job.begin()
    await_that("the kubelet has tried", lambda: "localhost:1/nothing:1" in _reason(job))
    assert LaunchState.RUNNING is _state(job)

    error = trial.exception()
    assert isinstance(error, SparkRunFailedError)
    assert "has not taken the lease" in str(error)
    await_that("the pod is gone", lambda: not connected.of_role(DRIVER))


def test_a_running_driver_is_ended_from_airflow(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """It is asked, and its pod ends; the next try goes on from there."""
    job = task("cluster")
    trial = job.begin()
    job.await_last_batch(trial)
    job.operator.on_kill()
    await_that("no driver runs", lambda: not connected.running(DRIVER))
    assert isinstance(trial.exception(), SparkRunFailedError)
    job.gated.open_gate()

    job.check_exact(job.begin().result(), attempts=2)


def test_a_driver_whose_python_fails_fails_with_its_exit_code(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The pod has failed long before anybody would have waited in vain."""
    failing = {"spark.kubernetes.driverEnv.PYSPARK_DRIVER_PYTHON": "/bin/false"}
    job = task("cluster", conf=failing)
    error = job.begin().exception()

    assert isinstance(error, SparkRunFailedError)
    assert connected.driver().metadata.name in str(error)
    status = job.status()
    assert status is not None
    assert (LaunchState.ENDED, 1) == (status.state, status.exit_code)


# --- who asks ------------------------------------------------------------------------------------


def test_who_asks_needs_the_verbs_list_and_delete_alone(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """As the docs say; without them it is told so in one line."""
    job = task("cluster", conf=TOO_MUCH)
    job.begin()
    await_that("Kubernetes has it", lambda: _state(job) is LaunchState.QUEUED)
    handle = job.handle()
    assert handle is not None

    nobody = _client(connected, NOBODY)
    status = nobody.poll(handle)
    assert LaunchState.UNKNOWN is status.state
    assert "this process's account needs the verbs list and delete on pods" in status.reason
    with pytest.raises(SubmissionRefusedError, match="answered 403"):
        nobody.end(handle)
    asker = _client(connected, ASKER)
    asker.check(handle)
    assert LaunchState.QUEUED is asker.poll(handle).state
    asker.end(handle)
    await_that("the pod is gone", lambda: asker.poll(handle).state is LaunchState.GONE)
    asker.end(handle)


def _client(cluster: Cluster, user: str) -> PodsClient:
    environ = {**os.environ, "KUBECONFIG": str(cluster.login_of(user))}
    found: Any = pods_client(f"k8s://{cluster.url}", None, environ)
    assert isinstance(found, PodsClient), found
    return found


def _status(job: Task) -> LaunchStatus | None:
    return job.status() if job.submitted() else None


def _state(job: Task) -> LaunchState | None:
    status = _status(job)
    return None if status is None else status.state


def _reason(job: Task) -> str:
    status = _status(job)
    return "" if status is None else status.reason
