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
FILE_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
UNKNOWN_FORMAT: Final = "unknown"  # of a stream that the job opened without ``ctx.read``

# Of the first batch, before anything is known: a job of 1 ms a row takes a few times the target.
FIRST_BYTES_PER_S: Final = 256 * 1024
FIRST_ROWS_PER_S: Final = 2_000
_FILE_LIMITS: Final = frozenset({"maxfilespertrigger", "maxbytespertrigger", "latestfirst"})
_KAFKA_LIMITS: Final = frozenset({"maxoffsetspertrigger", "minoffsetspertrigger"})


@dataclasses.dataclass(frozen=True)
class SourceDefinition:
    """What ``ctx.read`` was called with.

    Attributes:
        watermark: event-time column and the delay after which rows are late, or None.
        is_internal: whether another query of the job writes what it reads.
        paced: whether the size of its batches may be fitted to a target time.
        target_s: the time that the run asks batches to take; None if it does not.
    """

    name: str
    format: str
    path: str | None
    schema: StructType | str | None
    options: Mapping[str, str]
    bounded: bool
    watermark: tuple[str, str] | None
    is_internal: bool = False
    paced: bool = True
    target_s: float | None = None

    @property
    def has_first_limit(self) -> bool:
        """Tell whether its first batch has a limit that the job did not ask for."""
        return bool(self._first_limit())

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
        reader = reader.option(SOURCE_OPTION, self.name).options(**self._first_limit())
        if self.schema is not None:
            reader = reader.schema(self.schema)
        path = self.path
        if path is not None and self.is_internal and self.format in FILE_FORMATS:
            path = _even_if_missing(path)
        df = reader.load(path) if path is not None else reader.load()
        if self.watermark is not None:
            df = df.withWatermark(*self.watermark)
        return df

    def _first_limit(self) -> dict[str, str]:
        """Return the option that limits the first batch, where batches are to take a target time.

        None where the job has a limit of its own; nor where files are read newest first, since with
        a limit Spark no longer passes over files that are too old for it.
        """
        if not self.target_s or not self.paced:
            return {}
        given = {
            key.lower() for key, value in self.options.items() if str(value).lower() != "false"
        }
        if self.format.lower() in FILE_FORMATS and not given & _FILE_LIMITS:
            return {"maxBytesPerTrigger": str(max(round(self.target_s * FIRST_BYTES_PER_S), 1))}
        if self.format.lower() == "kafka" and not given & _KAFKA_LIMITS:
            return {"maxOffsetsPerTrigger": str(max(round(self.target_s * FIRST_ROWS_PER_S), 1))}
        return {}

    def _explain(self, error: Any) -> str:
        where = f" at {self.path}" if self.path is not None else ""
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        return f"source {self.name!r} ({self.format}{where}) cannot be read: {first[:300]}"


def _even_if_missing(path: str) -> str:
    """Return a pattern that matches this folder alone.

    Spark refuses to stream from a folder that is not there, which another query of the job has yet
    to make; a pattern may match nothing for a while.
    """
    folder, slash, name = path.rstrip("/").rpartition("/")
    return f"{folder}{slash}[{name[0]}]{name[1:]}"
