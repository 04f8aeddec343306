"""A source of a job: a Spark reader with a stable name."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import TimedSource
from airflow_provider.runtime.base.extensions import SOURCES, load_known
from airflow_provider.runtime.errors import AbsentInputError, ConfigError
from airflow_provider.runtime.errors.explanation import Explanation
from airflow_provider.runtime.errors.fixes import PACKAGES, set_conf
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.failures.messages import ABSENT_INPUT
from airflow_provider.runtime.jobdir.datasets import (
    CONNECTOR,
    FILE_FORMATS,
    FORMAT,
    KAFKA_FORMATS,
    ReadLocation,
)
from airflow_provider.runtime.jobdir.end_of_input import MARKER_COLUMN, marker_name
from airflow_provider.runtime.queries.csv_options import with_header_check
from airflow_provider.runtime.queries.path_patterns import (
    can_glob,
    escaped,
    even_if_missing,
    exists,
    globbed,
    is_pattern,
)
from airflow_provider.runtime.spark.versions import own_package
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.errors import SparkStreamError


LATEST: Final = "latest"
EndOption = str | dt.datetime | Mapping[str, Mapping[str, int]]
MODIFIED: Final = "modified"
NAME: Final = "name"
MAX_AGE: Final = "maxFileAge"
ANY_AGE: Final = "36500d"
"""Spark passes over files that are a week older than the newest that it has read, and counts none.

