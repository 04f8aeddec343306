"""One-phase outputs: ``spark_sink``, ``for_each_batch``, ``foreach`` and catalog tables."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    Fence,
    IsGarbage,
    LocatedSink,
    Staged,
)
from airflow_provider.runtime.base.names import name_of, numbers_in
from airflow_provider.runtime.errors import CheckpointError, ConfigError
from airflow_provider.runtime.errors.explanation import definition_of
from airflow_provider.runtime.errors.redaction import shown_address
from airflow_provider.runtime.jobdir.datasets import datasets_of
from airflow_provider.runtime.jobdir.epoch_documents import (
    NOTHING_COUNTED,
    TapCount,
    add_each,
    add_rows,
)
from airflow_provider.runtime.sinks.columns import check_columns
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.open import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from airflow_provider.runtime.api.sinks import Dataset, NamedSink, OnePhaseSink


SPARK_LOG: Final = "_spark_metadata"
"""The folder in which Spark's file sink lists what each batch has written."""
_FILES: Final = (
    "exactly once for readers that honour the folder's _spark_metadata, as Spark does; every other "
    "reader also sees files of batches that failed"
)
GUARANTEES: Final[Mapping[str, str]] = {
    "parquet": _FILES,
    "json": _FILES,
    "csv": _FILES,
    "orc": _FILES,
    "text": _FILES,
    "kafka": "at least once: a batch that runs again is written again",
    "console": "for looking on",
    "memory": "for looking on; gone with the driver",
    "noop": "writes nothing",
}
_BUILT_IN: Final = frozenset({"foreach", "memory"})
ROWS_OUT: Final = "spark-stream rows out"
"""What is observed of a query with a sink that does not count."""
_DROPPED: Final = "numRowsDroppedByWatermark"
_UNKNOWN: Final = "what its connector promises; a batch that runs again is given to it again"


def spark_sink(
    format: str, options: Mapping[str, str] | None = None, partition_by: Sequence[str] = ()
) -> SparkSink:
    """Write a query with one of Spark's own sinks.

    Rows are visible when Spark writes them, which is before the batch has committed, before
    ``on_finish`` is called, and without regard to the lease. They cannot be reverted, and are
    counted in the attempt that writes them only. Such a query has this one sink.

    Args:
        format: ``parquet``, ``kafka``, ``console`` or any other that Spark can stream to.
        options: of Spark's writer; ``path`` for files.
        partition_by: columns, for a format that has partitions.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    return SparkSink(format, dict(options or {}), columns)


class SparkSink:
    """An output of one of Spark's own formats, made by :func:`spark_sink`."""

    api_version = 1

    def __init__(
        self, file_format: str, options: dict[str, str], partition_by: tuple[str, ...] = ()
    ) -> None:
        self._format = file_format
        self._options = options
        self._partition_by = partition_by

    @property
    def location(self) -> str | None:
        """The folder that it writes; None when it has none."""
        return self._options.get("path")

    @property
    def holds_files(self) -> bool:
        """Whether it writes files into a folder, rather than to a table or a server."""
        return GUARANTEES.get(self._format) is _FILES

    def counted(self, df: DataFrame) -> DataFrame:
        """Return *df*, whose rows Spark counts for a sink that does not."""
        from pyspark.sql import functions as sf

        is_counted = not self.holds_files and self._format in GUARANTEES
        return df if is_counted else df.observe(ROWS_OUT, sf.count(sf.lit(1)).alias("rows"))

    @property
    def provider(self) -> str | None:
        """The format whose connector Spark looks for; None for a built-in one."""
        return self._format if self._format and self._format not in _BUILT_IN else None

    @property
    def name(self) -> str:
        path = self._options.get("path") or self._options.get("topic")
        return f"spark:{self._format}" + (f":{shown_address(path)}" if path else "")

    def datasets(self) -> tuple[Dataset, ...]:
        return datasets_of(self._format, self._options)

    @property
    def guarantee(self) -> str:
        return GUARANTEES.get(self._format, _UNKNOWN)

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse files without a path, in another output mode than append, or of such columns."""
        if not self.holds_files:
            return
        if "path" not in self._options:
            raise ConfigError(f"{self.name}: where to? spark_sink({self._format!r}, {{'path': …}})")
        if output_mode != "append":
            raise ConfigError(
                f"{self.name}: files can only be added to; output_mode must be 'append'"
            )
        check_columns(self.name, df, self._format, self._partition_by)

    def check_not_ahead(self, planned: int) -> None:
        """Refuse a folder whose list of files is ahead of the checkpoint.

        Spark's file sink knows a batch by its number alone: it would silently skip the query's next
        batches, and their rows would be lost. *planned* is the checkpoint's last planned batch; -1
        for none.
        """
        path = self.location
        if path is None or not self.holds_files or (last := _last_listed(path)) <= planned:
            return
        has = f"has planned none after {planned}" if planned >= 0 else "is new"
        raise CheckpointError(
            f"{self.name}: {SPARK_LOG} lists the files of batch {last}, and the query's checkpoint "
            f"{has}: another job directory has written there, or this one is an older copy, and "
            "Spark would leave out the rows of each batch up to that one. Put the newer directory "
            "back, or write to a new folder, which then has only the rows of later batches"
        )

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        writer = writer.format(self._format).options(**self._options)
        return writer.partitionBy(*self._partition_by) if self._partition_by else writer


def _last_listed(path: str) -> int:
    local = local_path_of(path)
    storage = open_objects(path) if local is None else LocalStorage(local)
    names = storage.list(SPARK_LOG) if storage is not None else []
    return max(numbers_in(name.removesuffix(".compact") for name in names), default=-1)


class Observed(Protocol):
    """A location whose rows Spark's report of a batch counts."""

    @property
    def name(self) -> str:
        """Its name in the report."""

    def count_reported(self, metrics: Mapping[str, Any]) -> TapCount:
        """Return the count of one batch."""


