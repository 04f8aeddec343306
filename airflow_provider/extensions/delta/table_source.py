"""A Delta table as a source of a job: ``ctx.read`` and plain programs load it by this."""

from __future__ import annotations

import dataclasses
import datetime as dt
import importlib.util
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from airflow_provider.extensions.delta import positions
from airflow_provider.extensions.delta.partition_values import parse_conditions
from airflow_provider.extensions.delta.table_changes import query_schema
from airflow_provider.extensions.delta.table_log import TableLog
from airflow_provider.extensions.delta.table_options import FORMAT, SNAPSHOT, TableOptions
from airflow_provider.extensions.delta.table_planner import TablePlanner
from airflow_provider.runtime.api.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.lineage import folder_dataset
from airflow_provider.runtime.api.kit.sources import (
    reader_of,
    register_source,
    shown_end,
    why_not_moment,
)
from airflow_provider.runtime.api.kit.typed_json import read_json
from airflow_provider.runtime.api.sources import BEGINNING, LATEST, Location

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.extensions.delta.table_options import Start
    from airflow_provider.runtime.api.sinks import Dataset
    from airflow_provider.runtime.api.sources import PlannedSource, RecordedEnd

_LIBRARIES: Final = ("deltalake", "pyarrow")
_FIRST_ROWS_PER_S: Final = 2_000  # of the first batch: a job of 1 ms a row takes twice the target


