"""Tasks whose drivers ``spark-submit`` gives to YARN, with stand-ins for both."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred
from airflow.sdk.module_loading import import_string
from handmade import ELSEWHERE, TI, Job
from services import wait_for

from airflow_provider.hooks.chosen_hook import hook_of
from airflow_provider.hooks.launchers import LauncherChoice
from airflow_provider.hooks.yarn import ADDRESS, yarn_handle, yarn_tag
from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.api.launchers import Handle, LaunchState
from airflow_provider.runtime.jobdir.layout import RunDirectory
from airflow_provider.runtime.observe import observer
from airflow_provider.triggers import polling
from tests.unit.resource_manager import ResourceManagerStandIn, an_app

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")
SUBMIT = """#!/bin/sh
echo "submitted"
exit "${EXIT:-0}"
"""


class Yarn:
    """A task on YARN, and the stand-ins that it meets."""

    def __init__(self, folder: Path, manager: ResourceManagerStandIn) -> None:
        self.manager, self.job = manager, Job(folder / "job")
        self.entry = folder / "jobs.py"
        self.entry.write_text("raise AssertionError\n")

    def operator(self, **more: Any) -> SparkStreamingOperator:
        arguments = {"conn_id": "yarn", "deploy_mode": "cluster", "poll_interval": 0.1, **more}
        job = f"{self.entry}:daily"
        return SparkStreamingOperator(task_id="daily", job=job, job_dir=self.job.url, **arguments)

    def deferred(self, **more: Any) -> TaskDeferred:
        with pytest.raises(TaskDeferred) as raised:
            self.operator(**more).execute(context())
        return raised.value

    def driver_id(self) -> str:
        return self.job.run.submissions()[-1].driver_id

    def has(self, state: str, **more: Any) -> dict[str, Any]:
        """Let the cluster have the driver's application."""
        self.manager.apps.append(an_app(1, yarn_tag(self.driver_id()), state, **more))
        return self.manager.apps[-1]


def connect(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
    extra = {"spark-binary": "spark3-submit", **extra}
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps(connection))


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Yarn]:
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "spark3-submit"
    program.write_text(SUBMIT)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))  # without a site
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    monkeypatch.setenv("HADOOP_USER_NAME", "streams")
    monkeypatch.setattr(observer, "LAUNCH_S", 0.1)
    monkeypatch.setattr(polling, "HOLD_S", 0.0)
    manager = ResourceManagerStandIn()
    connect(monkeypatch, **{ADDRESS: manager.url})
    yield Yarn(tmp_path, manager)
    manager.stop()


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


def test_a_triggerer_asks_yarn(yarn: Yarn) -> None:
    """What is stored says which launcher, as of any other one; what YARN says fails the task."""
    deferred = yarn.deferred()
    yarn.has("FAILED", finalStatus="FAILED", diagnostics="AM exited with exitCode: 13")
    trigger = rebuilt(deferred)
    event = event_of(trigger)
    with pytest.raises(SparkRunFailedError, match=r"ended, exit code 13: application_\S+ FAILED"):
        yarn.operator().resume(context(), event)

    assert {"kind": "spark-submit", "conn_id": "yarn", "options": {}} == trigger.launcher
    assert "failed" == event["run_state"]
    assert yarn_handle(yarn.driver_id()) == yarn.job.run.handle_of(yarn.driver_id())


def test_a_mistake_that_yarn_tells_is_permanent(yarn: Yarn) -> None:
    """A worker that waits by itself asks, too; the driver's own exit code decides."""

    class Submitted(SparkStreamingOperator):
        def _submit(self, *arguments: Any) -> Any:
            record = super()._submit(*arguments)
            said = "User application exited with status 2"
            yarn.has("FINISHED", finalStatus="FAILED", diagnostics=said)
            return record

    operator = yarn.operator(deferrable=False)
    operator.__class__ = Submitted
    with pytest.raises(AirflowFailException, match="exit code 2"):
        operator.execute(context())


