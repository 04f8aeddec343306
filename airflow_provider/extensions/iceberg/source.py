"""An Iceberg table as a source: every row once, over pyiceberg, without a jar."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import importlib.util
from typing import TYPE_CHECKING, Any, Final, Literal

from airflow_provider.extensions.iceberg import positions
from airflow_provider.extensions.iceberg.catalogs import check_has_order
from airflow_provider.extensions.iceberg.columns import projected
from airflow_provider.extensions.iceberg.history import History
from airflow_provider.extensions.iceberg.positions import Position
from airflow_provider.extensions.iceberg.table_handle import TableHandle
from airflow_provider.extensions.iceberg.table_options import SNAPSHOT, Starts, TableOptions
from airflow_provider.runtime.api.errors import ConfigError
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

    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider.runtime.api.sinks import Dataset
    from airflow_provider.runtime.api.sources import PlannedSource, RecordedEnd, Start

_FIRST_ROWS_PER_S: Final = 2_000  # of the first batch, before anything is known


def iceberg_table(
    table: str,
    *,
    catalog: str | Mapping[str, str],
    starts: Starts = SNAPSHOT,
    changes: str | None = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    max_files: int | None = None,
    on_gap: str | None = None,
) -> IcebergTableSource:
    """Read an Iceberg table: first as of a snapshot, then the rows that later snapshots append.

    Compactions are passed over. A snapshot that removed or changed rows is refused. The columns are
    the table's when the query starts; a column that is added later is read from the next start on.

    Args:
        table: ``namespace.table``.
        catalog: the name of a catalog that pyiceberg's own configuration describes, or a catalog's
            properties as ``load_catalog`` takes them, with its ``name`` among them (``default``).
        starts: where a new query starts. ``"snapshot"`` reads the table as of its current snapshot
            and then what comes next; ``"now"`` only what comes next. The id of a snapshot reads
            what came after it, without the snapshot itself, which may have expired. A datetime with
            a time zone reads what was committed at this time or later.
        changes: ``"appended rows only"`` passes over snapshots that only removed rows. A snapshot
            that removed rows and added others is refused all the same.
        columns: the columns that are read, in the table's order; by default, all.
        where: a filter in pyiceberg's words, such as ``"kind = 'click' and amount >= 10"``.
        max_files: the most files of a batch, before *where*; at least one is read.
        on_gap: ``"snapshot"`` reads the whole table again when snapshots have expired before they
            were read; by default, the query fails.

    Raises:
        ConfigError: an argument is wrong.
    """
    named = catalog if isinstance(catalog, str) else dict(catalog)
    chosen = (columns,) if isinstance(columns, str) else columns
    return IcebergTableSource(
        TableOptions(
            table=table,
            catalog=named,
            starts=starts,
            changes=changes,
            columns=None if chosen is None else tuple(chosen),
            where=where,
            max_files=max_files,
            on_gap=on_gap,
        )
    )


@dataclasses.dataclass(frozen=True)
class IcebergTableSource:
    """See :func:`iceberg_table`, which makes one."""

    options: TableOptions
    kind: Literal["iceberg"] = dataclasses.field(default="iceberg", init=False)
    same_rows_in_batch: Literal[True] = dataclasses.field(default=True, init=False)

    def load(self, spark: SparkSession, name: str, *, streaming: bool) -> DataFrame:
        """Return the table's rows, with the columns that it has now.

        Raises:
            AbsentInputError: the catalog has no such table.
            ConfigError: a column, the filter or Spark's version is wrong, or the catalog refuses.
            OutageError: the catalog does not answer.
        """
        metadata = self._table().metadata
        options = self._bound_to(metadata)
        try:
            from airflow_provider.extensions.iceberg.data_source import FORMAT, IcebergDataSource
        except ImportError:
            raise ConfigError(
                f"source {name!r}: {self.options.name} needs Spark 4.0 or newer, and as a stream "
                f"4.2, not {spark.version}"
            ) from None
        if streaming:
            _check_stream(spark, name, self.options)
            check_has_order(metadata, self.options.name)
        register_source(spark, IcebergDataSource)
        reader = reader_of(spark, name, streaming=streaming)
        return reader.format(FORMAT).options(**options.to_spark()).load()

    def why_not_start(self, wanted: Start) -> str | None:
        """Return why the table cannot begin there: it was made with a start of its own."""
        if self.options.starts == SNAPSHOT:
            return None
        return "iceberg_table(starts=…) says where it begins as well; give one of them"

    def starting(self, wanted: Start) -> IcebergTableSource:
        """Return the table as a query begins with it: as it is, or with what comes then."""
        starts = SNAPSHOT if wanted == BEGINNING else wanted
        return dataclasses.replace(self, options=dataclasses.replace(self.options, starts=starts))

    def bound(self) -> TableOptions:
        """Return the options with the table's columns of now, in which *where* is checked."""
        return self._bound_to(self._table().metadata)

    def _bound_to(self, metadata: TableMetadata) -> TableOptions:
        schema = metadata.schema()
        projected(schema, self.options.columns, self.options.name)
        _check_where(schema, self.options)
        return dataclasses.replace(self.options, schema=schema.model_dump_json())

    @functools.cached_property
    def _metadata(self) -> TableMetadata:
        return self._table().metadata

    def location(self) -> Location:
        """Return the table's folder, its uuid, and what is read of it; the catalog is read once."""
        metadata, options = self._metadata, self.options
        told = {
            "uuid": str(metadata.table_uuid),
            "columns": None if options.columns is None else ",".join(sorted(options.columns)),
            "where": options.where,
            "changes": options.changes,
        }
        return Location(
            metadata.location, {key: text for key, text in told.items() if text is not None}
        )

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the folder of the table, by which Spark's own lineage names it."""
        return (folder_dataset(self._metadata.location),)

    # --- the end of a run ------------------------------------------------------------------------

    def why_not_end(self, wanted: Any) -> str | None:
        if isinstance(wanted, dt.datetime):
            return why_not_moment(wanted)
        if wanted == LATEST or type(wanted) is int:
            return None
        return f"ends={shown_end(wanted)} is not 'latest', a snapshot's id, or a datetime"

    def end(self, planned: PlannedSource, wanted: Any) -> RecordedEnd | None:
        """Return where a bounded run ends.

        Args:
            planned: the first batch of the source in this start.
            wanted: None or ``"latest"`` for all that the table has now; the id of a snapshot; or a
                datetime, before whose first snapshot the run ends.

        Raises:
            ConfigError: the snapshot or the time is not in the history that is left.
        """
        if wanted is None or wanted == LATEST:
            # Not how far the stream would read: it fails at a snapshot that is refused, which the
            # run has to reach.
            reached = planned.stream.reportLatestOffset()
            return planned.ends_at(Position.from_text(str(reached.json())).to_text())
        history = History(self.options.name, self._table().metadata)
        if isinstance(wanted, dt.datetime):
            return planned.ends_at(history.before(wanted).to_text())
        return planned.ends_at(history.after_snapshot(wanted).to_text())

    def limited(self, planned: str, committed: str, end: str) -> str:
        """Return how far a batch may read, by offsets alone: *planned*, but not beyond *end*."""
        return positions.limited(planned, committed, end)

    def is_reached(self, committed: str, end: str) -> bool:
        """Whether a query that has committed *committed* has read up to *end*."""
        return positions.is_reached(committed, end)

    # --- batches ---------------------------------------------------------------------------------

    def sized(self, target_s: float) -> IcebergTableSource:
        """Return the source with a limit of rows for a first batch of about *target_s* seconds."""
        if self.options.max_files is not None or self.options.max_rows is not None:
            return self
        most = max(1, round(target_s * _FIRST_ROWS_PER_S))
        return dataclasses.replace(self, options=dataclasses.replace(self.options, max_rows=most))

    def behind(self, progress: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the files, rows and bytes that the table has after a batch, before *where*."""
        latest = progress.get("latestOffset")
        if isinstance(latest, str) and latest != positions.NONE:
            latest = read_json(latest)
        left = latest.get("outstanding") if isinstance(latest, dict) else None
        if not isinstance(left, dict):
            return {}
        names = ("files", "rows", "bytes")
        return {f"{name}Outstanding": int(left[name]) for name in names if name in left}

    def _table(self) -> Table:
        handle = TableHandle(self.options)
        try:
            return handle.load()
        finally:
            handle.close()


def _check_stream(spark: SparkSession, name: str, options: TableOptions) -> None:
    if importlib.util.find_spec("pyspark.sql.streaming.datasource") is None:
        raise ConfigError(
            f"source {name!r}: {options.name} as a stream needs Spark 4.2 or newer, not "
            f"{spark.version}; read it in BATCH mode, or with Iceberg's own jar (format='iceberg')"
        )


def _check_where(schema: Any, options: TableOptions) -> None:
    from pyiceberg.expressions.visitors import bind
    from pyiceberg.table import _parse_row_filter

    if options.where is None:
        return
    try:
        bind(schema, _parse_row_filter(options.where), case_sensitive=True)
    except Exception as error:  # the parser has errors of its own
        raise ConfigError(f"{options.name}: where={options.where!r}: {error}") from error