A later run would never read what arrives with an old modification time, or after a file of the
future.
"""

# Carries the source's name into Spark's plan, where offsets and metrics are found again by it.
SOURCE_OPTION: Final = "spark-stream.source"
TABLE: Final = "table"  # its path is a name in the session's catalog
UNKNOWN_FORMAT: Final = "unknown"  # of a stream that the job opened without ``ctx.read``

_NOTHING: Final = ".spark-stream-nothing"  # what is read of a source that has ended
_FILTER: Final = "pathGlobFilter"

# Of the first batch, before anything is known: a job of 1 ms a row takes a few times the target.
FIRST_BYTES_PER_S: Final = 256 * 1024
FIRST_ROWS_PER_S: Final = 2_000
_FILE_LIMITS: Final = frozenset({"maxfilespertrigger", "maxbytespertrigger", "latestfirst"})
_KAFKA_LIMITS: Final = frozenset({"maxoffsetspertrigger", "minoffsetspertrigger"})


@dataclasses.dataclass(frozen=True)
class SourceBinding:
    """The way a source is read in one query at one time; *markers* is the folder of its markers."""

    markers: str | None = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class SourceDefinition:
    """A source as ``ctx.read`` was called."""

    name: str
    format: str
    path: str | None
    schema: StructType | str | None
    options: Mapping[str, str]
    bounded: bool
    watermark: tuple[str, str] | None
    is_internal: bool = False
    adaptive_batches: bool = True
    target_s: float | None = None
    idle_timeout_s: float | None = None
    markers: str | None = None
    ended: bool = False
    ends: EndOption | None = None
    read_order: str = MODIFIED
    records: Any = None  # how records that cannot be read are told from others
    without_rejected: Callable[[DataFrame], DataFrame] | None = None
    also: SourceDefinition | None = None  # corrected records, a source of its own in the checkpoint
    may_be_missing: bool = False

    @property
    def has_first_limit(self) -> bool:
        return bool(self._first_limit())

    @property
    def is_known(self) -> bool:
        return self.format != UNKNOWN_FORMAT

    @property
    def reads(self) -> ReadLocation:
        return ReadLocation.of(self.name, self.format, self.path, self.options)

    def load(self, spark: SparkSession, *, streaming: bool = True) -> DataFrame:
        """Return the source as a streaming DataFrame, or as a static one."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException, IllegalArgumentException

        try:
            return self._load(spark, streaming=streaming)
        except (AnalysisException, IllegalArgumentException, Py4JJavaError) as error:
            if lacks_kafka(self.format, error):
                raise missing_source(spark, self.name) from error
            raise _unreadable(error, "source", self.name, self.format, self.path) from error

    def _load(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        df = self._read(spark, streaming=streaming)
        if self.also is not None and (streaming or exists(spark, str(self.also.path))):
            corrected = self.also._read(spark, streaming=streaming)
            # Of records only the source may have columns of its folders' names.
            df = df.unionByName(corrected, allowMissingColumns=self.records is not None)
        if self.without_rejected is not None:
            df = self.without_rejected(df)
        if self.watermark is None:
            return df
        if self.markers is None or not streaming:
            return df.withWatermark(*self.watermark)
        markers = _reader(spark, marker_name(self.name), streaming=True)
        return with_markers(df, markers, self.markers, self.watermark)

    def _read(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        known = self.known_format
        own = with_header_check(self.format, self.options)
        own = own if self.records is None else self.records.read_options()
        options = {**own, **self._first_limit(), **self._lifted(streaming=streaming)}
        if known is not None:
            options = known.complete(options, bounded=self.bounded)
            known.prepare(spark, self.name, options, streaming=streaming)
        reader = _reader(spark, self.name, streaming=streaming)
        lines = self.records.line_format if self.records is not None else None
        reader = reader if self.format == TABLE else reader.format(lines or self.format)
        reader = reader.options(**options)
        if self.schema is not None and self.records is None:
            reader = reader.schema(self.schema)
        path, more = self._address(spark)
        reader = reader.options(**more)
        df: DataFrame
        if lines is not None:
            df = self.records.load(reader, path)
        else:
            df = reader.table(str(path)) if self.format == TABLE else reader.load(path)
        if known is not None:
            known.check(self.name, options, df)
        if streaming:
            self.timed_end()  # which shows that the service can be asked
        return df

    def check_matches(self, spark: SparkSession) -> None:
        """Refuse a pattern without a match, one that names a folder, or one that matches twice.

        Spark reads no rows for the first two, and the rows of the last one twice.
        """
        is_of_files = self.path is not None and self.format.lower() in FILE_FORMATS
        if self.path is None or not (is_of_files and is_pattern(self.path)) or self.is_internal:
            return
        where = f"source {self.name!r} ({self.format} at {self.path})"
        if exists(spark, self.path):
            raise ConfigError(
                f"{where}: a folder has this name, and Spark reads it as a pattern for others; "
                f"write {escaped(self.path)}"
            )
        found = globbed(spark, self.path)
        twice = sorted(path for path, times in collections.Counter(found).items() if times > 1)
        if twice:
            raise ConfigError(
                f"{where}: the pattern matches {twice[0]} more than once; name each folder once"
            )
        if self.bounded and not found:
            what = f"{where}: no file matches"
            error = AbsentInputError(what)
            error.explanation = Explanation(what=what, source=self.name, remedy=ABSENT_INPUT)
            raise error

    @property
    def known_format(self) -> Any:
        kind = self.format.lower()
        return load_known(SOURCES, kind) if kind in SOURCES else None

    def timed_end(self) -> Mapping[str, Mapping[str, int]] | None:
        known = self.known_format
        if not isinstance(self.ends, dt.datetime) or not isinstance(known, TimedSource):
            return None
        return known.end_at(self.name, self.options, self.ends)

    def _address(self, spark: SparkSession) -> tuple[str | None, dict[str, str]]:
        """Return the path to load, and the options that it needs."""
        if self.path is None or self.format.lower() not in FILE_FORMATS:
            return self.path, {}
        if self.ended:
            folder = escaped(self.path) if self.is_internal else self.path
            nothing = f"{folder}/[{_NOTHING[0]}]{_NOTHING[1:]}"
            # Without a pattern the folder is listed, and all names in it are passed over.
            return (nothing, {}) if can_glob(spark, nothing) else (folder, {_FILTER: _NOTHING})
        if self.is_internal or self.may_be_missing:
            return even_if_missing(spark, self.path), {}
        return self.path, {}

    def _lifted(self, *, streaming: bool) -> dict[str, str]:
        """Return the options that replace defaults of Spark's by which it leaves out input."""
        is_given = any(key.lower() == MAX_AGE.lower() for key in self.options)
        if not streaming or is_given or self.format.lower() not in FILE_FORMATS:
            return {}
        return {MAX_AGE: ANY_AGE}

    def of_its_markers(self) -> SourceDefinition:
        return dataclasses.replace(
            self,
            name=marker_name(self.name),
            format="json",
            path=self.markers,
            adaptive_batches=False,
        )

    def _first_limit(self) -> dict[str, str]:
        if not self.target_s or not self.adaptive_batches:
            return {}
        given = {
            key.lower() for key, value in self.options.items() if str(value).lower() != "false"
        }
        if self.format.lower() in FILE_FORMATS and not given & _FILE_LIMITS:
            return {"maxBytesPerTrigger": str(max(round(self.target_s * FIRST_BYTES_PER_S), 1))}
        if self.format.lower() in KAFKA_FORMATS and not given & _KAFKA_LIMITS:
            return {"maxOffsetsPerTrigger": str(max(round(self.target_s * FIRST_ROWS_PER_S), 1))}
        return {}


def load_table(
    spark: SparkSession,
    name: str,
    *,
    file_format: str,
    path: str | None,
    schema: StructType | str | None,
    options: Mapping[str, str] | None,
) -> DataFrame:
    """Return a static table, which is no source of the job: no offset of it is recorded."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import AnalysisException, IllegalArgumentException

    reader = spark.read.format(file_format).options(**(options or {}))
    try:
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(path) if path is not None else reader.load()
    except (AnalysisException, IllegalArgumentException, Py4JJavaError) as error:
        raise _unreadable(error, "initial state", name, file_format, path) from error


def _unreadable(
    error: Exception, what: str, name: str, file_format: str, path: str | None
) -> SparkStreamError:
    where = f" at {shown_address(path)}" if path is not None else ""
    why = classify(error).explanation.what
    message = f"{what} {name!r} ({file_format}{where}) cannot be read: {why}"
    return refusal_of(error, message, source=name)


def _reader(
    spark: SparkSession, name: str, *, streaming: bool
) -> DataStreamReader | DataFrameReader:
    reader = spark.readStream if streaming else spark.read
    return reader.option(SOURCE_OPTION, name)


_IS_MARKER: Final = "__spark_stream_is_marker"
_YES, _NO = True, False


def with_markers(
    df: DataFrame,
    markers: DataStreamReader | DataFrameReader,
    folder: str,
    watermark: tuple[str, str],
) -> DataFrame:
    """Return *df* with its watermark, which the markers in *folder* advance as well."""
    from pyspark.sql import functions as sf

    column = watermark[0].lower()
    # Files that are read are removed; one that is gone when its batch is run again is not missed,
    # since the source is announced again.
    reader = markers.format("json").schema(f"{MARKER_COLUMN} long")
    reader = reader.option("cleanSource", "delete").option("ignoreMissingFiles", "true")
    rows = reader.load(even_if_missing(df.sparkSession, spark_url(folder)))
    values = [
        (sf.timestamp_micros(MARKER_COLUMN) if field.name.lower() == column else sf.lit(None))
        .cast(field.dataType)
        .alias(field.name)
        for field in df.schema
    ]
    both = df.withColumn(_IS_MARKER, sf.lit(_NO)).union(rows.select(*values, sf.lit(_YES)))
    # Spark pushes what it can below the watermark, where a marker would be lost; what depends on
    # the partition it leaves where it is, and all filters above it as well.
    only_rows = sf.when(sf.spark_partition_id() >= 0, ~sf.col(_IS_MARKER))
    return both.withWatermark(*watermark).where(only_rows).drop(_IS_MARKER)


ARTIFACT: Final = "spark-sql-kafka-0-10"


def missing_connector(spark: SparkSession, what: str, instead: str = "") -> ConfigError:
    """Return the refusal of *what* without Spark's connector; *instead* is another fix."""
    package = set_conf(PACKAGES, own_package(spark, ARTIFACT))
    msg = f"{what}: this Spark has no connector for Kafka; run with {package}"
    return ConfigError(f"{msg}, or {instead}" if instead else msg)


def missing_source(spark: SparkSession, name: str) -> ConfigError:
    """Return the refusal of a source that needs Spark's missing connector."""
    instead = (
        f"read with format={FORMAT!r}, which has the same options and needs the extra 'kafka' "
        "instead of a jar"
    )
    return missing_connector(spark, f"source {name!r} ({CONNECTOR})", instead)


def lacks_kafka(source_format: str, error: Exception) -> bool:
    """Whether Spark's error says that it has no connector for Kafka."""
    text = str(error)
    return source_format.lower() == CONNECTOR and (
        "Failed to find data source" in text or "DATA_SOURCE_NOT_FOUND" in text
    )


def is_registered(spark: SparkSession, name: str) -> bool:
    """Whether a session knows a source written in Python."""
    from py4j.protocol import Py4JError

    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Py4JError:
        return False