class ReportedRows:
    """The rows of an attempt with a sink of Spark's, which publishes alone, by Spark's reports."""

    def __init__(
        self, sink: OnePhaseSink, taps: Sequence[Observed] = (), sources: Sequence[str] = ()
    ) -> None:
        self.sink = sink
        self._taps = taps
        self._sources = sources
        self._read = 0
        self._written: int | None = 0
        self._late: dict[str, int] = {}
        self._source_rows: dict[str, int] = {}
        self._tap_rows: dict[str, dict[str, Any]] = {}

    def batch_ran(self, progress: Mapping[str, Any]) -> None:
        """Count a batch by Spark's report.

        Sinks of Spark's first interface count no rows: -1. What they got is observed.
        """
        self._read += progress.get("numInputRows") or 0
        observed = progress.get("observedMetrics") or {}
        written = (progress.get("sink") or {}).get("numOutputRows", -1)
        written = observed.get(ROWS_OUT, {}).get("rows", -1) if written < 0 else written
        self._written = None if written < 0 else add_rows(self._written, written)
        dropped = (op.get(_DROPPED, 0) for op in progress.get("stateOperators", ()))
        self._late = add_each(self._late, {str(n): rows for n, rows in enumerate(dropped)}) or {}
        for name, source in zip(self._sources, progress.get("sources", ()), strict=False):
            rows = source.get("numInputRows") or 0
            self._source_rows = add_each(self._source_rows, {name: rows}) or {}
        for tap in self._taps:
            if tap.name in observed:
                count = tap.count_reported(observed[tap.name])
                self._tap_rows[tap.name] = count.after(self._tap_rows.get(tap.name)).to_dict()

    def run_rows(self, sink_name: str) -> int | None:
        """Return the rows that this attempt has written; None where Spark's sink counts none."""
        del sink_name  # there is one
        return self._written

    def late_rows(self) -> dict[str, int]:
        """Return what Spark says that this attempt has dropped as late, by operator."""
        return self._late

    def late_is_minimum(self) -> bool:
        return True

    def rows_read(self) -> int:
        return self._read

    def lost_rows(self) -> None:
        """Return None: Spark does not report them."""

    def totals(self) -> dict[str, Any]:
        """Return the counts of this attempt, as the record of an epoch names them."""
        known = {"rows_read": self._read, "late_rows": self._late, "late_minimum": bool(self._late)}
        counted = {"source_rows": self._source_rows, "taps": self._tap_rows}
        return {**NOTHING_COUNTED, **known, **counted}


_ROWS: Final = "at least once: the rows of a batch that runs again are given to it again"
_TABLE: Final = (
    "what its table promises; in a table of files exactly once for Spark, which honours the "
    "folder's _spark_metadata"
)


