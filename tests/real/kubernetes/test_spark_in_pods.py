"""Spark in pods of a real Kubernetes, of which one part after the other dies in the last batch.

What the task is told of a driver is compared with what the node runs: a driver that lives is never
reported as over, except where the API server itself has forgotten its pod. A run loses several
parts one after the other: most of a test's time is the start of a driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider.runtime.api.launchers import LaunchState, LaunchStatus
from airflow_provider.runtime.base.kubernetes_pods import LABEL
from tests.present import present
from tests.real.hadoop.tasks import Task
from tests.real.kubernetes.cluster import DRIVER, EXECUTOR, Cluster
from tests.real.kubernetes.servers import await_that
from tests.real.kubernetes.trials import LOSSES, begin, fail, follow

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(900)]

Answer = LaunchStatus | None
"""What a task is told of its driver; nothing of one that is beside it."""


# --- what dies around a driver --------------------------------------------------------------------


def lose_executors(cluster: Cluster, job: Task) -> list[Answer]:
    """Lose one executor after the other; Spark makes another pod each time."""
    said: list[Answer] = []
    for lose in LOSSES.values():
        executor = cluster.only(EXECUTOR)
        lose(cluster, executor)
        cluster.await_successor(executor)
        said.append(job.status())
    return said


def lose_kubelet(cluster: Cluster, job: Task) -> list[Answer]:
    """Kill the kubelet, and ask at once, when its node is lost, and when it is back."""
    cluster.node.kubelet.kill()
    said = [job.status()]
    await_that("the node is lost", lambda: not cluster.has_node())
    said.append(job.status())
    cluster.heal()
    return [*said, job.status()]


def lose_api_server(cluster: Cluster, job: Task) -> list[Answer]:
    """Kill the API server, then an executor, for which Spark can ask later only."""
    executor = cluster.only(EXECUTOR)
    cluster.plane.api.kill()
    cluster.kill(executor)
    said = [job.status()]
    cluster.heal()
    cluster.await_successor(executor)
    return [*said, job.status()]


LOST: tuple[Callable[[Cluster, Task], list[Answer]], ...] = (
    lose_executors,
    lose_kubelet,
    lose_api_server,
)


def survive(cluster: Cluster, job: Task) -> list[Answer]:
    """Lose all of that in a run's last batch; check that its one attempt ends exactly."""
    trial = begin(job)
    said = [answer for lose in LOST for answer in lose(cluster, job)]
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    return said


def test_a_driver_beside_its_task_survives_what_dies_around_it(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """In deploy mode client there is no pod of a driver, and at the end none of an executor."""
    job = task("client")
    said = survive(connected, job)

    assert {None} == {*said}
    assert [] == connected.of_role(DRIVER)
    await_that("no executor is left", lambda: not connected.of_role(EXECUTOR))


def test_a_driver_in_a_pod_survives_what_dies_around_it(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """It runs, in the same pod; while no API server answers nothing is known."""
    job = task("cluster")
    said = survive(connected, job)

    driver = connected.driver()
    running, unknown = LaunchState.RUNNING, LaunchState.UNKNOWN
    assert [*[running] * 6, unknown, running] == [present(each).state for each in said]
    assert {f"pod {driver.metadata.name} Running"} == {
        present(each).reason for each in said if present(each).state is running
    }
    assert job.driver_id() == driver.metadata.labels[LABEL]
    assert LaunchState.ENDED is follow(connected, job, driver)[-1].state


# --- a driver that dies ---------------------------------------------------------------------------


def evict(cluster: Cluster, job: Task, driver: Any) -> LaunchState:
    """Evict its pod, as a node does that is drained: until its time is over it runs."""
    cluster.evict(driver)
    return follow(cluster, job, driver)[0].state


def die_without_kubelet(cluster: Cluster, job: Task, driver: Any) -> LaunchState:
    """Die while nobody can tell it to the API server."""
    cluster.node.kubelet.kill()
    cluster.kill(driver)
    said = present(job.status())
    cluster.heal()
    return said.state


def die_without_api_server(cluster: Cluster, job: Task, driver: Any) -> LaunchState:
    """Die while nobody can be asked."""
    cluster.plane.api.kill()
    cluster.kill(driver)
    said = present(job.status())
    cluster.heal()
    return said.state


@pytest.mark.parametrize(
    ("die", "meanwhile", "says"),
    [
        (evict, LaunchState.RUNNING, "has no pod with the label"),
        (die_without_kubelet, LaunchState.RUNNING, "exit code 137"),
        (die_without_api_server, LaunchState.UNKNOWN, "exit code 137"),
    ],
    ids=["evicted", "killed without a kubelet", "killed without an API server"],
)
def test_a_driver_that_dies_in_a_batch_is_resumed_exactly(
    connected: Cluster,
    task: Callable[..., Task],
    die: Callable[[Cluster, Task, Any], LaunchState],
    meanwhile: LaunchState,
    says: str,
) -> None:
    """The try fails when its driver has died, with what Kubernetes says; the next one ends."""
    job = task("cluster")
    trial = begin(job)
    said = die(connected, job, connected.only(DRIVER))
    error = str(fail(trial))
    job.gated.open_gate()

    print(error)
    job.check_exact(job.begin().result(), attempts=2)
    assert meanwhile is said
    assert says in error


# --- a driver that ends ---------------------------------------------------------------------------


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
    ended = follow(connected, job, driver)[-1]
    assert LaunchState.RUNNING is before.state
    assert (LaunchState.ENDED, 0) == (ended.state, ended.exit_code)


def test_a_driver_ends_while_no_api_server_answers(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """The task has its result from the job directory; later its pod has ended."""
    job = task("cluster")
    trial = begin(job)
    driver = connected.only(DRIVER)
    connected.plane.api.kill()
    job.gated.open_gate()

    job.check_exact(trial.result(), attempts=1)
    assert LaunchState.UNKNOWN is present(job.status()).state
    connected.heal()
    assert LaunchState.ENDED is follow(connected, job, driver)[-1].state


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
