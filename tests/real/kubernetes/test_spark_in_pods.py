"""Spark in pods of a real Kubernetes, of which one part after the other dies in the last batch.

What the operator is told of a driver is compared with what the node runs: a driver that lives is
never reported as over, except where the API server itself has forgotten its pod.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base.kubernetes_pods import LABEL
from tests.present import present
from tests.real.hadoop.tasks import Task
from tests.real.kubernetes.cluster import DRIVER, EXECUTOR, Cluster
from tests.real.kubernetes.servers import await_that
from tests.real.kubernetes.trials import LOSSES, begin, fail, follow

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(600)]

MODES = ("client", "cluster")


# --- executors ------------------------------------------------------------------------------------


def test_a_driver_beside_its_task_has_its_executors_in_pods(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """In deploy mode client there is no pod of a driver, and at the end none of an executor."""
    job = task("client")
    trial = begin(job)
    drivers = connected.of_role(DRIVER)
    executor = connected.only(EXECUTOR)
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    assert [] == drivers
    assert job.driver_id() == executor.metadata.labels[LABEL]
    await_that("no executor is left", lambda: not connected.of_role(EXECUTOR))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("mode", MODES)
def test_an_executor_that_is_lost_in_a_batch_is_replaced(
    connected: Cluster, task: Callable[..., Task], mode: str, loss: str
) -> None:
    """Spark makes another pod, which runs the batch: the try goes on."""
    job = task(mode)
    trial = begin(job)
    executor = connected.only(EXECUTOR)
    LOSSES[loss](connected, executor)
    connected.await_successor(executor)
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)


# --- the driver -----------------------------------------------------------------------------------


def test_a_driver_that_is_evicted_in_a_batch_runs_until_its_pod_has_ended(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """Its pod has some time: until then it is not gone; the next try ends the run."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.evict(driver)
    said = follow(connected, job, driver)
    error = fail(trial)
    job.gated.open_gate()

    assert LaunchState.RUNNING is said[0].state
    assert LaunchState.GONE is said[-1].state
    print(f"evicted: {[each.reason for each in (said[0], said[-1])]}; {error}")
    job.check_exact(job.begin().result(), attempts=2)


# --- the kubelet ----------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["ready", "lost"])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_survives_the_death_of_its_kubelet(
    connected: Cluster, task: Callable[..., Task], mode: str, node: str
) -> None:
    """Its containers live on, also when their node is not ready; the driver is the same."""
    job = task(mode)
    trial = begin(job)
    connected.node.kubelet.kill()
    if node == "lost":
        await_that("the node is lost", lambda: not connected.has_node())
    during = job.status()
    connected.heal()
    after = job.status()
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    if mode == "cluster":
        assert [LaunchState.RUNNING] * 2 == [present(each).state for each in (during, after)]


def test_a_driver_ends_while_its_kubelet_is_dead(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The run is over for the task before Kubernetes knows; then its pod has succeeded."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.node.kubelet.kill()
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    before = present(job.status())
    await_that("the driver has ended", lambda: not connected.is_alive(driver))
    connected.heal()
    said = follow(connected, job, driver)
    assert LaunchState.RUNNING is before.state
    assert (LaunchState.ENDED, 0) == (said[-1].state, said[-1].exit_code)


def test_a_driver_dies_while_its_kubelet_is_dead(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The try fails with the exit code as soon as its node can tell it; the next one is exact."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.node.kubelet.kill()
    connected.kill(driver)
    before = present(job.status())
    connected.heal()
    error = fail(trial)
    job.gated.open_gate()

    assert LaunchState.RUNNING is before.state
    assert "exit code 137" in str(error)
    job.check_exact(job.begin().result(), attempts=2)


def test_a_driver_whose_pod_is_forgotten_while_it_lives_ends_the_run(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """``kubectl delete --force`` on a dead node: the pod is gone, and the lease is not."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.node.kubelet.kill()
    connected.delete(driver, grace_s=0)
    said, lives = present(job.status()), connected.is_alive(driver)
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    assert LaunchState.GONE is said.state
    assert lives


# --- the API server -------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_a_run_survives_the_death_of_the_api_server(
    connected: Cluster, task: Callable[..., Task], mode: str
) -> None:
    """While none answers nothing is known; then it is the same pod."""
    job = task(mode)
    trial = begin(job)
    before = job.status()
    connected.plane.api.kill()
    during = job.status()
    connected.heal()
    after = job.status()
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    if mode == "cluster":
        states = [present(each).state for each in (before, during, after)]
        assert [LaunchState.RUNNING, LaunchState.UNKNOWN, LaunchState.RUNNING] == states
        assert before == after


def test_a_driver_ends_while_no_api_server_answers(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The task has its result from the job directory; later its pod has succeeded."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.plane.api.kill()
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    assert LaunchState.UNKNOWN is present(job.status()).state
    connected.heal()
    assert LaunchState.ENDED is follow(connected, job, driver)[-1].state


@pytest.mark.parametrize("mode", MODES)
def test_an_executor_that_is_lost_without_an_api_server_is_replaced_later(
    connected: Cluster, task: Callable[..., Task], mode: str
) -> None:
    """Spark cannot ask for another pod, and does when there is an API server again."""
    job = task(mode)
    trial = begin(job)
    executor = connected.only(EXECUTOR)
    connected.plane.api.kill()
    connected.kill(executor)
    connected.heal()
    connected.await_successor(executor)
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)


def test_a_driver_dies_while_no_api_server_answers(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The try waits until it is told so, and fails; the next one is exact."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.plane.api.kill()
    connected.kill(driver)
    during = present(job.status())
    connected.heal()
    error = fail(trial)
    job.gated.open_gate()

    assert LaunchState.UNKNOWN is during.state
    assert "exit code 137" in str(error)
    job.check_exact(job.begin().result(), attempts=2)
