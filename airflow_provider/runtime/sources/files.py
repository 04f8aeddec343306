"""Files as a source: how they are listed, limited, ordered and found, and where they end."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider.runtime.api.sources import BEGINNING, LATEST, Location
from airflow_provider.runtime.errors import AbsentInputError, ConfigError
from airflow_provider.runtime.errors.explanation import Explanation
from airflow_provider.runtime.errors.redaction import redact
from airflow_provider.runtime.failures.messages import absent_input
from airflow_provider.runtime.jobdir.datasets import folder_dataset
from airflow_provider.runtime.sources.csv_options import with_header_check
from airflow_provider.runtime.sources.file_stream import files_end
from airflow_provider.runtime.sources.path_patterns import (
    can_glob,
    escaped,
    even_if_missing,
    exists,
    globbed,
    is_pattern,
)
from airflow_provider.runtime.sources.spark import reader_of, shown_end, why_not_moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.sinks import Dataset
    from airflow_provider.runtime.api.sources import PlannedSource, Start
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd

FILE_FORMATS: Final = frozenset(
    {"avro", "binaryfile", "csv", "json", "orc", "parquet", "text", "xml"}
)
"""Spark's formats of files."""
MODIFIED: Final = "modified"
NAME: Final = "name"
READ_ORDERS: Final = (MODIFIED, NAME)
MAX_AGE: Final = "maxFileAge"
ANY_AGE: Final = "36500d"
"""Spark passes over files that are a week older than the newest that it has read, and counts none.

A later run would never read what arrives with an old modification time, or after a file of the
future.
"""
FIRST_BYTES_PER_S: Final = 256 * 1024
"""Of the first batch: a job of 1 ms a row takes a few times the target."""

_LIMITS: Final = frozenset({"maxfilespertrigger", "maxbytespertrigger", "latestfirst"})
_OF_NAMES: Final = "pathglobfilter"
_FILTER: Final = "pathGlobFilter"
_NOTHING: Final = ".spark-stream-nothing"  # what is read of a source that has ended
_CONTRARY: Final = frozenset({"latestfirst", "maxfileage"})
_KNOWN_ENDS: Final = "'latest' or a datetime"