def test_a_killed_worker_ends_an_application_that_has_not_come_up(yarn: Yarn) -> None:
    """Only that of this driver; and the driver is asked to end, should it come up."""
    operator = yarn.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    app = yarn.has("ACCEPTED")
    yarn.manager.apps.append(an_app(2, yarn_tag("another")))
    operator.on_kill()

    assert [app["id"]] == yarn.manager.kills()
    assert [yarn.driver_id()] == yarn.job.cancels()


def test_a_killed_worker_ends_an_application_whose_spark_submit_has_failed(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YARN has the driver in its queue, whatever the process that submitted it says."""
    monkeypatch.setenv("EXIT", "1")
    operator = yarn.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    app = yarn.has("ACCEPTED")
    wait_for("its end", lambda: yarn.job.run.exit_of(yarn.driver_id()), within=30)
    operator.on_kill()

    assert [app["id"]] == yarn.manager.kills()
    assert [yarn.driver_id()] == yarn.job.cancels()


def test_a_failed_spark_submit_of_a_silent_yarn_leaves_a_driver_asked_to_end(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be in a queue that nobody can ask about: should it come up, it ends."""
    monkeypatch.setenv("EXIT", "1")
    operator = yarn.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    yarn.manager.answer = (503, {}, b"starting")
    wait_for("its end", lambda: yarn.job.run.exit_of(yarn.driver_id()), within=30)
    operator.on_kill()

    assert [yarn.driver_id()] == yarn.job.cancels()
    assert "was not ended" in capsys.readouterr().out


def test_a_killed_worker_ends_an_application_behind_an_older_lease(yarn: Yarn) -> None:
    """The last try's driver, on a machine that nobody can look at, may be alive: both are asked."""
    operator = yarn.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    app = yarn.has("ACCEPTED")
    with yarn.job.lease("before", owner=ELSEWHERE):
        operator.on_kill()

    assert [app["id"]] == yarn.manager.kills()
    asked = {request.driver_id for request in yarn.job.requests()}
    assert {"before", yarn.driver_id()} == asked


def test_a_killed_trigger_ends_an_application_that_has_not_come_up(yarn: Yarn) -> None:
    """A triggerer has nothing but what Airflow has stored."""
    trigger = rebuilt(yarn.deferred())
    app = yarn.has("ACCEPTED")

    async def kill() -> None:
        task = asyncio.create_task(anext(trigger.run()))
        while trigger._id is None:
            await asyncio.sleep(0.05)
        await trigger.on_kill()
        task.cancel()

    asyncio.run(asyncio.wait_for(kill(), 60))

    assert [app["id"]] == yarn.manager.kills()


def test_an_application_that_never_comes_up_is_ended(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that runs on YARN, and takes no lease in time, makes room for the next try's."""
    monkeypatch.setattr(observer, "START_TIMEOUT_S", 0.5)
    deferred = yarn.deferred()
    app = yarn.has("RUNNING")
    event = event_of(rebuilt(deferred))
    with pytest.raises(SparkRunFailedError, match="has not taken the lease .*: running: applicat"):
        yarn.operator().resume(context(), event)

    assert [app["id"]] == yarn.manager.kills()


def test_an_end_that_yarn_refuses_is_logged(yarn: Yarn, capsys: pytest.CaptureFixture[str]) -> None:
    """The task ends all the same; the line says who may."""
    operator = yarn.operator()
    with pytest.raises(TaskDeferred):
        operator.execute(context())
    yarn.has("ACCEPTED")
    yarn.manager.users = {"hdfs"}
    operator.on_kill()

    (line,) = [each for each in capsys.readouterr().out.splitlines() if "was not ended" in each]
    assert "User streams cannot perform" in line
    assert "HADOOP_USER_NAME" in line


def test_without_an_address_a_driver_is_waited_for(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says what would allow to ask; nothing else is different."""
    connect(monkeypatch)
    with caplog.at_level(logging.INFO):
        yarn.deferred()

    (line,) = [each for each in caplog.messages if "yarn cannot be asked" in each]
    assert all(each in line for each in ("'yarn'", ADDRESS, "HADOOP_CONF_DIR", "yarn-site.xml"))
    assert None is yarn.job.run.handle_of(yarn.driver_id())
    assert [] == yarn.manager.asked


def test_a_triggerer_without_an_address_goes_by_the_records(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It says once why, however often it polls."""
    trigger = rebuilt(yarn.deferred())
    connect(monkeypatch)
    with caplog.at_level(logging.INFO):
        answers = [trigger.hook.ask(yarn_handle(yarn.driver_id())) for _ in range(2)]

    assert [None, None] == answers
    assert 1 == sum("yarn cannot be asked" in each for each in caplog.messages)


def test_a_site_has_the_address(
    yarn: Yarn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that ``spark-submit`` itself reads is enough."""
    connect(monkeypatch)
    host = yarn.manager.url.removeprefix("http://")
    name = "<name>yarn.resourcemanager.webapp.address</name>"
    text = f"<configuration><property>{name}<value>{host}</value></property></configuration>"
    (tmp_path / "yarn-site.xml").write_text(text)
    trigger = rebuilt(yarn.deferred())
    yarn.has("ACCEPTED")

    status = trigger.hook.ask(yarn_handle(yarn.driver_id()))
    assert LaunchState.QUEUED is status.state


def test_a_wrong_address_is_refused(yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is written, and a connection that is gone is unknown, not a traceback."""
    connect(monkeypatch, **{ADDRESS: "ftp://manager"})
    with pytest.raises(AirflowFailException, match="is no address of a ResourceManager"):
        yarn.operator().execute(context())
    monkeypatch.delenv("AIRFLOW_CONN_YARN")
    hook = hook_of(LauncherChoice.of(None, "yarn"))
    status = hook.ask(yarn_handle("7"))

    assert [] == yarn.job.storage.list("runs")
    assert status is not None
    assert (LaunchState.UNKNOWN, True) == (status.state, "no such connection" in status.reason)


def test_a_handle_that_cannot_be_stored_fails_no_task(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver was submitted: it is waited for as one that cannot be asked about."""

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(RunDirectory, "put_handle", full)
    yarn.deferred()

    assert None is yarn.job.run.handle_of(yarn.driver_id())


def test_a_driver_in_client_mode_is_not_asked_about(yarn: Yarn) -> None:
    """Its process is on this machine, and says how it ends."""
    yarn.deferred(deploy_mode="client")
    wait_for("its end", lambda: yarn.job.run.exit_of(yarn.driver_id()), within=30)

    assert None is yarn.job.run.handle_of(yarn.driver_id())
    assert [] == yarn.manager.asked


def test_the_handle_of_another_launcher_is_not_asked_for(yarn: Yarn) -> None:
    """A task that has changed its launcher does not take one cluster's run for another's."""
    on_livy = Handle(driver_id="d", launcher="livy", id="7")
    local = hook_of(LauncherChoice.of("spark-submit", "yarn"))
    livy = hook_of(LauncherChoice.of("livy", "yarn"))

    assert [None, None] == [local.ask(on_livy), livy.ask(yarn_handle("d"))]
    assert [] == yarn.manager.asked


def test_a_test_of_the_connection_asks_the_resource_manager(
    yarn: Yarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In deploy mode cluster, where a task would ask it."""
    connect(monkeypatch, **{ADDRESS: yarn.manager.url, "deploy-mode": "cluster"})
    hook = hook_of(LauncherChoice.of(None, "yarn"))
    works = hook.test_connection()
    yarn.manager.answer = (401, {}, b"who are you")
    fails = hook.test_connection()

    assert works[0], works[1]
    assert works[1].endswith(f"the ResourceManager at {yarn.manager.url} answers")
    assert (False, True) == (fails[0], "who are you" in fails[1])
    assert [] == yarn.job.storage.list("runs")
