"""Tasks whose drivers ``spark-submit`` puts into pods, with stand-ins for it and the API server."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.module_loading import import_string
from handmade import TI, Job

from airflow_provider.hooks.chosen_hook import hook_of
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.base.kubernetes_pods import pod_handle
from airflow_provider.runtime.observe import observer
from airflow_provider.triggers import polling
from tests.present import present
from tests.unit.api_server import ApiServerStandIn, a_pod, container, scheduled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.launchers import Handle

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")
UPLOADS = {"spark.kubernetes.file.upload.path": "s3a://bucket/uploads"}


class Pods:
    """A task on Kubernetes, and the stand-ins that it meets."""

    def __init__(self, folder: Path, server: ApiServerStandIn) -> None:
        self.server, self.job = server, Job(folder / "job")
        self.entry = folder / "jobs.py"
        self.entry.write_text("raise AssertionError\n")

    def operator(self, **more: Any) -> SparkStreamingOperator:
        arguments = {"conn_id": "pods", "deploy_mode": "cluster", "poll_interval": 0.1, **more}
        job = f"{self.entry}:daily"
        return SparkStreamingOperator(task_id="daily", job=job, job_dir=self.job.url, **arguments)

    def deferred(self, operator: SparkStreamingOperator) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as raised:
            operator.execute(context())
        return raised.value

    def handle(self) -> Handle | None:
        return self.job.run.handle_of(self.driver_id())

    def driver_id(self) -> str:
        return self.job.run.submissions()[-1].driver_id

    def has(self, phase: str, **status: Any) -> None:
        """Let the cluster have the driver's pod, and that of another one."""
        own = a_pod("daily-driver", self.driver_id(), phase, **status)
        self.server.pods["streams"] = [own, a_pod("another", "8" * 32)]


def connect(monkeypatch: pytest.MonkeyPatch, server: ApiServerStandIn, **extra: Any) -> None:
    extra = {"spark-binary": "spark3-submit", "conf": UPLOADS, "namespace": "streams", **extra}
    connection = {"conn_type": "spark", "host": f"k8s://{server.url}", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_PODS", json.dumps(connection))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Kubernetes provider be there: nothing of it is used here."""
    find, name = importlib.util.find_spec, "airflow.providers.cncf"
    there = SimpleNamespace(name=name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: there if n == name else find(n))
    monkeypatch.setattr(spark_submit, "kube_client", there, raising=False)


@pytest.fixture
def pods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: None) -> Iterator[Pods]:
    del provider
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "spark3-submit"
    program.write_text("#!/bin/sh\necho submitted\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(observer, "LAUNCH_S", 0.1)
    monkeypatch.setattr(polling, "HOLD_S", 0.0)
    server = ApiServerStandIn()
    monkeypatch.setenv("KUBECONFIG", str(server.write_config(tmp_path)))
    connect(monkeypatch, server)
    yield Pods(tmp_path, server)
    server.stop()


def context() -> Any:
    return {"ti": SimpleNamespace(**vars(TI))}


def rebuilt(deferred: TaskDeferred) -> Any:
    """Return the trigger as another triggerer rebuilds it from what is stored."""
    classpath, stored = deferred.trigger.serialize()
    return import_string(classpath)(**json.loads(json.dumps(stored)))


def event_of(trigger: Any) -> dict[str, Any]:
    async def wait() -> dict[str, Any]:
        event: Any = await anext(trigger.run())
        return event.payload

    return asyncio.run(asyncio.wait_for(wait(), 60))


def test_a_triggerer_asks_kubernetes(pods: Pods) -> None:
    """A driver that was killed before it could write anything fails its task with the pod's end."""
    trigger = rebuilt(pods.deferred(pods.operator()))
    killed = container(terminated={"exitCode": 137, "reason": "OOMKilled"})
    pods.has("Failed", containerStatuses=[killed])
    event = event_of(trigger)
    said = r"ended, exit code 137: pod daily-driver Failed OOMKilled"
    with pytest.raises(SparkRunFailedError, match=said):
        pods.operator().resume(context(), event)

    assert pod_handle(pods.driver_id(), "streams") == pods.handle()


def test_a_killed_worker_deletes_a_pod_that_has_not_come_up(pods: Pods) -> None:
    """Only that of this driver."""
    operator = pods.operator()
    pods.deferred(operator)
    pods.has("Pending")
    operator.on_kill()

    assert ["daily-driver"] == pods.server.deleted()
    assert [pods.driver_id()] == pods.job.cancels()


def test_a_pod_that_never_comes_up_is_deleted(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has a node and whose image cannot be pulled is not waited for without end."""
    monkeypatch.setattr(observer, "START_TIMEOUT_S", 0.5)
    trigger = rebuilt(pods.deferred(pods.operator()))
    waits = container(waiting={"reason": "ImagePullBackOff"})
    pods.has("Pending", conditions=scheduled(has_node=True), containerStatuses=[waits])
    event = event_of(trigger)
    with pytest.raises(SparkRunFailedError, match="not taken the lease .*ImagePullBackOff"):
        pods.operator().resume(context(), event)

    assert ["daily-driver"] == pods.server.deleted()


@pytest.mark.parametrize(
    ("extra", "conf", "namespace"),
    [
        ({}, {}, "streams"),
        ({"namespace": None}, {"spark.kubernetes.namespace": "nightly"}, "nightly"),
        ({"namespace": None}, {}, "default"),
    ],
)
def test_a_pod_is_looked_for_in_its_namespace(
    pods: Pods,
    monkeypatch: pytest.MonkeyPatch,
    extra: dict[str, Any],
    conf: dict[str, str],
    namespace: str,
) -> None:
    """As ``spark-submit`` chooses it: that of the connection, of the configuration, or Spark's."""
    connect(monkeypatch, pods.server, **extra)
    pods.deferred(pods.operator(conf={**UPLOADS, **conf}))

    assert {"namespace": namespace} == present(pods.handle()).location


def test_without_a_login_a_driver_is_waited_for(
    pods: Pods, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what would allow to ask; nothing else is different."""
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with caplog.at_level(logging.INFO):
        pods.deferred(pods.operator())

    (line,) = [each for each in caplog.messages if "kubernetes cannot be asked" in each]
    assert "'pods'" in line
    assert "set KUBECONFIG" in line
    assert None is pods.handle()
    assert [] == pods.server.asked


def test_a_test_of_the_connection_lists_pods(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    """In deploy mode cluster, where a task would; a right that is missing is said."""
    connect(monkeypatch, pods.server, **{"deploy-mode": "cluster"})
    hook = hook_of(LauncherChoice.of(None, "pods"))
    works = hook.test_connection()
    pods.server.answer = (403, b"pods is forbidden")
    fails = hook.test_connection()

    assert works[0], works[1]
    assert works[1].endswith("pods of streams can be listed")
    assert (False, True) == (fails[0], "needs the verbs list and delete" in fails[1])
