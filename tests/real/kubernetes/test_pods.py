"""The operator on a real Kubernetes, which runs driver and executor in pods."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base.kubernetes_pods import LABEL
from tests.present import present
from tests.real.hadoop.tasks import Task
from tests.real.kubernetes.cluster import DRIVER, EXECUTOR, Cluster
from tests.real.kubernetes.servers import await_that

pytestmark = [pytest.mark.real, pytest.mark.spark, pytest.mark.timeout(400)]


def test_a_run_in_cluster_mode_ends_with_its_final_checkpoint(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """Its pods have the label; that of its driver has succeeded."""
    job = task("cluster")
    trial = job.begin()
    job.await_last_batch(trial)
    (executor,) = connected.running(EXECUTOR)
    job.gated.open_gate()
    job.check_exact(trial.result(), attempts=1)

    assert job.driver_id() == executor.metadata.labels[LABEL]
    await_that("the pod is over", lambda: connected.driver().status.phase == "Succeeded")
    assert LaunchState.ENDED is present(job.status()).state
    assert job.driver_id() == connected.driver().metadata.labels[LABEL]


def test_a_driver_whose_pod_is_killed_in_a_batch_is_resumed_exactly(
    connected: Cluster, task: Callable[..., Task]
) -> None:
    """Its pod is deleted as ``kubectl delete --force`` does; the next try ends the run."""
    job = task("cluster")
    trial = job.begin()
    job.await_last_batch(trial)
    assert LaunchState.RUNNING is present(job.status()).state
    for pod in connected.running(DRIVER):
        connected.delete(pod, grace_s=0)
    job.gated.open_gate()

    assert isinstance(trial.exception(), SparkRunFailedError)
    job.check_exact(job.begin().result(), attempts=2)
