"""The triggers of streams' events, and what registers them: Airflow's own code on a database."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow_names import import_string
from handmade_streams import Stream

from airflow_provider.airflow_versions import has_asset_state
from airflow_provider.plugins import event_positions
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.triggers import stream_events
from airflow_provider.triggers.event_position import FIELD, Position
from airflow_provider.triggers.stream_events import (
    SparkCompleteTrigger,
    SparkFailureTrigger,
    SparkFinalCheckpointTrigger,
    SparkRevisionTrigger,
    SparkSavepointTrigger,
    StreamEventTrigger,
)
from tests.unit.hourly_job import HourlyJob, ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from airflow.triggers.base import TriggerEvent

if not has_asset_state():  # tests/airflow/test_killed_watchers.py has what holds there
    pytest.skip("assets of this version of Airflow have no state store", allow_module_level=True)

from airflow.sdk.execution_time.context import AssetStateStoreAccessor, AssetStateStoreAccessors

DEATHS = ("none", "yielded", "registering", "registered")


class TriggererDiedError(Exception):
    """A triggerer was killed."""


class Store(AssetStateStoreAccessor):
    """The state store of an asset, without a supervisor in between.

    Args:
        name: of the asset.
        asset_id: in the database.
    """

    def __init__(self, name: str, asset_id: int) -> None:
        super().__init__(name=name)
        from airflow.state import AssetScope, get_state_backend

        self._scope = AssetScope(asset_id=asset_id)
        self._backend = get_state_backend()

    async def aget(self, key: str, default: Any = None) -> Any:
        stored = self._backend.get(self._scope, key)
        return default if stored is None else json.loads(stored)

    async def aset(self, key: str, value: Any) -> None:
        self._backend.set(self._scope, key, json.dumps(value))


class Airflow:
    """The part of Airflow between a trigger and the events of its asset.

    Args:
        names: of the assets that the trigger is a watcher of.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._trigger_id = 0
        self._stores: dict[str, Store] = {}

    def watch(self, trigger: StreamEventTrigger) -> Airflow:
        """Add the assets with their watcher, as the DAG processor does."""
        from airflow.models.asset import AssetActive, AssetModel
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with create_session() as session:
            row = Trigger.from_object(trigger)
            session.add(row)
            session.flush()
            assets = [AssetModel(name=name, uri=name, group="asset") for name in self._names]
            session.add_all(assets)
            session.flush()
            for asset in assets:
                session.add(AssetActive.for_asset(asset))
                asset.add_trigger(row, "watcher")
            session.flush()
            self._trigger_id = row.id
            self._stores = {asset.name: Store(asset.name, asset.id) for asset in assets}
        return self

    def start(self) -> StreamEventTrigger:
        """Return the trigger as a triggerer rebuilds it."""
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with create_session() as session:
            row = session.get_one(Trigger, self._trigger_id)
            trigger = import_string(row.classpath)(**row.kwargs)
        assert isinstance(trigger, StreamEventTrigger)
        trigger.asset_state_store = AssetStateStoreAccessors(inlets=[])
        trigger.asset_state_store._by_name.update(self._stores)
        return trigger

    def register(self, event: TriggerEvent, *, dies: bool = False) -> None:
        """Register an event, as the supervisor of a triggerer does; *dies* before the commit."""
        from airflow.models.trigger import Trigger
        from airflow.utils.session import create_session

        with contextlib.suppress(TriggererDiedError), create_session() as session:
            Trigger.submit_event(self._trigger_id, event, session=session)
            if dies:
                raise TriggererDiedError

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return the payloads of an asset's events, in the order of their registration."""
        from airflow.models.asset import AssetEvent, AssetModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            asset = select(AssetModel.id).where(AssetModel.name == (name or self._names[0]))
            rows = select(AssetEvent).where(AssetEvent.asset_id == asset.scalar_subquery())
            found = session.scalars(rows.order_by(AssetEvent.id))
            return [row.extra["payload"] for row in found]

    def ids(self, name: str = "") -> list[str]:
        return [payload["id"] for payload in self.events(name)]

    async def position(self, name: str, key: str) -> Any:
        return await self._stores[name].aget(key)


@pytest.fixture(scope="module")
def database() -> Iterator[None]:
    """Give Airflow's tables, in the SQLite of the tests' own home, and a triggerer's listener."""
    from airflow import settings
    from airflow.listeners.listener import get_listener_manager
    from airflow.models import import_all_models
    from airflow.models.base import Base

    import_all_models()
    Base.metadata.create_all(settings.engine)
    manager = get_listener_manager()
    manager.add_listener(event_positions)
    yield
    manager.pm.unregister(event_positions)
    Base.metadata.drop_all(settings.engine)