@dataclasses.dataclass(frozen=True)
class FilesSource:
    """The files of a folder, or of those that a pattern matches, each of which is read once.

    Attributes:
        format: one of :data:`FILE_FORMATS`, in any case of letters.
        path: the folder, the file, or Hadoop's pattern.
        schema: as for ``DataStreamReader.schema``.
        options: the reader's.
        order: in which order several batches read the files: :data:`MODIFIED`, by their times, or
            :data:`NAME`, by their paths as text.
        first_limit: the options of a limit that the job did not ask for.
        records: how records that cannot be read are told from others; None leaves it to Spark.
        may_be_missing: whether the folder may be made later.
        is_output: whether a query of the job writes there: the path is then no pattern.
        has_ended: whether it is read no more.
        only: in BATCH, the addresses of the files to read, as Spark's log has them; None for all.
    """

    format: str
    path: str | None
    schema: StructType | str | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: str = MODIFIED
    first_limit: Mapping[str, str] = dataclasses.field(default_factory=dict)
    records: Any = None
    may_be_missing: bool = False
    is_output: bool = False
    has_ended: bool = False
    only: tuple[str, ...] | None = None

    @property
    def kind(self) -> str:
        return self.format.lower()

    @property
    def same_rows_in_batch(self) -> Literal[True]:
        return True

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        own = (
            with_header_check(self.kind, self.options)
            if self.records is None
            else self.records.read_options()
        )
        is_chosen = self.only is not None and not streaming
        path, more = self._chosen(self.only or ()) if is_chosen else self._address(spark)
        reader = reader_of(spark, name, streaming=streaming).format(
            self.format if self.records is None else self.records.line_format
        )
        lifted = self._lifted(streaming=streaming)
        reader = reader.options(**{**own, **self.first_limit, **lifted, **more})
        if self.records is not None:
            df: DataFrame = self.records.load(reader, path)
            return df
        asked: Any = reader if self.schema is None else reader.schema(self.schema)
        loaded: DataFrame = asked.load(path)
        return loaded

    def location(self) -> Location:
        lower = {key.lower(): redact(str(value)) for key, value in self.options.items()}
        return Location(self.path, {key: lower[key] for key in lower if key == _OF_NAMES})

    def datasets(self) -> Sequence[Dataset]:
        path = self.path or self._option("path")
        return (folder_dataset(path),) if path is not None else ()

    def why_not_start(self, wanted: Start) -> str | None:
        if wanted == BEGINNING:
            return None
        return (
            "Spark's file source begins with all files of its folder, and refuses modifiedAfter; "
            "leave starts out, and give a folder that has only the files to read"
        )

    def starting(self, wanted: Start) -> FilesSource:
        del wanted  # which is the beginning
        return self

    def sized(self, target_s: float) -> FilesSource:
        given = {k.lower() for k, v in self.options.items() if str(v).lower() != "false"}
        if given & _LIMITS:
            return self
        limit = {"maxBytesPerTrigger": str(max(round(target_s * FIRST_BYTES_PER_S), 1))}
        return dataclasses.replace(self, first_limit=limit)

    def with_records(self, records: Any) -> FilesSource:
        return dataclasses.replace(self, records=records)

    def why_not_end(self, wanted: Any) -> str | None:
        if isinstance(wanted, dt.datetime):
            return why_not_moment(wanted)
        if isinstance(wanted, Mapping):
            return "it has no topics and partitions; leave ends out"
        return None if wanted == LATEST else f"ends={shown_end(wanted)} is not {_KNOWN_ENDS}"

    def end(self, planned: PlannedSource, wanted: Any) -> SourceEnd | None:
        return files_end(planned, wanted)

    def check_order(self, name: str, *, bounded: bool) -> None:
        """Refuse an order in which the files cannot be read."""
        where = f"source {name!r} ({self.kind}): read_order={self.order!r}"
        if self.order not in READ_ORDERS:
            raise ConfigError(f"{where}: use one of {', '.join(map(repr, READ_ORDERS))}")
        if self.order == MODIFIED:
            return
        if not bounded:
            raise ConfigError(
                f"{where}: only of a source that ends all files are known at once; add bounded=True"
            )
        contrary = [key for key in self.options if key.lower() in _CONTRARY]
        if contrary:
            raise ConfigError(f"{where}: it goes by names alone; leave option {contrary[0]} out")

    def check_matches(self, spark: SparkSession, name: str, *, bounded: bool) -> None:
        """Refuse a pattern without a match, one that names a folder, or one that matches twice.

        Spark reads no rows for the first two, and the rows of the last one twice.
        """
        if self.path is None or self.is_output or not is_pattern(self.path):
            return
        where = f"source {name!r} ({self.format} at {self.path})"
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
        if bounded and not found:
            what = f"{where}: no file matches"
            error = AbsentInputError(what)
            error.explanation = Explanation(what=what, source=name, remedy=absent_input(self.path))
            raise error

    def cleaning(self) -> str | None:
        """Return the option ``cleanSource`` as text; None if Spark leaves the files alone."""
        value = self._option("cleansource") or "off"
        return f"cleanSource={value!r}" if value.lower() != "off" else None

    def _option(self, name: str) -> str | None:
        return next((str(v) for k, v in self.options.items() if k.lower() == name), None)

    def _address(self, spark: SparkSession) -> tuple[str | list[str] | None, dict[str, str]]:
        """Return the path to load, and the options that it needs."""
        if self.path is None:
            return None, {}
        if self.has_ended:
            folder = escaped(self.path) if self.is_output else self.path
            nothing = f"{folder}/[{_NOTHING[0]}]{_NOTHING[1:]}"
            # Without a pattern the folder is listed, and all names in it are passed over.
            return (nothing, {}) if can_glob(spark, nothing) else (folder, {_FILTER: _NOTHING})
        if self.is_output or self.may_be_missing:
            return even_if_missing(spark, self.path), {}
        return self.path, {}

    def _chosen(self, files: Sequence[str]) -> tuple[str | list[str] | None, dict[str, str]]:
        if not files:
            return self.path, {_FILTER: _NOTHING}
        # Spark looks for columns of partitions below it.
        path = self.path or ""
        base = {} if is_pattern(path) or self._option("basepath") else {"basePath": path}
        return [escaped(urllib.parse.unquote(address)) for address in files], base

    def _lifted(self, *, streaming: bool) -> dict[str, str]:
        """Return the options that replace defaults of Spark's by which it leaves out input."""
        is_given = self._option(MAX_AGE.lower()) is not None
        return {} if is_given or not streaming else {MAX_AGE: ANY_AGE}
