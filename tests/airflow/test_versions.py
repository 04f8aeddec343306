"""The package with the version of Airflow that is at hand: what is there, and what is refused."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from typing import Any

import airflow.sdk
import pytest
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from handmade import LAUNCHER, RUN, TI, Job

import airflow_provider
from airflow_provider import airflow_versions
from airflow_provider.hooks.spark_streaming import SparkStreamingHook
from airflow_provider.operators.retry_policy import FailureRetryPolicy
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.triggers import spark_streaming
from airflow_provider.triggers.spark_streaming import SparkStreamingTrigger, is_killed

ROOMS = ("cli", "decorators", "hooks", "operators", "plugins", "sensors", "triggers", "slices")


@pytest.fixture
def job(tmp_path: Any) -> Job:
    return Job(tmp_path / "job")


def wait_as(trigger: SparkStreamingTrigger, task_instance: Any) -> None:
    """Let the trigger be the task instance's, without what a triggerer reads of its operator."""
    is_property = isinstance(getattr(type(trigger), "task_instance", None), property)
    setattr(trigger, "_task_instance" if is_property else "task_instance", task_instance)


@pytest.mark.parametrize("room", ROOMS)
def test_every_module_of_the_airflow_side_can_be_imported(room: str) -> None:
    """
    What a version of Airflow does not have is missed when it is asked for, and not by an import.
    """
    module = importlib.import_module(f"{airflow_provider.__name__}.{room}")
    names = [
        each.name
        for each in pkgutil.walk_packages(getattr(module, "__path__", []), f"{module.__name__}.")
    ]

    for name in names:
        assert name == importlib.import_module(name).__name__


@pytest.mark.parametrize("name", airflow_versions.__all__)
def test_each_name_of_airflow_is_found(name: str) -> None:
    """Wherever this version has it."""
    assert getattr(airflow_versions, name) is not None


def test_a_name_that_airflow_does_not_have_is_said_to_be_missing() -> None:
    """With the version that does not have it."""
    with pytest.raises(AttributeError, match=rf"Airflow {airflow.__version__} has no 'x'"):
        airflow_versions.find_name("x", ["airflow.sdk", "airflow.no_such_module"])


@pytest.mark.skipif(hasattr(airflow.sdk, "RetryPolicy"), reason="Airflow has retry policies")
def test_a_retry_policy_is_refused_where_airflow_has_none() -> None:
    """One line when the DAG is parsed, which names the fix."""
    with pytest.raises(ConfigError, match="has no retry policies; leave retry_policy= out"):
        FailureRetryPolicy()


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ({"run_1": {"daily": "deferred"}}, False),
        ({"run_1": {"daily_3": "deferred"}}, False),
        ({"run_1": {"daily": "failed"}}, True),
        ({"run_1": {"daily": "queued"}}, True),
        ({"run_1": {"daily": None}}, True),
        ({}, True),
    ],
)
def test_a_task_that_waits_no_more_was_killed(
    monkeypatch: pytest.MonkeyPatch, states: dict[str, Any], expected: Any
) -> None:
    """Its state tells: marked, cleared and not waiting again yet, or gone with its DAG run."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: states)

    assert expected is asyncio.run(is_killed(TI))


@pytest.mark.parametrize(("state", "requests"), [("failed", ["driver"]), ("deferred", [])])
def test_where_a_trigger_is_only_cancelled_the_tasks_state_decides(
    monkeypatch: pytest.MonkeyPatch, job: Job, state: str, requests: list[str]
) -> None:
    """
    A task that was killed asks its driver to end, one whose triggerer ends leaves it alone; as with
    ``on_kill``, Airflow may cut that off.
    """
    monkeypatch.setattr(spark_streaming, "tells_triggers_of_kills", lambda: False)
    found = {TI.run_id: {TI.task_id: state}}
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: found)
    generation = SparkStreamingHook().claim(job.url, job.run_id)

    async def cancelled() -> None:
        trigger = SparkStreamingTrigger(job.url, RUN, "driver", generation, launcher=LAUNCHER)
        wait_as(trigger, TI)
        cleanup = asyncio.create_task(trigger.cleanup())
        await asyncio.sleep(0)
        cleanup.cancel()
        await asyncio.wait([cleanup])
        await asyncio.gather(*spark_streaming._background)

    with job.lease():
        asyncio.run(asyncio.wait_for(cancelled(), 10))
        asked = job.cancels()

    assert requests == asked


def test_a_trigger_that_has_fired_ends_no_driver(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    """Airflow cleans up after each trigger, and then the task waits no more, too."""
    monkeypatch.setattr(spark_streaming, "tells_triggers_of_kills", lambda: False)
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", lambda **_: {})
    generation = SparkStreamingHook().claim(job.url, job.run_id)
    job.finish()

    async def fired() -> None:
        trigger = SparkStreamingTrigger(
            job.url, RUN, None, generation, end_from_trigger=True, launcher=LAUNCHER
        )
        wait_as(trigger, TI)
        assert [event async for event in trigger.run()]
        await trigger.cleanup()

    asyncio.run(asyncio.wait_for(fired(), 10))

    assert [] == job.cancels()