@pytest.fixture
def airflow(database: None) -> Iterator[Callable[..., Airflow]]:
    """Give what makes an Airflow, and leave no row of it."""
    from airflow.models.base import Base
    from airflow.utils.session import create_session

    yield lambda trigger, *names: Airflow(*(names or ("hour",))).watch(trigger)
    with create_session() as session:
        for table in ("asset_state_store", "asset_event", "asset_watcher", "trigger"):
            session.execute(Base.metadata.tables[table].delete())
        for table in ("asset_active", "asset"):
            session.execute(Base.metadata.tables[table].delete())


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    """Return a stream whose batch ``n`` has the watermark of ``n + 1`` hours."""
    return Stream(tmp_path / "job").begin()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the position often: what registers events here takes no time."""
    monkeypatch.setattr(stream_events, "_LOOK_S", 0.01)


def hours_of(stream: Stream, **arguments: Any) -> SparkCompleteTrigger:
    arguments = {"poll_interval": 0.01, "since": "1970-01-01T00:00:00Z", **arguments}
    return SparkCompleteTrigger(stream.url, **arguments)


def hours_of_job(job: HourlyJob, **arguments: Any) -> SparkCompleteTrigger:
    given = {"poll_interval": 0.01, "since": "1970-01-01T00:00:00Z", "revisions": True}
    return SparkCompleteTrigger(job.directory.url, **{**given, **arguments})


async def next_event(events: AsyncIterator[TriggerEvent]) -> TriggerEvent:
    return await asyncio.wait_for(anext(events), 10)


async def events_until_quiet(trigger: StreamEventTrigger) -> AsyncIterator[TriggerEvent]:
    """Yield what a trigger reports until it has nothing to say for a while."""
    events = trigger.run()
    with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(events), 0.3)


def boundaries(count: int) -> list[str]:
    return [f"complete:1970-01-01T{hour:02}:00:00.000Z" for hour in range(1, count + 1)]


@pytest.mark.parametrize("burst", [1, 4])
def test_each_event_is_registered_once_wherever_a_triggerer_dies(
    stream: Stream, airflow: Callable[..., Airflow], burst: int
) -> None:
    """
    Triggerers die after an event was yielded, in the transaction that registers it, and after that;
    the next one begins with the position in the asset's state store.
    """
    db = airflow(hours_of(stream, burst=burst))
    for batch in range(12):
        stream.commit_hour(batch)
    deaths = itertools.cycle(DEATHS)

    async def live() -> bool:
        """Be a triggerer until it dies; return whether there was an event."""
        events = db.start().run()
        while True:
            try:
                event = await asyncio.wait_for(anext(events), 0.5)
            except (TimeoutError, asyncio.TimeoutError):
                return False
            death = next(deaths)
            if death != "yielded":
                db.register(event, dies=death == "registering")
            if death != "none":
                return True

    while asyncio.run(live()):
        pass

    assert boundaries(12) == db.ids()


@pytest.mark.long
@pytest.mark.parametrize("death", DEATHS)
def test_a_revised_hour_is_registered_once_wherever_a_triggerer_dies(
    tmp_path: Path, airflow: Callable[..., Airflow], death: str
) -> None:
    """
    Of 24 hours the last one is replayed, and a triggerer dies at its event: the next one registers
    it if it was not, and no other hour comes again.
    """
    job = HourlyJob(tmp_path / "job")
    for hour in range(24):
        job.run(hour)
    db = airflow(hours_of_job(job, burst=24))

    async def live(*, dies: str = "none") -> None:
        async for event in events_until_quiet(db.start()):
            if dies != "yielded":
                db.register(event, dies=dies == "registering")
            if dies != "none":
                return

    asyncio.run(live())
    before = db.ids()
    replay = job.undo_for_replay(23)
    asyncio.run(live())
    removed = db.ids()
    job.run(23, replay)
    asyncio.run(live(dies=death))
    asyncio.run(live())
    job.bench.close()

    assert [f"complete:{ended(hour)}" for hour in range(24)] == before == removed
    assert [*before, f"revised:r23:1:{ended(23)}"] == db.ids()


@pytest.mark.long
def test_an_event_that_is_repeated_hides_no_revision(
    tmp_path: Path, airflow: Callable[..., Airflow], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As in an Airflow whose assets have no state store: a triggerer dies after an event and before
    its position is stored, and the hour is revised. Its event comes again, and then the revision.
    """
    variables = Variables()
    monkeypatch.setattr(stream_events, "has_asset_state", lambda: False)
    monkeypatch.setattr(stream_events, "VariableStore", lambda: variables)
    job = HourlyJob(tmp_path / "job")
    for hour in range(3):
        job.run(hour)
    db = airflow(hours_of_job(job))

    async def live(count: int) -> list[str]:
        events = db.start().run()
        return [(await next_event(events)).payload["id"] for _ in range(count)]

    before = asyncio.run(live(3))
    job.run(2, job.undo_for_replay(2))
    after = asyncio.run(live(2))
    job.bench.close()

    assert [f"complete:{ended(hour)}" for hour in range(3)] == before
    assert [before[-1], f"revised:r2:1:{ended(2)}"] == after


