"""Plans of an Iceberg table's batches: where a query starts, how far it reads, and which files."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from typing import TYPE_CHECKING

from airflow_provider.extensions.iceberg.catalogs import (
    check_has_order,
    errors_without_secrets,
)
from airflow_provider.extensions.iceberg.changes import is_read
from airflow_provider.extensions.iceberg.columns import projected
from airflow_provider.extensions.iceberg.history import History, described
from airflow_provider.extensions.iceberg.listing import Listing
from airflow_provider.extensions.iceberg.positions import Position
from airflow_provider.extensions.iceberg.reading import pinned, tasks_of
from airflow_provider.extensions.iceberg.table_handle import TableHandle
from airflow_provider.runtime.api.errors import ConfigError, LostInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

    from airflow_provider.extensions.iceberg.listing import ListedFile
    from airflow_provider.extensions.iceberg.reading import FileTask
    from airflow_provider.extensions.iceberg.table_options import TableOptions

log = logging.getLogger(__name__)


@dataclasses.dataclass
class Budget:
    """What a batch may still take; None is no limit. Its first file is always taken."""

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    _is_first: bool = True

    @property
    def is_limited(self) -> bool:
        return (self.files, self.rows, self.bytes) != (None, None, None)

    def take(self, file: ListedFile) -> bool:
        """Take a file if there is room for it."""
        left = (
            None if self.files is None else self.files - 1,
            None if self.rows is None else self.rows - file.rows,
            None if self.bytes is None else self.bytes - file.bytes,
        )
        if not self._is_first and any(n is not None and n < 0 for n in left):
            return False
        self._is_first = False
        self.files, self.rows, self.bytes = left
        return True


class Planner:
    """Plans the batches of one table.

    The table is loaded for every plan, and its history is checked, so that a gap is found before
    any row of the batch is read.
    """

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._handle = TableHandle(options)
        self._schema = _schema_of(options)
        self._listing: Listing | None = None
        self._reads: dict[int, bool] = {}
        self._fixed: TableMetadata | None = None
        self.reached: tuple[Position, Mapping[str, int]] | None = None
        """How far the last plan could have read, and what it has left."""

    def close(self) -> None:
        self._handle.close()

    def fix_end(self) -> None:
        """Read only what the table has now, whatever is committed later."""
        table = self._load()
        self._fixed = table.metadata
        self.reached = (self._history(table).end(), {})  # also where a batch was planned before

    def start(self) -> Position:
        """Return where a new query starts."""
        table = self._load()
        now = dt.datetime.now(dt.timezone.utc)
        return self._history(table).start(self._options.starts, now)

    def latest(self, start: Position, budget: Budget) -> Position:
        """Return how far the batch after *start* reads.

        Raises:
            LostInputError: snapshots that were not read have expired.
            ConfigError: a snapshot changed rows, or the table was rolled back.
        """
        table = self._load()
        history = self._history(table)
        gap = history.gap_after(start)
        if gap is not None and self._options.on_gap is None:
            raise gap
        self._check_columns(table)
        with errors_without_secrets(self._options):
            if gap is None:
                planned = self._take(table, history, start, budget)
            else:  # as the first batch of a query, it only fixes where to start
                log.warning("%s; the query reads the whole table again (on_gap='snapshot')", gap)
                planned = history.whole()
            self.reached = (history.end(), self._left(table, history, planned))
        return planned

    def tasks(self, start: Position, end: Position) -> list[FileTask]:
        """Return the tasks of a batch, which may have been planned before a crash.

        Raises:
            LostInputError: some of its snapshots have expired. *on_gap* does not help: the next
                batch could not tell that this one was left out.
        """
        table = self._load()
        with errors_without_secrets(self._options):
            files = self._between(table, start, end)
        return tasks_of(self._options.name, files, table, pinned(table.metadata, self._schema))

    def whole(self) -> list[FileTask]:
        """Return the tasks of the table as of now."""
        table = self._handle.load()
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return []
        with errors_without_secrets(self._options):
            files = self._lists(table).whole(snapshot, table.io)
        return tasks_of(self._options.name, files, table, pinned(table.metadata, self._schema))

    def _take(self, table: Table, history: History, start: Position, budget: Budget) -> Position:
        lists, position = self._lists(table), start
        if start.index is not None:
            files = self._files_of(table, start)
            position = _advanced(start, files, budget)
            if position.index is not None:
                return position
        for snapshot in history.after(start):
            try:
                reads = self._is_read(table, snapshot)
            except ConfigError:
                if budget.is_limited and position != start:
                    break  # the rows before it are read first
                raise
            files = lists.added(snapshot, table.io) if reads else []
            after = _advanced(_before_files_of(history.uuid, snapshot), files, budget)
            if after.index == 0:
                break
            position = after
            if position.index is not None:
                break
        return position

    def _left(self, table: Table, history: History, position: Position) -> Mapping[str, int]:
        """Return what lies after *position*; of snapshots to come, what their summaries tell."""
        files = self._files_of(table, position) if position.index is not None else []
        rest = files[position.index or 0 :]
        numbers = [len(rest), sum(f.rows for f in rest), sum(f.bytes for f in rest)]
        for snapshot in history.after(position):
            if snapshot.summary is None or snapshot.summary.operation.value != "append":
                continue
            facts = snapshot.summary.additional_properties
            for place, key in enumerate(("added-data-files", "added-records", "added-files-size")):
                text = facts.get(key) or "0"
                numbers[place] += int(text) if text.isdecimal() else 0
        return dict(zip(("files", "rows", "bytes"), numbers, strict=True))

    def _between(self, table: Table, start: Position, end: Position) -> list[ListedFile]:
        if start.order >= end.order or end.snapshot is None:
            return []
        if end.is_full or (start.snapshot == end.snapshot and start.index is not None):
            low = start.index or 0 if start.snapshot == end.snapshot else 0
            # The end of a snapshot does not say how its files were counted; the start does.
            return self._files_of(table, end if end.is_full else start)[low : end.index]
        head = table.metadata.snapshot_by_id(end.snapshot)
        if head is None:
            raise self._expired(table, start, end)
        history = History(self._options.name, table.metadata, head)
        gap = history.gap_after(start)
        if gap is not None:
            raise gap
        files = self._files_of(table, start)[start.index :] if start.index is not None else []
        for snapshot in history.after(start):
            if self._is_read(table, snapshot):
                added = self._lists(table).added(snapshot, table.io)
                files += added[: end.index] if snapshot is head else added
        return files

    def _is_read(self, table: Table, snapshot: Snapshot) -> bool:
        key = snapshot.snapshot_id
        if key not in self._reads:
            self._reads[key] = is_read(snapshot, table.io, self._options)
        return self._reads[key]

    def _files_of(self, table: Table, position: Position) -> list[ListedFile]:
        snapshot = table.metadata.snapshot_by_id(position.snapshot or 0)
        if snapshot is None:
            raise self._expired(table, position, position)
        lists = self._lists(table)
        if position.is_full:
            return lists.whole(snapshot, table.io)
        return lists.added(snapshot, table.io)

    def _expired(self, table: Table, start: Position, end: Position) -> LostInputError:
        snapshots = History(self._options.name, table.metadata).snapshots
        left = f"the oldest one left is {described(snapshots[0])}" if snapshots else "none is left"
        return LostInputError(
            f"{self._options.name}: a batch reads from snapshot {start.snapshot} (sequence number "
            f"{start.sequence}) to snapshot {end.snapshot} (sequence number {end.sequence}), which "
            f"has expired; {left}. The batch cannot be read again: begin at an earlier savepoint, "
            "or start a new query"
        )

    def _load(self) -> Table:
        """Return the table, as of the fixed end if there is one, with credentials of now."""
        from pyiceberg.table import Table as Handle

        table = self._handle.load()
        check_has_order(table.metadata, self._options.name)
        if self._fixed is None or self._fixed.table_uuid != table.metadata.table_uuid:
            return table
        return Handle(
            table.name(),
            self._fixed,
            table.metadata_location,
            table.io,
            table.catalog,
            table.config,
        )

    def _history(self, table: Table) -> History:
        return History(self._options.name, table.metadata)

    def _lists(self, table: Table) -> Listing:
        if self._listing is None or not self._listing.knows(table.metadata.specs()):
            metadata = pinned(table.metadata, self._schema)
            self._listing = Listing(self._options.name, metadata, self._options.where)
        return self._listing

    def _check_columns(self, table: Table) -> None:
        """Refuse a column whose type has changed: new files are of the new type."""
        current = table.metadata.schema()
        columns = projected(self._schema, self._options.columns, self._options.name)
        for field_id in columns.field_ids & current.field_ids:
            before, after = columns.find_type(field_id), current.find_type(field_id)
            if before.is_primitive and before != after:
                raise ConfigError(
                    f"{self._options.name}: column {columns.find_column_name(field_id)!r} was "
                    f"{before} when the query started, and is {after} now; start it again"
                )


def _schema_of(options: TableOptions) -> Schema:
    from pyiceberg.schema import Schema

    return Schema.model_validate_json(options.schema)


def _before_files_of(uuid: str, snapshot: Snapshot) -> Position:
    return Position(uuid, snapshot.sequence_number or 0, snapshot.snapshot_id, 0)


def _advanced(position: Position, files: Sequence[ListedFile], budget: Budget) -> Position:
    """Return the position after the files that *budget* takes; after the last one, the end."""
    index = position.index or 0
    while index < len(files) and budget.take(files[index]):
        index += 1
    if index < len(files):
        return dataclasses.replace(position, index=index)
    return dataclasses.replace(position, index=None, is_full=False)
