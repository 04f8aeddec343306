"""Declaration of a source by a job: its name, and how it is read."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import (
    EndingSource,
    Location,
    SizedSource,
    TimedSource,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.end_of_input import marker_name
from airflow_provider.runtime.sources.files import MODIFIED, NAME, FilesSource
from airflow_provider.runtime.sources.locations import ReadLocation
from airflow_provider.runtime.sources.markers import with_markers
from airflow_provider.runtime.sources.path_patterns import exists
from airflow_provider.runtime.sources.reading import unreadable
from airflow_provider.runtime.sources.spark import TABLE, SparkSource, reader_of, shown_end

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.api.sources import Source, Start

_FILES: Final = "files"
_OWN: Final = "spark-stream-"  # before the format of our reader of what a connector reads, too
EndOption = Any
"""A value of ``ends=``: ``"latest"``, a datetime, or one that the source knows."""


@dataclasses.dataclass(frozen=True)
class SourceBinding:
    """The way a source is read in one query at one time; *markers* is the folder of its markers."""

    markers: str | None = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class ForeignSource:
    """A stream that the job opened without ``ctx.read``."""

    kind: str = "unknown"

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        raise NotImplementedError(f"{name}: the job has read it itself ({spark}, {streaming})")

    def location(self) -> Location:
        return Location(None)


@dataclasses.dataclass(frozen=True)
class SourceDefinition:
    """A source as ``ctx.read`` was called."""

    name: str
    source: Source
    bounded: bool
    watermark: tuple[str, str] | None = None
    is_internal: bool = False
    adaptive_batches: bool = True
    target_s: float | None = None
    idle_timeout_s: float | None = None
    markers: str | None = None
    ended: bool = False
    ends: EndOption | None = None
    starts: Start | None = None
    records: Any = None  # how records that cannot be read are told from others
    without_rejected: Callable[[DataFrame], DataFrame] | None = None
    also: SourceDefinition | None = None  # corrected records, a source of its own in the checkpoint

    @property
    def kind(self) -> str:
        return self.source.kind

    @property
    def kind_of_position(self) -> str | None:
        """Return what a position of it is one of; None where its kind does not tell."""
        if self.files is not None:
            return _FILES
        return None if self.kind == TABLE or not self.is_known else self.kind.removeprefix(_OWN)

    @property
    def files(self) -> FilesSource | None:
        return self.source if isinstance(self.source, FilesSource) else None

    @property
    def path(self) -> str | None:
        """Return the path as the job gives it, if the source has one; no service is asked."""
        return getattr(self.source, "path", None)

    @property
    def folder(self) -> str | None:
        """Return the path or pattern of a source of files."""
        return self.files.path if self.files is not None else None

    @property
    def options(self) -> Mapping[str, str]:
        """Return the options of Spark's reader, as far as the source has some."""
        found = getattr(self.source, "options", None)
        return found if isinstance(found, Mapping) else {}

    @property
    def spark_options(self) -> Mapping[str, str]:
        """Return the options that Spark or its connector reads."""
        source = self.source
        is_read = isinstance(source, FilesSource) or (
            isinstance(source, SparkSource) and source.has_spark_options
        )
        return self.options if is_read else {}

    @property
    def is_by_name(self) -> bool:
        """Whether its files are read by their names."""
        return self.files is not None and self.files.order == NAME

    @property
    def has_first_limit(self) -> bool:
        return self._sized() is not self.source

    @property
    def is_known(self) -> bool:
        return not isinstance(self.source, ForeignSource)

    @property
    def reads(self) -> ReadLocation:
        return ReadLocation.of(self.name, self.source)

    def load(self, spark: SparkSession, *, streaming: bool = True) -> DataFrame:
        """Return the source as a streaming DataFrame, or as a static one."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import AnalysisException, IllegalArgumentException

        try:
            return self._load(spark, streaming=streaming)
        except (AnalysisException, IllegalArgumentException, Py4JJavaError) as error:
            raise unreadable(error, "source", self.name, self.kind, self.path) from error

    def _load(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        df = self._read(spark, streaming=streaming)
        also = self.also
        if also is not None and (streaming or exists(spark, str(also.folder))):
            corrected = also._read(spark, streaming=streaming)
            # Of records only the source may have columns of its folders' names.
            df = df.unionByName(corrected, allowMissingColumns=self.records is not None)
        if self.without_rejected is not None:
            df = self.without_rejected(df)
        if self.watermark is None:
            return df
        if self.markers is None or not streaming:
            return df.withWatermark(*self.watermark)
        markers = reader_of(spark, marker_name(self.name), streaming=True)
        return with_markers(df, markers, self.markers, self.watermark)

    def _read(self, spark: SparkSession, *, streaming: bool) -> DataFrame:
        source = self._sized()
        if isinstance(source, FilesSource):
            source = dataclasses.replace(source, is_output=self.is_internal, has_ended=self.ended)
        df = source.load(spark, self.name, streaming=streaming)
        if streaming:
            self.timed_end()  # which shows that the service can be asked
        return df

    def check_matches(self, spark: SparkSession) -> None:
        """Refuse a pattern of files that matches none, a folder's name, or a file twice."""
        if self.files is not None:
            files = dataclasses.replace(self.files, is_output=self.is_internal)
            files.check_matches(spark, self.name, bounded=self.bounded)

    def timed_end(self) -> Mapping[str, Mapping[str, int]] | None:
        if not isinstance(self.ends, dt.datetime) or not isinstance(self.source, TimedSource):
            return None
        return self.source.end_at(self.name, self.ends)

    def with_records(self, records: Any) -> SourceDefinition:
        source: Any = self.source
        return dataclasses.replace(self, records=records, source=source.with_records(records))

    def of_its_markers(self) -> SourceDefinition:
        return dataclasses.replace(
            self,
            name=marker_name(self.name),
            source=FilesSource("json", self.markers),
            records=None,
            adaptive_batches=False,
        )

    def _sized(self) -> Source:
        if self.target_s and self.adaptive_batches and isinstance(self.source, SizedSource):
            return self.source.sized(self.target_s)
        return self.source


def check_order(declared: SourceDefinition, order: str) -> None:
    """Refuse a read order that the source cannot have."""
    if declared.files is not None:
        declared.files.check_order(declared.name, bounded=declared.bounded)
    elif order != MODIFIED:
        raise ConfigError(
            f"source {declared.name!r} ({declared.kind}): read_order={order!r}: only files have "
            "names; leave it out"
        )


def check_end(declared: SourceDefinition) -> None:
    """Refuse an end at which the source cannot end."""
    ends, source = declared.ends, declared.source
    if ends is None:
        return
    why = f"ends={shown_end(ends)}: it cannot be asked for its end; leave ends out"
    if isinstance(source, EndingSource):
        why = source.why_not_end(ends) or ""
    if declared.is_internal:
        why = "it ends with the query of the job that writes it; leave ends out"
    if not declared.bounded:
        why = f"ends={shown_end(ends)} is of a source that ends; add bounded=True"
    if why:
        raise ConfigError(f"source {declared.name!r} ({declared.kind}): {why}")