class Variables:
    """Stands for the variables of Airflow."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    async def aget(self, key: str) -> Any:
        return json.loads(self._values.get(key, "null"))

    async def aset(self, key: str, value: Any) -> None:
        self._values[key] = json.dumps(value)


@pytest.mark.long
def test_revisions_may_be_asked_for_later(tmp_path: Path, airflow: Callable[..., Airflow]) -> None:
    """The position of the watcher stays; corrections from before are not reported."""
    job = HourlyJob(tmp_path / "job")
    for hour in range(3):
        job.run(hour)
    job.run(2, job.undo_for_replay(2))
    db = airflow(hours_of_job(job, burst=24, revisions=False))

    async def live(*, revisions: bool) -> None:
        trigger = db.start()
        trigger.revisions = revisions  # type: ignore[attr-defined]
        async for event in events_until_quiet(trigger):
            db.register(event)

    asyncio.run(live(revisions=False))
    asyncio.run(live(revisions=True))
    old = db.ids()
    job.rewind_run("r2.r2", by="run r2.r3, which replays r2.r2")
    job.run(2, "r2.r3")
    asyncio.run(live(revisions=True))
    job.bench.close()

    assert [f"complete:{ended(hour)}" for hour in range(3)] == old
    assert [*old, f"revised:r2.r2:2:{ended(2)}"] == db.ids()


def test_the_payload_says_what_is_complete(stream: Stream, airflow: Callable[..., Airflow]) -> None:
    """
    The period, the queries and the job; and when the job is FINISHED, one more event with the rest.
    """
    db = airflow(hours_of(stream, queries=["q"]))
    stream.commit_hour(0)
    stream.finish()

    async def live() -> None:
        async for event in events_until_quiet(db.start()):
            db.register(event)

    asyncio.run(live())
    period, end = db.events()

    assert {"key", "number", "state", "v"} == set(period.pop(FIELD))
    assert {
        "id": "complete:1970-01-01T01:00:00.000Z",
        "event": "complete",
        "start": "1970-01-01T00:00:00.000Z",
        "boundary": "1970-01-01T01:00:00.000Z",
        "complete": {"q": "1970-01-01T01:00:00.000Z"},
        "job_dir": stream.url,
        "queries": ["q"],
        "every": 3600,
    } == period
    assert ("end", "1970-01-01T01:00:00.000Z", None) == tuple(
        end[name] for name in ("event", "start", "boundary")
    )
    assert f"end:{stream.run_id}" == end["id"]


def test_what_is_there_at_the_first_look_is_not_reported(
    stream: Stream, airflow: Callable[..., Airflow]
) -> None:
    """Events begin with the next period, also when the first triggerer dies before it."""
    db = airflow(hours_of(stream, since=None))
    stream.commit_hour(0).commit_hour(1)

    async def live() -> list[str]:
        found = []
        async for event in events_until_quiet(db.start()):
            db.register(event)
            found.append(event.payload["id"])
        return found

    quiet = asyncio.run(live())
    stream.commit_hour(2)

    assert [] == quiet
    assert ["complete:1970-01-01T03:00:00.000Z"] == asyncio.run(live())


def test_a_triggerer_that_wakes_up_late_repeats_and_loses_nothing(
    stream: Stream, airflow: Callable[..., Airflow]
) -> None:
    """
    Another one has taken its trigger over and gone on: it continues after that one's last event.
    What it had yielded and not registered comes a second time, with the same id, and sets nothing
    back.
    """
    db = airflow(hours_of(stream))

    async def live() -> None:
        asleep, other = db.start().run(), db.start().run()
        stream.commit_hour(0)
        late = await next_event(asleep)
        for batch in range(1, 4):
            db.register(await next_event(other))
            stream.commit_hour(batch)
        db.register(late)
        db.register(await next_event(asleep))
        stream.commit_hour(4)
        db.register(await next_event(other))

    asyncio.run(live())
    one, two, three, four, five = boundaries(5)

    assert [one, two, three, one, four, five] == db.ids()


def test_two_assets_of_one_trigger_have_the_same_events(
    stream: Stream, airflow: Callable[..., Airflow]
) -> None:
    """Airflow runs one trigger for both, and registers its events for both in one transaction."""
    db = airflow(hours_of(stream), "one", "two")
    for batch in range(3):
        stream.commit_hour(batch)

    async def live() -> list[Any]:
        async for event in events_until_quiet(db.start()):
            db.register(event)
        key = event.payload[FIELD]["key"]
        return [await db.position(name, key) for name in ("one", "two")]

    one, two = asyncio.run(live())

    assert boundaries(3) == db.ids("one") == db.ids("two")
    assert one == two
    assert Position.from_dict(one) == Position(3, {"boundary_ms": 3 * 3_600_000, "ended_by": None})


def test_without_the_listener_the_trigger_stores_the_position_itself(
    stream: Stream,
    airflow: Callable[..., Airflow],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It says so, and goes on: then each event is registered at least once."""
    from airflow.listeners.listener import get_listener_manager

    manager = get_listener_manager()
    monkeypatch.setattr(manager.hook, "on_asset_event_emitted", lambda **_: None)
    db = airflow(hours_of(stream))
    stream.commit_hour(0).commit_hour(1)

    async def live() -> None:
        events = db.start().run()
        for _ in range(2):
            db.register(await next_event(events))

    asyncio.run(live())

    assert boundaries(2) == db.ids()
    assert "plugin" in capsys.readouterr().out


