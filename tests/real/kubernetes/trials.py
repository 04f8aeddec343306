"""Tries of a task whose driver is in a pod: begun, followed and failed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.runtime.api.launchers import LaunchStatus
from tests.present import present
from tests.real.hadoop.tasks import RUN_S, Task
from tests.real.kubernetes.cluster import Cluster
from tests.real.kubernetes.servers import await_that

OVER_S = 150.0  # a deleted pod has 30 seconds


def _delete(cluster: Cluster, pod: Any) -> None:
    """Delete a pod as ``kubectl delete --force`` does: it is forgotten before its node ends it."""
    cluster.delete(pod, grace_s=0)
    await_that("the container has ended", lambda: not cluster.is_alive(pod))


LOSSES: dict[str, Callable[[Cluster, Any], None]] = {
    "deleted": _delete,
    "evicted": Cluster.evict,
    "killed": Cluster.kill,
}
"""What happens to a pod, by name."""


def begin(job: Task) -> Future[Any]:
    """Begin a try, and wait until one of its executors holds the last batch."""
    for note in job.gated.root.glob("holder.*"):  # of an earlier try
        note.unlink()
    trial = job.begin()

    def has_come() -> bool:
        if trial.done():
            raise AssertionError(f"the try has ended: {trial.exception() or trial.result()}")
        return bool(job.gated.holders())

    await_that("an executor holds the last batch", has_come, within=RUN_S)
    return trial


def fail(trial: Future[Any]) -> SparkRunFailedError:
    """Return the error of a try that has lost its driver."""
    error = trial.exception()
    assert isinstance(error, SparkRunFailedError), error
    return error


def follow(cluster: Cluster, job: Task, driver: Any) -> list[LaunchStatus]:
    """Return what the task is told of a driver until it is over; while it lives it never is."""
    said: list[LaunchStatus] = []

    def is_over() -> bool:
        said.append(present(job.status()))
        # The node is asked later: what runs now has run when the answer was given.
        assert not (said[-1].is_over and cluster.is_alive(driver)), said[-1]
        return said[-1].is_over

    await_that("the driver is over", is_over, within=OVER_S)
    return said
