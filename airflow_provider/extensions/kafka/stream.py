"""Reader of a stream for Spark 4.0 and 4.1, which give a source in Python no limits."""

# ruff: noqa: N802 - the methods of a reader have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from airflow_provider.extensions.kafka.client import Connection, fetch
from airflow_provider.extensions.kafka.offsets import LATEST, from_json, limited, to_json
from airflow_provider.extensions.kafka.planner import Planner
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from airflow_provider.extensions.kafka.columns import Columns
    from airflow_provider.extensions.kafka.offsets import Offsets
    from airflow_provider.extensions.kafka.options import KafkaOptions


class PlainStreamReader(DataSourceStreamReader):
    """Reads a stream whose start its options fix, since Spark does not keep it.

    One object plans in a process on the driver's machine, for as long as the query runs; copies of
    it read on executors.
    """

    def __init__(self, options: KafkaOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._connection: Connection | None = None
        self._plans: Planner | None = None
        self._read: Offsets | None = None  # up to here, as far as this object knows

    def initialOffset(self) -> dict[str, Any]:
        start = self._options.start
        if start.named is None and start.timestamp_ms is None and start.everywhere == LATEST:
            raise ConfigError(
                "option startingOffsets: before Spark 4.2 the first batch would skip messages when "
                "it runs again; use 'earliest', offsets, or startingTimestamp"
            )
        self._read = self._planner().first()
        return to_json(self._read)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        planner, known = self._planner(), self._read or {}
        there = planner.onward(known, planner.latest(), planner.end())
        most = self._options.limit
        return to_json(limited(known, there, most) if most and self._read is not None else there)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._read = from_json(end)
        ranges = self._planner().ranges(from_json(start), self._read)
        return [InputPartition(part) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return fetch(self._options, partition.value, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: how far a query has read is in its checkpoint, and not in Kafka."""

    def stop(self) -> None:
        connection, self._connection, self._plans = self._connection, None, None
        if connection is not None:
            connection.close()

    def _planner(self) -> Planner:
        if self._connection is None or self._plans is None:
            self._connection = Connection(self._options)
            self._plans = Planner(self._options, self._connection)
        return self._plans
