"""A source by the name of Spark's format: the stream itself is asked what it can."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from airflow_provider.runtime.api.sources import LATEST, SOURCE_OPTION, Location
from airflow_provider.runtime.checkpoint.source_end import (
    NO_OFFSET,
    is_by_partition,
    missing_partitions,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.redaction import redact
from airflow_provider.runtime.jobdir.datasets import folder_dataset
from airflow_provider.runtime.sources.file_stream import files_end, is_file_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sinks import Dataset
    from airflow_provider.runtime.api.sources import PlannedSource, RecordedEnd

TABLE: Final = "table"  # its path is a name in the session's catalog
EVENT_TIME: Final = "spark.watermarkDelayMs"
"""Spark's mark of a column of event time that has a watermark, in the column's metadata."""
_KNOWN_ENDS: Final = (
    "'latest', a datetime, or offsets from 0 on by topic and partition such as {'topic': {'0': 9}}"
)
_SHOWN_CHARS: Final = 60

# Options that say from where on, how fast or how, and not what is read.
_HOW: Final = ("starting", "ending", "max", "min", "fail", "fetch", "group", "latest", "clean")
_HOW_EXACTLY: Final = frozenset({"includeheaders", "kafkaconsumer.polltimeoutms"})


def reader_of(
    spark: SparkSession, name: str, *, streaming: bool
) -> DataStreamReader | DataFrameReader:
    """Return Spark's reader of a source with this name."""
    reader = spark.readStream if streaming else spark.read
    return reader.option(SOURCE_OPTION, name)


@dataclasses.dataclass(frozen=True)
class SparkSource:
    """A source of Spark's, of a connector's, or one in Python that the job has registered.

    Attributes:
        format: as for ``DataStreamReader.format``, in any case of letters.
        path: for those that have one.
        schema: as for ``DataStreamReader.schema``.
        options: the reader's.
    """

    format: str
    path: str | None = None
    schema: StructType | str | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    reports_its_end: ClassVar[bool] = False
    """Whether the answer of its stream is all its input, also where no end is asked for."""
    has_spark_options: ClassVar[bool] = True
    """Whether Spark, or its connector, reads the options."""
    has_partitions: ClassVar[bool] = True
    """Whether its offsets may be numbers by topic and partition."""

    @property
    def kind(self) -> str:
        return self.format.lower()

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        reader = reader_of(spark, name, streaming=streaming).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        if self.kind == TABLE:
            return reader.table(str(self.path))
        return reader.format(self.format).load(self.path)

    def location(self) -> Location:
        lower = {key.lower(): redact(str(value)) for key, value in self.options.items()}
        telling = {
            key: value
            for key, value in lower.items()
            if not key.startswith(_HOW) and key not in _HOW_EXACTLY
        }
        return Location(self.path, telling)

    def datasets(self) -> Sequence[Dataset]:
        path = self.path or next((v for k, v in self.options.items() if k.lower() == "path"), None)
        return (folder_dataset(path),) if path is not None and "/" in path else ()

    def why_not_end(self, wanted: Any) -> str | None:
        if isinstance(wanted, dt.datetime):
            return "only files and Kafka end at a time; give offsets, or ends='latest'"
        if isinstance(wanted, Mapping):
            if not self.has_partitions:
                return "it has no topics and partitions; leave ends out"
            is_known = _are_offsets(wanted)
        else:
            is_known = wanted == LATEST
        return None if is_known else f"ends={shown_end(wanted)} is not {_KNOWN_ENDS}"

    def end(self, planned: PlannedSource, wanted: Any) -> RecordedEnd | None:
        if is_file_stream(planned.stream):  # of a table in the session's catalog
            return files_end(planned, wanted)
        if isinstance(wanted, Mapping):
            self._check_partitions(planned, wanted)
            return planned.ends_at(json.dumps(wanted, separators=(",", ":")))
        if wanted is None and not self.reports_its_end:
            return None
        asks = planned.keeps_its_end and planned.line != NO_OFFSET
        return planned.ends_at(planned.reach() if asks else planned.line)

    def _check_partitions(
        self, planned: PlannedSource, ends: Mapping[str, Mapping[str, int]]
    ) -> None:
        line = planned.line
        missing = missing_partitions(line, ends) if line != NO_OFFSET else []
        where = f"source {planned.name!r} ({self.kind})"
        if missing is None:
            raise ConfigError(
                f"{where}: its offsets are not by topic and partition ({line}); leave ends out"
            )
        if missing:
            raise ConfigError(
                f"{where}: ends says nothing of {', '.join(missing[:3])}; give it an offset, 0 for "
                "none"
            )


class RateSource(SparkSource):
    """Rows that Spark makes by the clock."""

    reports_its_end = True
    has_partitions = False


class SocketSource(SparkSource):
    """Lines from a socket."""

    has_partitions = False


def shown_end(ends: object) -> str:
    """Return a value of ``ends=`` for a message."""
    text = ends.isoformat() if isinstance(ends, dt.datetime) else repr(ends)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def why_not_moment(moment: dt.datetime) -> str | None:
    """Return why a source that ends at moments cannot end at this one; None if it can."""
    return None if moment.tzinfo is not None else f"ends={shown_end(moment)} needs a time zone"


def _are_offsets(ends: Mapping[Any, Any]) -> bool:
    plain = {topic: dict(p) if isinstance(p, Mapping) else p for topic, p in ends.items()}
    keys = [*plain, *(key for p in plain.values() if isinstance(p, dict) for key in p)]
    if not all(isinstance(key, str) for key in keys) or not is_by_partition(plain):
        return False
    numbers = [offset for partitions in plain.values() for offset in partitions.values()]
    return bool(numbers) and min(numbers) >= 0


def is_registered(spark: SparkSession, name: str) -> bool:
    """Whether a session knows a source written in Python."""
    from py4j.protocol import Py4JError

    try:
        manager = spark._jsparkSession.sessionState().dataSourceManager()
        return bool(manager.dataSourceExists(name))
    except Py4JError:
        return False


def register_source(spark: SparkSession, source: type[DataSource]) -> None:
    """Let a session read a source written in Python, unless it can already."""
    if is_registered(spark, source.name()):
        return
    jvm: Any = spark._jvm
    sessions = jvm.org.apache.spark.sql.SparkSession
    before = sessions.getActiveSession()
    # Spark looks whether the active session has the name, and not this one.
    sessions.setActiveSession(spark._jsparkSession)
    try:
        spark.dataSource.register(source)
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()