def delta_table(
    path: str,
    *,
    starts: Start = SNAPSHOT,
    changes: str | None = None,
    columns: Sequence[str] | None = None,
    where: Sequence[tuple[str, str, Any]] | None = None,
    max_files: int | None = None,
    on_gap: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DeltaTableSource:
    """Read a Delta Lake table, each appended row or each change exactly once.

    A batch has the rows that a new stream reads up to then. A stream needs Spark 4.2 or newer, a
    batch 4.0; both need the extra ``delta``, on executors too.

    Args:
        path: the table's folder: a local path or a URL such as ``s3://bucket/table``.
        starts: where a new query starts. ``"snapshot"``: with the table as of its version then,
            and after it the versions that follow. ``"now"``: with the next version. A number: with
            the changes of that version. A datetime with its zone: with the first version that was
            committed then or later. A query that continues starts where it stopped.
        changes: ``"appended rows only"`` skips commits that only delete or update rows;
            without it the query fails at such a commit. Commits that may have inserted rows beside
            (merges, overwrites, restores) are refused in any case. ``"feed"`` reads the table's
            change data feed: each row with ``_change_type``, ``_commit_version`` and
            ``_commit_timestamp``; a snapshot's rows are inserts.
        columns: the columns to read; all by default.
        where: conditions on partition columns, ``(column, operator, value)``, all of which hold
            for the files that are read. Operators are ``=``, ``!=``, ``<``, ``<=``, ``>``, ``>=``,
            ``in`` and ``not in``; null meets only ``("column", "=", None)`` and ``in``.
        max_files: the most files of a batch; no limit by default. A change data feed is limited by
            whole versions.
        on_gap: ``"snapshot"`` restarts from a new snapshot when entries of the log or files
            that are needed next are missing. Rows that were read before are read again. Without it
            the query fails. Not for a change data feed.
        storage_options: what delta-rs needs to reach *path* beyond the environment; secrets.

    Raises:
        ConfigError: an argument is wrong; it is named.
    """
    checked = TableOptions(
        path=str(path),
        starts=starts,
        changes=changes,
        columns=_names(columns),
        where=parse_conditions(where or ()),
        max_files=max_files,
        on_gap=on_gap,
        storage_options={key: str(each) for key, each in (storage_options or {}).items()},
    )
    return DeltaTableSource(checked)


@dataclasses.dataclass(frozen=True)
class DeltaTableSource:
    """See :func:`delta_table`, which makes one."""

    options: TableOptions

    kind: ClassVar[str] = "delta"
    same_rows_in_batch: ClassVar[Literal[True]] = True

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        """Return the table as a streaming DataFrame, or as a static one.

        Args:
            spark: the job's session.
            name: the source's name in the job.
            streaming: whether the table is read as a stream.

        Raises:
            AbsentInputError: there is no table yet.
            ConfigError: a library, a column or a version of Spark is missing, or the table has a
                feature that this source cannot read.
            OutageError: the store does not answer.
        """
        self._check_versions(spark, name, streaming=streaming)
        try:
            self._check_table()
        except SparkStreamError as error:
            raise type(error)(f"source {name!r}: {error}") from error
        from airflow_provider.extensions.delta.table_data_source import DeltaDataSource

        register_source(spark, DeltaDataSource)
        reader = reader_of(spark, name, streaming=streaming)
        return reader.format(FORMAT).options(**self.options.to_spark()).load()

    def why_not_start(self, wanted: Start) -> str | None:
        """Return why the table cannot begin there: it was made with a start of its own."""
        if self.options.starts == SNAPSHOT:
            return None
        return "delta_table(starts=…) says where it begins as well; give one of them"

    def starting(self, wanted: Start) -> DeltaTableSource:
        """Return the table as a query begins with it: as it is, with the next version, or later."""
        starts = SNAPSHOT if wanted == BEGINNING else wanted
        return dataclasses.replace(self, options=dataclasses.replace(self.options, starts=starts))

    def location(self) -> Location:
        """Return the table's address and what is read of it."""
        options = self.options.to_spark()
        names = {"changes", "columns", "where"}
        return Location(
            self.options.address, {k: text for k, text in options.items() if k in names}
        )

    def datasets(self) -> Sequence[Dataset]:
        """Return the table's folder as a dataset of the run's lineage."""
        return (folder_dataset(self.options.url),)

    def limited(self, planned: str, committed: str, end: str) -> str:
        """Return how far a batch may read: *planned*, but not beyond *end*."""
        return positions.limited(planned, committed, end)

    def is_reached(self, committed: str, end: str) -> bool:
        """Whether a query that has committed this offset has read everything up to *end*."""
        return positions.is_reached(committed, end)

    def sized(self, target_s: float) -> DeltaTableSource:
        """Return the source with a first limit for a batch of about *target_s* seconds."""
        if self.options.max_files is not None or self.options.max_rows is not None:
            return self
        rows = max(round(target_s * _FIRST_ROWS_PER_S), 1)
        return DeltaTableSource(dataclasses.replace(self.options, max_rows=rows))

    def behind(self, progress: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the backlog after a batch, in versions and, unless it is long, in files.

        Args:
            progress: Spark's report of the source.
        """
        latest, end = (_offset_in(progress, key) for key in ("latestOffset", "endOffset"))
        if not latest or not end:
            return {}
        versions = positions.from_json(latest).version - positions.from_json(end).version
        found = {"versionsOutstanding": max(versions, 0)}
        files = latest.get("filesOutstanding")
        return {**found, "filesOutstanding": files} if isinstance(files, int) else found

    def why_not_end(self, wanted: Any) -> str | None:
        if isinstance(wanted, dt.datetime):
            return why_not_moment(wanted)
        if wanted == LATEST or (type(wanted) is int and wanted >= 0):
            return None
        return f"ends={shown_end(wanted)} is not 'latest', a version, or a datetime with its zone"

    def end(self, planned: PlannedSource, wanted: Any) -> RecordedEnd | None:
        """Return where a bounded run ends.

        Args:
            planned: the source's first batch in this start.
            wanted: ``"latest"`` or None, the end of the table now; a version, the last one that is
                read; or a datetime with its zone, the first version that was committed then or
                later is not read.

        Raises:
            ConfigError: the end is none of these, or before the snapshot that a new query reads.
            LostInputError: the log does not reach back to the datetime.
        """
        if wanted is None or wanted == LATEST:
            # Not how far the stream would read: it stops before a commit that is refused, which
            # the run has to reach to fail.
            end = positions.from_text(str(planned.stream.reportLatestOffset().json()))
            return planned.ends_at(planned.line if end is None else end.to_text())
        end = self._position_of(wanted)
        first = positions.from_text(planned.line)
        is_new = positions.from_text(planned.committed) is None
        if is_new and first is not None and first.is_snapshot and end.order < first.order:
            raise ConfigError(
                f"{self.options.name}: the query starts with the snapshot of version "
                f"{first.version}, which is after its end, {wanted}; start from a version "
                "(starts=…), or end later"
            )
        return planned.ends_at(end.to_text())

    def _position_of(self, wanted: Any) -> positions.Position:
        table = TableLog(self.options)
        table.refresh()
        if isinstance(wanted, dt.datetime) and wanted.tzinfo is not None:
            planner = TablePlanner(table, query_schema(table))
            return positions.at_version(table.table_id, planner.version_at(wanted))
        if type(wanted) is int and 0 <= wanted <= table.version:
            return positions.at_version(table.table_id, wanted + 1)
        raise ConfigError(
            f"{self.options.name}: ends: {wanted!r} is not an end; write 'latest', a datetime with "
            f"its zone, or a version up to the newest, {table.version}"
        )

    def _check_versions(self, spark: SparkSession, name: str, *, streaming: bool) -> None:
        require_extra(f"source {name!r}", "delta", *_LIBRARIES, on_executors=True)
        module = "pyspark.sql.streaming.datasource" if streaming else "pyspark.sql.datasource"
        if importlib.util.find_spec(module) is None:
            what, oldest = ("a stream", "4.2") if streaming else ("a batch", "4.0")
            raise ConfigError(
                f"source {name!r}: reading a Delta table as {what} needs Spark {oldest} or newer, "
                f"not {spark.version}"
            )

    def _check_table(self) -> None:
        """Refuse what needs no batch to be seen; delta-rs reads the table's log here."""
        table = TableLog(self.options)
        table.refresh()
        TablePlanner(table, query_schema(table))  # which checks the conditions


def _names(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _offset_in(progress: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return an offset of Spark's report, which has it as an object or as its text."""
    value = progress.get(key)
    if isinstance(value, str):
        value = read_json(value) if value not in ("", positions.NO_OFFSET) else None
    return value if isinstance(value, dict) else {}
