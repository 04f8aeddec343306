"""Reader of an Iceberg table's changes as a stream, for Spark from 4.2 on.

Spark's Python workers import this module, on the driver's machine and on executors.
"""

# ruff: noqa: N802 - the methods of a reader have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_provider.extensions.iceberg.planner import Budget, Planner
from airflow_provider.extensions.iceberg.positions import Position
from airflow_provider.extensions.iceberg.reading import read_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.iceberg.table_options import TableOptions


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table in batches of limited size; its first batch fixes where it starts.

    One object plans in a process on the driver's machine, for as long as the query runs; copies of
    it read on executors.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._planner = Planner(options)

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before every start; constant, because Spark does not keep it."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Return how far the next batch reads; the first one of a new query only to its start."""
        if not start:
            return self._planner.start().to_json()
        position = Position.from_json(start)
        planned = self._planner.latest(position, _budget_of(limit))
        # The very same offset tells Spark that there is nothing to read.
        return start if planned == position else planned.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the table at the last request, and what was left before it."""
        if self._planner.reached is None:
            return None
        end, left = self._planner.reached
        return {**end.to_json(), "outstanding": dict(left)}

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the snapshots that the table has now."""
        self._planner.fix_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch; none for the first one of a new query."""
        if not start:
            return []
        tasks = self._planner.tasks(Position.from_json(start), Position.from_json(end))
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_files(partition.value, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: how far a query has read is in its checkpoint, and not in the table."""

    def stop(self) -> None:
        self._planner.close()


def _budget_of(limit: Any) -> Budget:
    if isinstance(limit, ReadMaxFiles):
        return Budget(files=limit.max_files)
    if isinstance(limit, ReadMaxRows):
        return Budget(rows=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return Budget(bytes=limit.max_bytes)
    return Budget()
