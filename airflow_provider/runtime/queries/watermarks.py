"""Watermarks of a query's sources in event time, and the markers that move them.

Spark forgets each source's own watermark when a query stops, and holds the query's back until every
source has had a row again. So when some sources have ended, the others are announced, too, each
with its last event time.

A source that has had no row for a time is *idle*: it is moved along to the event time of the
slowest of the others. So the query's watermark advances as if the source were not there, and when
it has rows again they count, and it holds the others back as before. (Flink's ``withIdleness``
ignores an idle source instead; the watermark of the query is the same.) Time counts from the
query's start.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import END_MS, is_marker, put_marker
from airflow_provider.runtime.queries.plan import executed, items, leaves, rows_of, source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SourceTime:
    """The event time of a source.

    Attributes:
        heard_s: when it had its last row, or the query started; on a monotonic clock.
        idle_timeout_s: the silence after which it is idle; None for never.
        delay_ms: its watermark's delay.
        latest_ms: its latest event time; None before it has any.
    """

    heard_s: float
    idle_timeout_s: float | None
    delay_ms: int = 0
    latest_ms: int | None = None

    @property
    def watermark_ms(self) -> int | None:
        """Return its watermark; None before it has any."""
        return None if self.latest_ms is None else self.latest_ms - self.delay_ms

    def is_idle(self, now_s: float) -> bool:
        """Whether it has been silent for so long that the others continue without it."""
        return self.idle_timeout_s is not None and now_s - self.heard_s >= self.idle_timeout_s


def move_along(times: Mapping[str, SourceTime], now_s: float) -> dict[str, int]:
    """Return for each idle source that is behind the event time that it moves to.

    *times* has the sources that have a watermark and have not ended.

    Returns:
        Milliseconds by source. Empty while all are idle, and while one that is not has had no row.
    """
    awake = [time.watermark_ms for time in times.values() if not time.is_idle(now_s)]
    known = [watermark for watermark in awake if watermark is not None]
    if not known or len(known) < len(awake):
        return {}
    target = min(known)
    return {
        name: target + time.delay_ms
        for name, time in times.items()
        if time.is_idle(now_s) and (time.watermark_ms is None or time.watermark_ms < target)
    }


class EventTimes:
    """Watches and moves the sources of one query.

    Thread safety: :meth:`batch_ran` runs in Spark's callback thread, the rest in the driver's; the
    table of times is replaced, not changed.

    Args:
        definition: the query.
        clock: time.
        reached: event time in milliseconds by source, as an earlier attempt knew it when some of
            the sources had ended.
    """

    def __init__(
        self, definition: QueryDefinition, clock: Clock, reached: Mapping[str, int]
    ) -> None:
        self._definition = definition
        self._clock = clock
        self._reached = reached
        self._times: Mapping[str, SourceTime] = {}

    def replace_definition(self, definition: QueryDefinition) -> None:
        """Replace the query's definition when some of its sources have ended."""
        self._definition = definition
        self._reached = self.reached()

    def starts(self) -> None:
        """Announce the event times of the sources: Spark does not keep them over a start."""
        now = self._clock.monotonic()
        times = {}
        for source in self._definition.sources:
            if source.watermark is None or is_marker(source.name):
                continue
            reached = END_MS if source.ended else self._reached.get(source.name)
            if reached is not None and source.markers is not None:
                put_marker(source.markers, reached)
            if not source.ended:
                times[source.name] = SourceTime(
                    now, source.idle_timeout_s, _delay_ms(source), latest_ms=reached
                )
        self._times = times

    def reached(self) -> dict[str, int]:
        """Return the latest event time of each source that has had one, in milliseconds."""
        known = {name: time.latest_ms for name, time in self._times.items()}
        return {name: latest for name, latest in known.items() if latest is not None}

    def batch_ran(self, execution: Any) -> None:
        """Update the watermarks from a finished batch."""
        from py4j.protocol import Py4JError

        if not self._is_wanted():
            return
        try:
            found = list(_event_times(execution, self._definition.sources))
        except Py4JError as error:
            log.warning("the event times of sources are not known: %s", error)
            return
        now, times = self._clock.monotonic(), dict(self._times)
        for name, latest_ms, delay_ms in found:
            if name in times:
                before = times[name].latest_ms
                times[name] = dataclasses.replace(
                    times[name],
                    heard_s=now,
                    delay_ms=delay_ms,
                    latest_ms=latest_ms if before is None else max(before, latest_ms),
                )
        self._times = times

    def _is_wanted(self) -> bool:
        ends = set(self._definition.ending) - set(self._definition.ended)
        return bool(ends) or any(time.idle_timeout_s is not None for time in self._times.values())

    def move_idle(self) -> None:
        """Move the idle sources to the event time of the others."""
        moves = move_along(self._times, self._clock.monotonic())
        if not moves:
            return
        times = dict(self._times)
        for source in self._definition.sources:
            if source.name in moves and source.markers is not None:
                put_marker(source.markers, moves[source.name])
                log.info("query=%s source=%s is idle", self._definition.name, source.name)
                times[source.name] = dataclasses.replace(
                    times[source.name], latest_ms=moves[source.name]
                )
        self._times = times

    def idle(self) -> list[str]:
        """Return the sources that are idle now."""
        now = self._clock.monotonic()
        return sorted(name for name, time in self._times.items() if time.is_idle(now))


def event_times_of(
    definition: QueryDefinition, clock: Clock, reached: Mapping[str, int]
) -> EventTimes | None:
    """Return the event times of the query's sources; None when none has markers."""
    if not definition.marked:
        return None
    return EventTimes(definition, clock, reached)


def _delay_ms(source: SourceDefinition) -> int:
    """Return the watermark's delay in milliseconds; 0 while only Spark can parse it."""
    _, delay = source.watermark or ("", "0")
    try:
        return round(parse_duration(delay) * 1000)
    except ConfigError:
        return 0


def _event_times(
    execution: Any, sources: Iterable[SourceDefinition]
) -> Iterator[tuple[str, int, int]]:
    """Yield the sources with rows in the finished batch, their latest event time and delay."""
    names = [source.name for source in sources]
    streams = list(zip(items(execution.sources()), names, strict=True))
    for node in executed(execution.lastExecution().executedPlan()):
        if node.getClass().getSimpleName() != "EventTimeWatermarkExec":
            continue
        stats = node.eventTimeStats().value()
        if stats.count() == 0:
            continue
        for leaf in leaves(node):
            if not leaf.metrics().contains("numOutputRows") or rows_of(leaf) == 0:
                continue
            name = source_of(leaf, streams)
            if name is not None and not is_marker(name):
                yield name, int(stats.max()), int(node.delayMs())
