"""Watermarks of a query's sources, and the markers that move them.

Spark forgets each source's own watermark when a query stops, and holds the query's back until
every source has had a row. So when some sources have ended, the others are announced with their
last event time. An idle source is moved to the event time of the slowest other source, until it
has rows again; Flink's ``withIdleness`` gives the query the same watermark.
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
    from airflow_provider.runtime.sources.declared import SourceDefinition


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SourceTime:
    """The event time of a source."""

    heard_s: float
    idle_timeout_s: float | None
    delay_ms: int = 0
    latest_ms: int | None = None

    @property
    def watermark_ms(self) -> int | None:
        return None if self.latest_ms is None else self.latest_ms - self.delay_ms

    def is_idle(self, now_s: float) -> bool:
        """Whether it has been silent for so long that the others continue without it."""
        return self.idle_timeout_s is not None and now_s - self.heard_s >= self.idle_timeout_s


def move_along(times: Mapping[str, SourceTime], now_s: float) -> dict[str, int]:
    """Return the event time in milliseconds that each lagging idle source moves to."""
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
    """

    def __init__(
        self, definition: QueryDefinition, clock: Clock, reached: Mapping[str, int]
    ) -> None:
        self._definition = definition
        self._clock = clock
        self._reached = reached
        self._times: Mapping[str, SourceTime] = {}

    def replace_definition(self, definition: QueryDefinition) -> None:
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
        known = {name: time.latest_ms for name, time in self._times.items()}
        return {name: latest for name, latest in known.items() if latest is not None}

    def batch_ran(self, execution: Any) -> None:
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
        now = self._clock.monotonic()
        return sorted(name for name, time in self._times.items() if time.is_idle(now))


def _delay_ms(source: SourceDefinition) -> int:
    _, delay = source.watermark or ("", "0")
    try:
        return round(parse_duration(delay) * 1000)
    except ConfigError:
        return 0


def _event_times(
    execution: Any, sources: Iterable[SourceDefinition]
) -> Iterator[tuple[str, int, int]]:
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
