"""Watermarks of a query's sources, the markers that move them, and the rows that come late.

Spark forgets each source's own watermark when a query stops, and holds the query's back until
every source has had a row. So when some sources have ended, the others are announced with their
last event time. An idle source is moved to the event time of the slowest other source, until it
has rows again; Flink's ``withIdleness`` gives the query the same watermark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import CheckpointError, ConfigError, LateRowsError
from airflow_provider.runtime.jobdir.end_of_input import END_MS, is_marker, put_marker
from airflow_provider.runtime.jobdir.epoch_documents import LateCount, add_late, add_rows
from airflow_provider.runtime.jobdir.run_options import WAIT
from airflow_provider.runtime.queries.plan import (
    executed,
    items,
    leaves,
    operator_id,
    rows_of,
    source_of,
)
from airflow_provider.runtime.spark.versions import class_named, engine_class

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.epoch_documents import (
        CountInput,
        CountLate,
        EpochRecord,
        LateRows,
    )
    from airflow_provider.runtime.jobdir.run_options import LateLimit
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.source import SourceDefinition
    from airflow_provider.runtime.sinks.committer import EpochCommitter


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


_DROPPED: Final = "numRowsDroppedByWatermark"
_WATERMARK: Final = "EventTimeWatermarkExec"
_STATE_WRITER: Final = "StateStoreWriter"
_EXPAND: Final = "ExpandExec"
_FILTER: Final = "FilterExec"
_PLAIN: Final = "org.apache.spark.sql.execution"
# They drop what a partial aggregation below them has combined; the others drop rows as they come.
_OF_GROUPS: Final = frozenset(
    {
        "StateStoreSaveExec",
        "StateStoreRestoreExec",
        "SessionWindowStateStoreSaveExec",
        "SessionWindowStateStoreRestoreExec",
    }
)


class LatePolicy:
    """Handles the late rows of one query."""

    def __init__(self, query: QueryDefinition, late: str, limit: LateLimit | None) -> None:
        self._query = query
        self._late = late
        self._limit = limit

    @property
    def waits(self) -> bool:
        return self._late == WAIT

    def check(self, record: EpochRecord) -> None:
        """Refuse a staged epoch that is not recorded yet, if its late rows are many or unknown."""
        self._check_totals(record.epoch, record.late_rows, record.rows_read)

    @contextlib.contextmanager
    def checked_first(
        self,
        epochs: EpochCommitter,
        df: DataFrame,
        epoch: int,
        count_input: CountInput,
        count_late: CountLate,
    ) -> Iterator[tuple[DataFrame, CountInput, CountLate]]:
        """Yield the output of a batch, checked if one of its sinks shows rows before the commit.

        Such a sink is ``for_each_batch``. The batch then runs before its function is called, and
        the output is cached until the function has read it.
        """
        is_shown = any(isinstance(sink, VisibleSink) for sink in self._query.sinks)
        if self._limit is None or not is_shown:
            yield df, count_input, count_late
            return
        rows = df.persist()
        try:
            rows.count()
            read, late = count_input(), count_late()
            so_far = add_late(epochs.late_rows(), late), add_rows(epochs.rows_read(), read)
            self._check_totals(epoch, *so_far)
            yield rows, lambda: read, lambda: late
        finally:
            rows.unpersist()

    def _check_totals(self, epoch: int, late: LateRows | None, read: int | None) -> None:
        if self._limit is None:
            return
        if late is None:
            msg = (
                f"query {self._query.name!r}: this Spark does not tell how many rows come late; "
                "run with late='count'"
            )
            raise CheckpointError(msg)
        if not self._limit.is_crossed(sum(late.values()), read):
            return
        names = self._query.operators
        raise LateRowsError(
            self._query.name,
            epoch,
            {_name_of(names, operator): rows for operator, rows in late.items() if rows},
            read=read,
            limit=None if self.waits else str(self._limit),
        )

    def batch_ran(self, execution: Any | None) -> None:
        """Keep the watermark where it is, if it waits for the end of the data.

        Spark takes the event times of a batch from its plan after the callback, and finds none.

        Raises:
            CheckpointError: the watermark cannot be kept; Spark must not commit the batch.
        """
        if not self.waits:
            return
        if execution is None:
            msg = f"query {self._query.name!r}: Spark does not tell which batch it runs"
            raise CheckpointError(msg)
        for node in executed(execution.lastExecution().executedPlan()):
            if _kind(node) == _WATERMARK:
                node.eventTimeStats().reset()


def _name_of(names: tuple[str, ...], operator: str) -> str:
    place = int(operator)
    return names[place] if place < len(names) else operator


def count_late_rows(execution: Any, jvm: Any) -> LateCount | None:
    """Count the rows that each stateful operator has dropped as late in the finished batch."""
    from py4j.protocol import Py4JError

    rows: dict[str, int] = {}
    is_minimum = False
    try:
        for node in executed(execution.lastExecution().executedPlan()):
            if not node.metrics().contains(_DROPPED):
                continue
            operator, dropped = str(operator_id(node)), int(node.metrics().apply(_DROPPED).value())
            counted, is_least = dropped, False
            if dropped and _kind(node) in _OF_GROUPS:
                counted, is_least = _count_again(node, dropped, jvm)
            is_minimum = is_minimum or is_least
            rows[operator] = rows.get(operator, 0) + counted
    except Py4JError as error:
        log.warning("late rows of this batch are not known: %s", error)
        return None
    return LateCount(rows, is_minimum)


def _count_again(node: Any, groups: int, jvm: Any) -> tuple[int, bool]:
    """Count the late rows at an aggregation's input, each once; and whether there may be more."""
    from py4j.protocol import Py4JError

    partial = _partial_aggregation(node)
    if partial is None:
        return groups, True
    above, expand = _sliding(partial)
    windows = int(expand.projections().size()) if expand is not None else 1
    least = -(-groups // windows)  # of so many groups one row may be in each
    try:
        late = node.watermarkExpressionForLateEvents()
        if not late.isDefined() or _has_state(partial.child(), jvm):
            return least, True
        counts = [
            int(_late_rows_of(partial, rows, late.get(), jvm).execute().count())
            for rows in _inputs(partial, above, expand, jvm)
        ]
    except Py4JError as error:
        log.warning("late rows are counted by their groups: %s", error)
        return least, True
    # With a filter above, not every row is in each of the windows, and none of them has all rows.
    is_least = expand is not None and any(_kind(each) == _FILTER for each in above)
    return max(1, *counts), is_least


def _partial_aggregation(node: Any) -> Any | None:
    found = None
    while node.children().size() == 1:
        node = node.children().apply(0)
        if _kind(node).endswith("AggregateExec"):
            found = node
    return found


def _has_state(plan: Any, jvm: Any) -> bool:
    """Whether a plan reads state, which must not happen a second time."""
    writer = jvm.java.lang.Class.forName(engine_class(jvm, _STATE_WRITER))
    return any(writer.isInstance(node) for node in executed(plan))


def _late_rows_of(partial: Any, rows: Any, late: Any, jvm: Any) -> Any:
    """Return the plan of the rows whose group is late.

    *rows* is the input of *partial*, in nodes of its own: those of the batch keep their metrics.
    *late* is Spark's own condition for a late group.
    """
    keys = class_named(jvm, f"{_PLAIN}.ProjectExec")(partial.groupingExpressions(), rows)
    return class_named(jvm, f"{_PLAIN}.FilterExec")(late, keys)


def _sliding(partial: Any) -> tuple[list[Any], Any | None]:
    above, node = [], partial.child()
    while _kind(node) != _EXPAND:
        above.append(node)
        if node.children().size() != 1:
            return above, None
        node = node.children().apply(0)
    return above, node


def _inputs(partial: Any, above: list[Any], expand: Any | None, jvm: Any) -> Iterator[Any]:
    if expand is None:
        yield partial.child().clone()
        return
    others = [expand.productElement(place) for place in range(1, expand.productArity())]
    for place in range(expand.projections().size()):
        one = expand.projections().slice(place, place + 1)
        arguments = jvm.java.util.ArrayList([one, *others]).toArray()
        plan = expand.makeCopy(arguments).withNewChildren(
            jvm.PythonUtils.toSeq([expand.child().clone()])
        )
        for each in reversed(above):
            plan = each.withNewChildren(jvm.PythonUtils.toSeq([plan]))
        yield plan


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
