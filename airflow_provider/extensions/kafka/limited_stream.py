"""Reader of a stream with limits, a fixed end and a backlog; for Spark from 4.2 on."""

# ruff: noqa: N802 - the methods of a reader have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_provider.extensions.kafka.offsets import from_json, limited, to_json
from airflow_provider.extensions.kafka.stream import PlainStreamReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.datasource import InputPartition

    from airflow_provider.extensions.kafka.columns import Columns
    from airflow_provider.extensions.kafka.offsets import Offsets
    from airflow_provider.extensions.kafka.options import KafkaOptions


class LimitedStreamReader(PlainStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in batches of limited size; its first batch fixes where it starts."""

    def __init__(self, options: KafkaOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._end: tuple[Offsets | None] | None = None  # once it is known
        self._available: Offsets | None = None  # all there is for a query that reads what is there
        self._reach: Offsets | None = None  # how far it could read, without a limit

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before every start; constant, because Spark does not keep it."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.limit
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return how far the next batch reads; the first one of a new query only to its start."""
        planner = self._planner()
        if not start:
            return to_json(planner.first())
        begin = from_json(start)
        there = self._available
        if there is None:
            there = planner.latest()
        else:  # also of a partition that was missing at first, nothing that comes later
            there = self._available = planner.complete(begin, there)
        self._reach = planner.onward(begin, there, self._ending())
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return to_json(self._reach if most is None else limited(begin, self._reach, most))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the offsets available at the last request; Spark derives the backlog from them."""
        return None if self._reach is None else to_json(self._reach)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the messages available now."""
        planner, end = self._planner(), self._ending()  # an end by time may be the latest offset
        self._available = planner.complete(end or {}, planner.latest())
        if end is not None:
            planner.check_end(end, self._available)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each range of a batch; none for the first one of a new query."""
        return super().partitions(start, end) if start else []

    def _ending(self) -> Offsets | None:
        if self._end is None:
            self._end = (self._planner().end(),)
        return self._end[0]