class ForeachSink(SparkSink):
    """Spark's ``foreach``: a function, or an object with ``process``, gets each row."""

    def __init__(self, function: Any) -> None:
        super().__init__("foreach", {})
        self._function = function
        self._called = name_of(function)

    @property
    def name(self) -> str:
        return f"foreach:{self._called}"

    @property
    def guarantee(self) -> str:
        return _ROWS

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept every output mode: it is the function's business."""

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        return writer.foreach(self._function)


class TableSink(SparkSink):
    """Spark's ``toTable``: a table of the session's catalog, which is made when it is missing."""

    def __init__(
        self,
        table: str,
        file_format: str | None,
        options: Mapping[str, str],
        partition_by: Sequence[str],
    ) -> None:
        super().__init__(file_format or "", dict(options), tuple(partition_by))
        self._table = table

    @property
    def name(self) -> str:
        return f"table:{self._table}"

    @property
    def guarantee(self) -> str:
        return _TABLE

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept: Spark asks the table when the query starts."""

    def attach(self, writer: DataStreamWriter) -> DataStreamWriter:
        writer = writer.options(**self._options)
        if self._format:
            writer = writer.format(self._format)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        table = self._table

        def start() -> StreamingQuery:
            return writer.toTable(table)

        writer.start = start  # type: ignore[assignment,method-assign]  # of this object alone
        return writer


log = logging.getLogger(__name__)

WriteBatch = Callable[["DataFrame", int], Any]
GUARANTEE: Final = (
    "at least once: a batch that runs again is given to it again, with the same rows and number; "
    "exactly once if it writes a number that it has written before only once"
)


def for_each_batch(function: WriteBatch, name: str | None = None) -> ForEachBatchSink:
    """Give each epoch of a query to a function, as Spark's ``foreachBatch`` does.

    At least once: the function runs inside the batch, before Spark commits it. If the driver dies
    before the commit, the next attempt calls it again with the same rows and the same number. It is
    exactly once when the function is idempotent by that number, such as a MERGE, or a table that
    remembers the numbers that it has. Numbers grow by one, and continue after a plain checkpoint
    was adopted.

    The rows are visible immediately, before ``on_finish``; they are not counted and cannot be
    reverted. A job with such a sink runs in STREAMING.

    Args:
        function: called as ``function(df, epoch)``; it has to read *df*, or the query's state does
            not advance.
        name: the sink's name; the function's own name by default.
    """
    return ForEachBatchSink(function, name)


class _NothingStaged:
    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        pass

    def commit(self, committable: Committable, fence: Fence) -> None:
        pass

    def abort(self, committable: Committable) -> None:
        pass


class ForEachBatchSink(_NothingStaged):
    """See :func:`for_each_batch`, which makes one."""

    api_version = 1

    shows_staged = True
    """BATCH does not run it: all rows would be one batch."""

    def __init__(self, function: WriteBatch, name: str | None = None) -> None:
        self._function: Any = function
        self._name = name or name_of(function)

    @property
    def name(self) -> str:
        return f"for_each_batch:{self._name}"

    @property
    def line(self) -> str:
        """The line where the function begins; empty for one of a library."""
        return definition_of(self._function)

    @property
    def guarantee(self) -> str:
        return GUARANTEE

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what cannot be called; every output mode is the function's business."""
        del df, output_mode
        if not callable(self._function):
            raise ConfigError(
                f"{self.name}: {self._function!r} is no function; give one of (df, epoch)"
            )

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        log.debug("query=%s batch=%d sink=%s", epoch.query, epoch.epoch, self.name)
        self._function(df, epoch.epoch)
        return Staged(data={}, rows=None)


class DiscardSink(_NothingStaged):
    """Replaces a sink that must not be written; the query's state advances all the same."""

    api_version = 1

    def __init__(self, replaced: NamedSink) -> None:
        self._name = f"discarded:{replaced.name}"
        self.location = replaced.location if isinstance(replaced, LocatedSink) else None
        self.holds_files = isinstance(replaced, LocatedSink) and replaced.holds_files

    @property
    def name(self) -> str:
        return self._name

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Accept every query."""

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        del epoch
        return Staged(data={}, rows=df.count())
