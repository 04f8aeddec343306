"""Triggers for the watchers of assets: what happens to a stream schedules DAGs, each event once.

::

    HOUR = Asset("hour", watchers=[AssetWatcher(name="hours", trigger=SparkCompleteTrigger(JOB))])

Airflow restarts such a trigger when a triggerer is lost. So a trigger begins at the *position* in
its asset's state store. Each event carries the position after it, and the listener of
:mod:`~airflow_provider.plugins.event_positions` stores it in the transaction that registers the
event: both are there, or neither.

Crash safety: a triggerer killed before the registration leaves the old position, and the next one
reports the same events with the same ids. A triggerer that hangs, is presumed dead and wakes up may
repeat ``burst`` events at most, with the same ``id``; it reads the position before it yields more.
Where the listener cannot store the position (another ``[state_store] backend``, no plugins, no
state store: then in a variable), the trigger stores it after the event, and a kill in between
repeats that event. In a variable it stores the event before, too, and repeats it as it was: found
again it could be another one, since its period may have been revised, and its consumer would take
it for the first.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider.airflow_versions import has_asset_state
from airflow_provider.hooks.storage_connection import TaskStorage
from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.open import local_path_of
from airflow_provider.triggers.event_position import FIELD, Position, VariableStore, position_key
from airflow_provider.triggers.polling import poll_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from airflow_provider.runtime.observe.events import EventSource, EventStep, State

_LOOKS: Final = 30  # at a position that stays the same, until the trigger stores it itself
_SECOND: Final = dt.timedelta(seconds=1)
_LOOK_S: Final = 0.5  # the triggerer takes events over once a second


class StreamEventTrigger(BaseEventTrigger):
    """Base of the triggers that report what happens to a stream; use one of those below.

    Airflow's database stores its arguments: they hold no secrets, and unknown ones are ignored. It
    needs the storage alone, and no Spark.

    Args:
        job_dir: the job directory; it may still be empty.
        poll_interval: seconds between two polls.
        burst: the most events to report together. With 1, each event starts its own DAG run.
        storage_conn_id: the connection of type ``aws`` with the S3 credentials; by default
            ``[spark_stream] storage_conn_id``, then the environment's credentials.
        stored: ``v``, the version of stored arguments, and arguments of another version; a DAG
            gives none.

    Raises:
        ConfigError: an argument is invalid; when the DAG is parsed.
    """

    kind: ClassVar[str]

    def __init__(
        self,
        job_dir: str,
        *,
        poll_interval: float = 10.0,
        burst: int = 1,
        storage_conn_id: str | None = None,
        **stored: Any,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow has no types there
        if stored and "v" not in stored:  # from a DAG
            raise ConfigError(f"{type(self).__name__} has no argument {', '.join(sorted(stored))}")
        if poll_interval <= 0 or burst < 1:
            raise ConfigError(
                f"poll_interval {poll_interval!r}, burst {burst!r}: give positive numbers"
            )
        self.job_dir = local_path_of(job_dir) or job_dir  # not relative to the triggerer
        self.poll_interval = poll_interval
        self.burst = burst
        self.storage_conn_id = storage_conn_id
        self._storage = TaskStorage(storage_conn_id, self.job_dir)
        self._shown = ""

    def which(self) -> dict[str, Any]:
        """Return the arguments that say which events these are, from whenever they begin."""
        return {"job_dir": self.job_dir}

    def begins(self) -> dict[str, Any]:
        """Return the arguments that say from when events are reported."""
        return {}

    def lacks(self, state: State) -> bool:
        """Whether a stored state is that of a watcher which had fewer arguments."""
        del state
        return False

    def source(self) -> EventSource[Any]:
        """Return what finds the events; called in a thread, since it imports what reads a job."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"v": 1, "poll_interval": self.poll_interval, "burst": self.burst}
        keys = {"storage_conn_id": self.storage_conn_id} if self.storage_conn_id else {}
        path = f"{type(self).__module__}.{type(self).__qualname__}"
        return path, {**arguments, **keys, **self.which(), **self.begins()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        store = PositionStore(self, position_key(self.kind, self.which()))
        poll = functools.partial(
            poll_until,
            every_s=self.poll_interval,
            is_near=local_path_of(self.job_dir) is not None,
        )
        position = await store.get()
        if position is None:
            position = await store.begin(Position(0, await poll(self._first)))
        elif self.lacks(position.state):
            add = functools.partial(self._complemented, position.state)
            position = await store.replace(Position(position.number, await poll(add)))
        after_s = 0.0
        while True:
            steps = _announced(position) or await poll(
                functools.partial(self._next, position.state), after_s=after_s
            )
            stored, after_s = await store.get(), self.poll_interval
            if stored is not None and stored.is_newer(position):  # another triggerer has gone on
                position = stored
                continue
            await store.announce(position, steps)
            for step in steps:
                position = Position(position.number + 1, step.state)
                yield TriggerEvent(store.payload(step, position))  # type: ignore[no-untyped-call]
            position = await store.wait_for(position)

    def _first(self) -> State | None:
        source = self.source()
        found = self._look(source, None)
        return None if found is None else source.begin(found)

    def _complemented(self, state: State) -> State | None:
        source = self.source()
        found = self._look(source, state)
        return None if found is None else {**source.begin(found), **state}

    def _next(self, state: State) -> list[EventStep] | None:
        source = self.source()
        found = self._look(source, state)
        if found is None:
            return None
        return list(itertools.islice(source.steps(state, found), self.burst)) or None

    def _look(self, source: EventSource[Any], state: State | None) -> Any:
        """Return what there is; None when it cannot be read. Log either when it changes."""
        from airflow_provider.runtime.errors import SparkStreamError
        from airflow_provider.runtime.jobdir.layout import directory_at
        from airflow_provider.runtime.jobdir.upgrade_record import active_directory

        found, level = None, logging.INFO
        try:
            with self._storage.opened():
                job_dir = active_directory(self.job_dir)
                found = source.read(directory_at(job_dir), state)
            shown = source.describe(found)
        except (SparkStreamError, OSError) as error:  # damage, or storage that is away
            shown, level = f"cannot be read: {error}", logging.WARNING
        if shown != self._shown:
            self._shown = shown
            self.log.log(level, "%s: %s", self.job_dir, shown)
        return found


def _announced(position: Position) -> list[EventStep]:
    """Return the events that a triggerer may have reported before it died."""
    from airflow_provider.runtime.observe.events import EventStep

    return [EventStep(**each) for each in position.ahead]


class PositionStore:
    """The position of a trigger, in the state store of the assets that it watches for."""

    def __init__(self, trigger: StreamEventTrigger, key: str) -> None:
        self._trigger = trigger
        self._key = key

    def payload(self, step: EventStep, position: Position) -> dict[str, Any]:
        stored = {**position.to_dict(), "key": self._key}
        return {"id": step.id, **self._trigger.which(), **step.payload, FIELD: stored}

    async def get(self) -> Position | None:
        found = [Position.from_dict(await each.aget(self._key)) for each in self._stores()]
        known = [position for position in found if position is not None]
        return max(known, key=lambda position: position.number, default=None)

    async def begin(self, position: Position) -> Position:
        """Store the first position, unless another triggerer has; return the one that counts."""
        stored = await self.get()
        if stored is None:
            await self._put(position)
        return stored or position

    async def announce(self, position: Position, steps: Sequence[EventStep]) -> None:
        """Store what will be reported, where no transaction stores the position with an event."""
        if not has_asset_state():
            ahead = tuple(dataclasses.asdict(step) for step in steps)
            await self._put(dataclasses.replace(position, ahead=ahead))

    async def replace(self, position: Position) -> Position:
        """Store a position in the place of one of the same number; return it."""
        await self._put(position)
        return position

    async def _put(self, position: Position) -> None:
        for each in self._stores():
            await each.aset(self._key, position.to_dict())

    async def wait_for(self, position: Position) -> Position:
        """Wait until the event of this position is registered; return the one that is stored."""
        left, last = _LOOKS, None
        while left:
            stored = await self.get()
            if stored is not None and not position.is_newer(stored):
                return stored
            left = left - 1 if stored == last else _LOOKS  # events of a burst come one by one
            last = stored
            await asyncio.sleep(_LOOK_S)
        if has_asset_state():
            self._trigger.log.warning(
                "Airflow has not stored position %s of %s with its event: is this package's plugin "
                "loaded? Without it an event comes twice if its triggerer is killed just after it",
                position.number,
                self._trigger.job_dir,
            )
        await self._put(position)
        return position

    def _stores(self) -> list[Any]:
        if not has_asset_state():
            return [VariableStore()]
        stores = self._trigger.asset_state_store
        if stores is None:
            raise ConfigError(
                f"{type(self._trigger).__name__} is for an AssetWatcher, and no task waits for it"
            )
        # Airflow 3.3 lets a trigger ask for one asset only, whose name it does not know.
        return [*stores._by_name.values(), *stores._by_uri.values()]


class SparkCompleteTrigger(StreamEventTrigger):
    """Each period of event time when the output is complete up to its end.

    An hour is complete when the published watermark has reached its end, as for
    :class:`~airflow_provider.sensors.spark_watermark.SparkWatermarkSensor`. When the watermark
    passes several, each has an event, in order. A FINISHED job has a last event, ``end``.

    Args:
        job_dir: the job directory; it may still be empty.
        every: the length of the periods, which are aligned to 1970 in UTC.
        queries: the queries that count; by default all that have started, also later ones.
        since: the first event's period, as an ISO 8601 time in it; by default the first period that
            completes after the first poll.
        revisions: also report each reported period again, once a revision of it is complete.
        options: ``poll_interval``, ``burst``, ``storage_conn_id``; see :class:`StreamEventTrigger`.
    """

    kind = "complete"

    def __init__(
        self,
        job_dir: str,
        *,
        every: dt.timedelta | float = 3600.0,
        queries: Sequence[str] = (),
        since: str | None = None,
        revisions: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(job_dir, **options)
        span = every if isinstance(every, dt.timedelta) else dt.timedelta(seconds=every)
        if span < _SECOND or span % _SECOND:
            raise ConfigError(f"every {every!r}: give whole seconds, such as timedelta(hours=1)")
        if isinstance(queries, str):
            raise ConfigError(f"queries {queries!r}: give a list of names")
        self.every = span // _SECOND
        self.queries = [check_name(query, what="query") for query in queries]
        self.since = since
        self.revisions = revisions
        self._since_ms = None if since is None else _millis_of(since)

    def which(self) -> dict[str, Any]:
        return {**super().which(), "every": self.every, "queries": self.queries}

    def begins(self) -> dict[str, Any]:
        return {"since": self.since, **({"revisions": True} if self.revisions else {})}

    def lacks(self, state: State) -> bool:
        return self.revisions and "revisions" not in state

    def source(self) -> EventSource[Any]:
        from airflow_provider.runtime.observe.events import CompletePeriods

        queries = tuple(self.queries)
        return CompletePeriods(self.every * 1000, queries, self._since_ms, self.revisions)


class _FromStartTrigger(StreamEventTrigger):
    def __init__(self, job_dir: str, *, from_start: bool = False, **options: Any) -> None:
        super().__init__(job_dir, **options)
        self.from_start = from_start

    def begins(self) -> dict[str, Any]:
        return {"from_start": self.from_start}


class SparkSavepointTrigger(_FromStartTrigger):
    """Each complete savepoint in ``savepoints`` of the job directory, except those for replays.

    Args:
        job_dir: the job directory; it may still be empty.
        from_start: also report events from before the first poll.
        options: ``poll_interval``, ``burst``, ``storage_conn_id``; see :class:`StreamEventTrigger`.
    """

    kind = "savepoint"

    def source(self) -> EventSource[Any]:
        from airflow_provider.runtime.observe.events import NewSavepoints

        return NewSavepoints(self.from_start)


class SparkFinalCheckpointTrigger(_FromStartTrigger):
    """Each run that has its final checkpoint: it is FINISHED or SUSPENDED.

    Args:
        job_dir: the job directory; it may still be empty.
        from_start: also report events from before the first poll.
        options: ``poll_interval``, ``burst``, ``storage_conn_id``; see :class:`StreamEventTrigger`.
    """

    kind = "final"

    def source(self) -> EventSource[Any]:
        from airflow_provider.runtime.observe.events import FinalCheckpoints

        return FinalCheckpoints(self.from_start)


class SparkRevisionTrigger(_FromStartTrigger):
    """Each revision of published output: a rewind, a replay, a restore, corrected records.

    The event comes when the old rows are gone. :class:`SparkCompleteTrigger` with
    ``revisions=True`` reports the periods when they are complete again.

    Args:
        job_dir: the job directory; it may still be empty.
        from_start: also report events from before the first poll.
        options: ``poll_interval``, ``burst``, ``storage_conn_id``; see :class:`StreamEventTrigger`.
    """

    kind = "revised"

    def source(self) -> EventSource[Any]:
        from airflow_provider.runtime.observe.events import Corrections

        return Corrections(self.from_start)


class SparkFailureTrigger(_FromStartTrigger):
    """Each attempt of a run that has failed, or whose driver has died.

    Args:
        job_dir: the job directory; it may still be empty.
        from_start: also report events from before the first poll.
        options: ``poll_interval``, ``burst``, ``storage_conn_id``; see :class:`StreamEventTrigger`.
    """

    kind = "failure"

    def source(self) -> EventSource[Any]:
        from airflow_provider.runtime.observe.events import Failures

        return Failures(self.from_start)


def _millis_of(since: str) -> int:
    try:
        moment = from_iso(since)
    except ValueError as error:
        raise ConfigError(f"since {since!r} is no moment such as 2026-01-01T00:00:00Z") from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=dt.timezone.utc)
    return int(aware.timestamp() * 1000)