@pytest.mark.long
def test_only_triggerers_listen() -> None:
    """
    Airflow's DAG processor would refuse tasks with ``end_from_trigger`` beside a listener, see
    ``test_the_dags_of_the_tests_parse``.
    """
    code = (
        "from airflow_provider.plugins.spark_stream import SparkStreamPlugin\n"
        "print(SparkStreamPlugin().listeners)\n"
        "import airflow.jobs.triggerer_job_runner\n"
        "print([each.__name__ for each in SparkStreamPlugin().listeners])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert ["[]", "['airflow_provider.plugins.event_positions']"] == lines


def test_a_storage_that_is_away_is_looked_at_again(
    stream: Stream,
    airflow: Callable[..., Airflow],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """
    An outage, at the first look or later, is logged once and is no event, and neither is damage.
    """
    db = airflow(hours_of(stream))
    stream.commit_hour(0)
    fails = iter([True, True, False, True, True])
    listing = LocalStorage.list

    def list_badly(storage: LocalStorage, path: str) -> list[str]:
        if path == "queries" and next(fails, False):
            raise OSError("away")
        return listing(storage, path)

    monkeypatch.setattr(LocalStorage, "list", list_badly)
    event = asyncio.run(next_event(db.start().run()))

    assert boundaries(1) == [event.payload["id"]]
    assert 2 == capsys.readouterr().out.count("cannot be read: away")


TRIGGERS = [
    SparkCompleteTrigger("/job", every=dt.timedelta(minutes=15), queries=["a"], since="2026-01-01"),
    SparkCompleteTrigger("/job", revisions=True),
    SparkRevisionTrigger("/job", from_start=True),
    SparkSavepointTrigger("/job", from_start=True),
    SparkFinalCheckpointTrigger("/job", poll_interval=60, burst=5),
    SparkFailureTrigger("s3://bucket/job"),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda each: each.kind)
def test_a_triggerer_rebuilds_each_trigger(trigger: StreamEventTrigger) -> None:
    """From JSON, also with arguments of a later version; and Airflow takes it for the same."""
    watcher = AssetWatcher(name="w", trigger=trigger)
    classpath, stored = trigger.serialize()
    rebuilt = import_string(classpath)(**json.loads(json.dumps(stored)), of_a_later_version=1)

    assert watcher in Asset("a", watchers=[watcher]).watchers
    assert (classpath, stored) == rebuilt.serialize()
    assert trigger.hash(classpath, stored) == rebuilt.hash(*rebuilt.serialize())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"every": 0}, "whole seconds"),
        ({"every": dt.timedelta(milliseconds=1500)}, "whole seconds"),
        ({"queries": "q"}, "give a list"),
        ({"queries": ["../q"]}, "query"),
        ({"since": "soon"}, "is no moment such as"),
        ({"burst": 0}, "positive"),
        ({"poll_interval": 0}, "positive"),
        ({"evry": 3600}, "SparkCompleteTrigger has no argument evry"),
    ],
)
def test_arguments_without_sense_are_refused_when_the_dag_is_parsed(
    arguments: dict[str, Any], words: str
) -> None:
    """The error names the argument, and shows what would do."""
    with pytest.raises(ConfigError, match=words):
        SparkCompleteTrigger("/job", **arguments)


def test_it_is_no_trigger_of_a_task(stream: Stream) -> None:
    """It never ends, and has no asset to keep its position."""
    with pytest.raises(ConfigError, match="AssetWatcher"):
        asyncio.run(next_event(hours_of(stream).run()))
