"""The data source of Iceberg tables as Spark knows it: its columns and its readers.

Spark's Python workers import this module, on the driver's machine and on executors.
"""

# ruff: noqa: N802 - the methods of a data source have Spark's names
from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from airflow_provider.extensions.iceberg.columns import projected, spark_schema
from airflow_provider.extensions.iceberg.planner import Planner
from airflow_provider.extensions.iceberg.reading import read_files
from airflow_provider.extensions.iceberg.table_options import TableOptions
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT: Final = "spark-stream-iceberg"


class IcebergDataSource(DataSource):
    """A table of Iceberg, without a jar."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from pyiceberg.schema import Schema

        options = TableOptions.from_spark(self.options)
        schema = Schema.model_validate_json(options.schema)
        return spark_schema(projected(schema, options.columns, options.name), options.name)

    def reader(self, schema: StructType) -> DataSourceReader:
        return TableReader(TableOptions.from_spark(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = TableOptions.from_spark(self.options)
        try:
            from airflow_provider.extensions.iceberg.stream import TableStreamReader
        except ImportError:
            raise ConfigError(
                f"{options.name}: an Iceberg table as a stream needs Spark 4.2 or newer; read it "
                "in BATCH mode, or with Iceberg's own jar (format='iceberg')"
            ) from None
        return TableStreamReader(options, schema)


class TableReader(DataSourceReader):
    """Reads the table as of the time when the batch is planned."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        planner = Planner(self._options)
        try:
            return [InputPartition(task) for task in planner.whole()]
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; none of what Spark makes of no task at all."""
        if partition.value is None:
            return iter(())
        return read_files(partition.value, self._options, self._schema)
