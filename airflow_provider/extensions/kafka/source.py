"""The data source as Spark knows it: its columns, its readers of streams and of batches.

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

from airflow_provider.extensions.kafka.client import fetch, opened
from airflow_provider.extensions.kafka.columns import Columns, schema_of
from airflow_provider.extensions.kafka.offsets import FORMAT
from airflow_provider.extensions.kafka.options import parse_options
from airflow_provider.extensions.kafka.planner import Planner
from airflow_provider.extensions.kafka.stream import PlainStreamReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.kafka.options import KafkaOptions


class KafkaDataSource(DataSource):
    """Topics of Kafka, with the options and columns of Spark's connector."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return schema_of(has_headers=parse_options(self.options).has_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, is_batch=True)
        return BatchReader(options, Columns.of(schema, has_headers=options.has_headers))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        columns = Columns.of(schema, has_headers=options.has_headers)
        try:
            from airflow_provider.extensions.kafka.limited_stream import LimitedStreamReader
        except ImportError:
            return PlainStreamReader(options, columns)
        return LimitedStreamReader(options, columns)


class BatchReader(DataSourceReader):
    """Reads from a start to an end, both fixed when the batch is planned."""

    def __init__(self, options: KafkaOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        with opened(self._options) as connection:
            planner = Planner(self._options, connection)
            start, end = planner.first(), planner.end()
            there = planner.complete({**start, **(end or {})}, planner.latest())
            if end is not None:
                planner.check_end(end, there)
            to = there if end is None else end
            ranges = planner.ranges(start, {p: max(to.get(p, 0), at) for p, at in start.items()})
        return [InputPartition(part) for part in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range; none of what Spark makes of no range at all."""
        if partition.value is None:
            return iter(())
        return fetch(self._options, partition.value, self._columns)
