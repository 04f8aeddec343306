"""Reader of a Delta table as a stream, with limits and a fixed end; for Spark from 4.2 on."""

# ruff: noqa: N802 - the methods of a reader have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from airflow_provider.extensions.delta.positions import from_json
from airflow_provider.extensions.delta.table_files import read_files
from airflow_provider.extensions.delta.table_log import TableLog
from airflow_provider.extensions.delta.table_planner import Limit, TablePlanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.positions import Position
    from airflow_provider.extensions.delta.table_options import TableOptions

OUTSTANDING: Final = "filesOutstanding"
"""In the latest offset that Spark reports: the files after the batch; no part of a position."""


class DeltaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table in batches of whole files; the first batch fixes where the query starts.

    One object plans in a process on the driver's machine, for as long as the query runs; copies of
    it read on executors.
    """

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._plans: TablePlanner | None = None
        self._available: Position | None = None  # the end of a query that reads what exists
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before every start; constant, because Spark does not keep it."""
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_files is not None:
            return ReadMaxFiles(self._options.max_files)
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return how far the next batch reads; the first one of a new query only to its start."""
        planner = self._refreshed()
        end = self._available or planner.end()
        if not start:
            return planner.first(end).to_json()
        position = from_json(start)
        planner.check_position(position)
        if position.order >= end.order:
            self._latest = {**position.to_json(), OUTSTANDING: 0}
            return start
        to = planner.advance(position, end, _limit_of(limit))
        outstanding = planner.outstanding(to, end)
        counted = {} if outstanding is None else {OUTSTANDING: outstanding}
        self._latest = {**end.to_json(), **counted}
        return to.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the table at the last request, and the files unread after its batch."""
        return self._latest

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only the versions that exist now."""
        self._available = self._refreshed().end()
        self._latest = self._available.to_json()  # also where the first batch was planned before

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a task for each few files of a batch; none for the first one of a new query."""
        if not start or start == end:
            return []
        begin, to = from_json(start), from_json(end)
        planner = self._plans or self._refreshed()
        planner.check_position(begin)
        planner.check_position(to)
        return [InputPartition(task) for task in planner.tasks(planner.check_present(begin, to))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_files(self._options, self._schema, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: how far a query has read is in its checkpoint, and not in the table."""

    def stop(self) -> None:
        self._plans = None

    def _refreshed(self) -> TablePlanner:
        if self._plans is None:
            table = TableLog(self._options)
            table.refresh()
            self._plans = TablePlanner(table, self._schema)
        else:
            self._plans.table.refresh()
        return self._plans


def _limit_of(limit: ReadLimit) -> Limit:
    if isinstance(limit, ReadMaxFiles):
        return Limit(files=limit.max_files)
    if isinstance(limit, ReadMaxRows):
        return Limit(rows=limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return Limit(size=limit.max_bytes)
    return Limit()
