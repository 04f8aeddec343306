"""The sensor of complete hours, on job directories made by hand and in a real event loop."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from airflow_names import AirflowSensorTimeout, TaskDeferred, import_string
from handmade_streams import Stream

from airflow_provider.airflow_versions import AirflowFailException
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.observe.completeness import completeness
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import rewind_run
from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor
from airflow_provider.triggers import polling
from airflow_provider.triggers.spark_watermark import SparkWatermarkTrigger

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("callable_outside_of_a_task")

ONE, TWO, THREE = (f"1970-01-01T0{hour}:00:00Z" for hour in (1, 2, 3))


@pytest.fixture(autouse=True)
def not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fire at once: nobody's worker has to be noticed here (see test_stop_operator.py)."""
    monkeypatch.setattr(polling, "HOLD_S", 0.0)


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Return a stream whose batch ``n`` has the watermark of ``n + 1`` hours."""
    return Stream(tmp_path / "job").begin()


def sensor_of(stream: Stream, up_to: str, **arguments: Any) -> SparkWatermarkSensor:
    arguments = {"poke_interval": 0.05, **arguments}
    return SparkWatermarkSensor(task_id="s", job_dir=stream.url, up_to=up_to, **arguments)


def deferred(sensor: SparkWatermarkSensor) -> SparkWatermarkTrigger:
    """Execute, and return the trigger that it must come to, as another triggerer rebuilds it."""
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute({})
    assert "resume" == raised.value.method_name
    classpath, stored = raised.value.trigger.serialize()
    rebuilt = import_string(classpath)(**json.loads(json.dumps(stored)))
    assert isinstance(rebuilt, SparkWatermarkTrigger)
    assert (classpath, stored) == rebuilt.serialize()
    return rebuilt


async def event_of(trigger: SparkWatermarkTrigger) -> dict[str, Any]:
    (event,) = [event.payload async for event in trigger.run()]
    return dict(event)


def test_an_hour_is_complete_when_a_batch_with_its_watermark_is_published(stream: Stream) -> None:
    """A batch that is planned, or committed and not published, completes nothing yet."""
    stream.commit_hour(0).commit_hour(1, published=False)
    stream.spark.plan(2, watermark_ms=3 * 3_600_000)

    found = completeness(stream.directory)

    assert {"q": "1970-01-01T01:00:00.000Z"} == found.describe()
    assert (True, False) == (found.is_up_to(3_600_000), found.is_up_to(3_600_001))


def test_a_query_without_state_is_complete_up_to_what_its_last_batch_has_read(
    stream: Stream,
) -> None:
    """Nothing waits for a batch with that watermark; a window does, so with state it does not count."""
    stream.commit_hour(0)
    stream.spark.commit(0, next_watermark_ms=2 * 3_600_000)
    without = completeness(stream.directory).describe()

    stream.spark.keep_state()

    assert {"q": "1970-01-01T02:00:00.000Z"} == without
    assert {"q": "1970-01-01T01:00:00.000Z"} == completeness(stream.directory).describe()


def test_what_is_complete_needs_no_waiting(stream: Stream) -> None:
    """The result says up to when the output is complete, deferrable or not."""
    stream.commit_hour(0).commit_hour(1)

    told = [sensor_of(stream, TWO, deferrable=way).execute({}) for way in (True, False)]

    assert [{"q": "1970-01-01T02:00:00.000Z"}] * 2 == told


def test_it_waits_in_the_triggerer_until_the_batch_is_published(stream: Stream) -> None:
    """The event comes with the batch, and the task ends with what it says."""
    stream.commit_hour(0)
    sensor = sensor_of(stream, TWO)
    trigger = deferred(sensor)

    async def watch() -> tuple[bool, dict[str, Any]]:
        task = asyncio.create_task(event_of(trigger))
        done, _ = await asyncio.wait([task], timeout=0.5)
        await asyncio.to_thread(stream.commit_hour, 1)
        return bool(done), await asyncio.wait_for(task, 10)

    fired_early, event = asyncio.run(watch())

    assert not fired_early
    assert {"q": "1970-01-01T02:00:00.000Z"} == sensor.resume({}, event)


def test_every_query_that_counts_has_to_be_there(stream: Stream) -> None:
    """One that has not begun keeps it waiting; one that was not named does not."""
    stream.commit_hour(0)

    waiting = deferred(sensor_of(stream, ONE, queries=["q", "later"]))
    told = sensor_of(stream, ONE, queries=["q"]).execute({})

    assert ["q", "later"] == waiting.queries
    assert {"q": "1970-01-01T01:00:00.000Z"} == told


def test_where_no_job_is_yet_it_waits(tmp_path: Path) -> None:
    """The stream may be started later, and nothing is written into its location."""
    sensor = SparkWatermarkSensor(task_id="s", job_dir=str(tmp_path / "job"), up_to=ONE)

    deferred(sensor)

    assert not (tmp_path / "job").exists()


def test_a_job_that_is_finished_is_complete_for_good(stream: Stream) -> None:
    """
    After the final checkpoint nothing more comes, also for a query without a watermark; when the
    run is undone, that is not so any more.
    """
    stream.spark.plan(0, watermark_ms=0).commit(0)
    with stream.lease():
        pass
    before = completeness(stream.directory).is_up_to(1)
    stream.finish()
    finished = completeness(stream.directory).is_up_to(MAX_WATERMARK_MS)
    rewind_run(stream.directory, stream.run_id)

    assert (False, True) == (before, finished)
    assert not completeness(stream.directory).is_up_to(1)


def test_a_moment_that_is_none_fails_for_good(stream: Stream) -> None:
    """
    A DAG run without a data interval renders to nothing, and the message says what is missing.
    """
    for up_to in ("None", "", "soon"):
        with pytest.raises(AirflowFailException, match="is no moment such as"):
            sensor_of(stream, up_to).execute({})


def test_names_that_are_none_are_refused_when_the_dag_is_parsed(stream: Stream) -> None:
    """A text is not a list of names, and a path is no name."""
    with pytest.raises(ConfigError, match="give a list of names"):
        sensor_of(stream, ONE, queries="q")
    with pytest.raises(ConfigError, match="query"):
        sensor_of(stream, ONE, queries=["../q"])


def test_it_gives_up_in_time(stream: Stream) -> None:
    """In a worker it ends with Airflow's own error after its timeout."""
    stream.commit_hour(0)

    with pytest.raises(AirflowSensorTimeout):
        sensor_of(stream, THREE, deferrable=False, timeout=0.2).execute({})


def test_a_storage_that_is_away_is_looked_at_again(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage is no event; damage is one, and fails the task for good."""
    trigger = deferred(sensor_of(stream, ONE))
    fails = iter([True, True, False])
    listing = LocalStorage.list

    def list_badly(storage: LocalStorage, path: str) -> list[str]:
        if path == "queries" and next(fails, False):
            raise OSError("away")
        return listing(storage, path)

    monkeypatch.setattr(LocalStorage, "list", list_badly)
    stream.commit_hour(0)
    event = asyncio.run(asyncio.wait_for(event_of(trigger), 10))
    (stream.root / "queries" / "q" / "checkpoint" / "offsets" / "0").write_text("nonsense")
    damage = asyncio.run(asyncio.wait_for(event_of(trigger), 10))

    assert {"q": "1970-01-01T01:00:00.000Z"} == event["complete"]
    with pytest.raises(AirflowFailException, match="offsets/0"):
        sensor_of(stream, ONE).resume({}, damage)
