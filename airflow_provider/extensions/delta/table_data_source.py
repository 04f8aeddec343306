"""The data source as Spark knows it: the table's columns, its readers of streams and of batches.

Spark's Python workers import this module, on the driver's machine and on executors.
"""

# ruff: noqa: N802 - the methods of a data source have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from airflow_provider.extensions.delta.table_changes import query_schema
from airflow_provider.extensions.delta.table_files import read_files
from airflow_provider.extensions.delta.table_log import TableLog
from airflow_provider.extensions.delta.table_options import FORMAT, parse_options
from airflow_provider.extensions.delta.table_planner import TablePlanner
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.table_options import TableOptions


class DeltaDataSource(DataSource):
    """A Delta table, without Delta's jar."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        table = TableLog(parse_options(self.options))
        table.refresh()
        return query_schema(table)

    def reader(self, schema: StructType) -> DataSourceReader:
        return DeltaBatchReader(parse_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        try:
            from airflow_provider.extensions.delta.table_stream import DeltaStreamReader
        except ImportError:
            raise ConfigError(
                f"{options.name}: {FORMAT} reads a stream from Spark 4.2 on; before, Spark tells a "
                "source in Python neither where a batch begins nor how much it may read"
            ) from None
        return DeltaStreamReader(options, schema)


class DeltaBatchReader(DataSourceReader):
    """Reads the rows that a new stream reads up to the time at which the batch is planned."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        table = TableLog(self._options)
        table.refresh()
        planner = TablePlanner(table, self._schema)
        return [InputPartition(task) for task in planner.tasks(planner.files_of_new_query())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; none of the task that Spark makes of an empty table."""
        if partition.value is None:
            return iter(())
        return read_files(self._options, self._schema, partition.value)
