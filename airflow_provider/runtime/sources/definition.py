"""A source of a job: a Spark reader with a stable name."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

# Carries the source's name into Spark's plan, where offsets and metrics are found again by it.
SOURCE_OPTION: Final = "spark-stream.source"
UNKNOWN_FORMAT: Final = "unknown"  # of a stream that the job opened without ``ctx.read``


@dataclasses.dataclass(frozen=True)
class SourceDefinition:
    """What ``ctx.read`` was called with.

    Attributes:
        watermark: event-time column and the delay after which rows are late, or None.
    """

    name: str
    format: str
    path: str | None
    schema: StructType | str | None
    options: Mapping[str, str]
    bounded: bool
    watermark: tuple[str, str] | None

    @property
    def is_known(self) -> bool:
        """Tell whether ``ctx.read`` has opened the source."""
        return self.format != UNKNOWN_FORMAT

    def load(self, spark: SparkSession, *, streaming: bool = True) -> DataFrame:
        """Return the source as a streaming DataFrame, or as a static one.

        Raises:
            ConfigError: Spark cannot read it: no such path, format, schema or column.
        """
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException, IllegalArgumentException

        try:
            return self._load(spark.readStream if streaming else spark.read)
        except (AnalysisException, IllegalArgumentException, Py4JJavaError) as error:
            raise ConfigError(self._explain(error)) from error

    def _load(self, reader: DataStreamReader | DataFrameReader) -> DataFrame:
        reader = reader.format(self.format).options(**self.options)
        reader = reader.option(SOURCE_OPTION, self.name)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        df = reader.load(self.path) if self.path is not None else reader.load()
        if self.watermark is not None:
            df = df.withWatermark(*self.watermark)
        return df

    def _explain(self, error: Any) -> str:
        where = f" at {self.path}" if self.path is not None else ""
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return f"source {self.name!r} ({self.format}{where}) cannot be read: {first[:300]}"
