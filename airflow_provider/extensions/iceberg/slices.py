"""Slices of an Iceberg table: which files a replacement removes, and which its revert restores.

A replacement is one snapshot. It removes the files whose rows are all inside the slice, rewrites
those that also have other rows, and adds the staged ones. Metrics and partitions in the manifests
tell most files apart; a file that they leave open is read. The revert finds in the snapshot's
manifests what it has added and removed, as long as the snapshot and the files exist.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import uuid
from typing import TYPE_CHECKING, Any, Final, cast

from airflow_provider.extensions.iceberg.ledger import published_snapshot
from airflow_provider.extensions.iceberg.tables import DataFiles
from airflow_provider.runtime.api.errors import RevertError, SinkError
from airflow_provider.runtime.api.kit.slices import (
    ColumnRange,
    Relation,
    Slice,
    count_inside,
    parse_slice,
    rows_outside,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.types import PrimitiveType

    from airflow_provider.runtime.api.sinks import Committable

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What a snapshot removes, and the addresses of the rewritten files that it adds."""

    removed: tuple[DataFile, ...] = ()
    rewritten: tuple[str, ...] = ()


def slice_of(text: str, schema: Schema, name: str) -> Slice:
    """Read a slice of a table with this schema.

    Raises:
        ConfigError: it cannot be read.
    """
    kinds = {field.name: _spark_name(field.field_type) for field in schema.fields}
    return parse_slice(text, kinds, name)


def check_rows_inside(table: Table, paths: Sequence[str], text: str, name: str) -> None:
    """Refuse staged files with a row outside of the slice.

    Raises:
        RefusedRowsError: there is one; nothing is published.
    """
    part = slice_of(text, table.schema(), name)
    for file in DataFiles(name, paths).get(table):
        if part.relation(_ranges_of(table, file, part)) is Relation.ALL:
            continue
        outside = sum(
            rows.num_rows - count_inside(inside)
            for rows, inside in _masked(_staged_rows(table, file.file_path), part)
        )
        if outside:
            raise rows_outside(name, outside, part, file.file_path)


class Replacer:
    """Plans the replacement of the slice *text*; rewritten files go to *folder*, each once."""

    def __init__(self, text: str, folder: str, name: str) -> None:
        self._text, self._folder, self._name = text, folder, name
        self._kept: dict[str, tuple[bool, str | None]] = {}

    def plan(self, table: Table) -> Replacement:
        """Return the replacement for the table's current snapshot.

        Raises:
            SinkError: a file in the slice has delete files.
        """
        part = slice_of(self._text, table.schema(), self._name)
        removed: list[DataFile] = []
        rewritten: list[str] = []
        for task in table.scan(row_filter=_expression(part)).plan_files():
            relation = part.relation(_ranges_of(table, task.file, part))
            if relation is Relation.NONE:
                continue
            if task.delete_files:
                raise SinkError(
                    f"{self._name}: {task.file.file_path} in the slice {part.text} has delete "
                    "files, which this sink cannot replace; compact the table first "
                    "(rewrite_data_files with delete-file-threshold 1)"
                )
            path = task.file.file_path
            if relation is Relation.SOME and path not in self._kept:
                self._kept[path] = self._rewrite(table, task, part)
            has_rows, kept = self._kept.get(path, (True, None))
            removed += [task.file] if has_rows else []
            rewritten += [kept] if kept is not None else []
        return Replacement(tuple(removed), tuple(rewritten))

    def _rewrite(self, table: Table, task: FileScanTask, part: Slice) -> tuple[bool, str | None]:
        """Return whether the file has rows inside, and where its other rows are written."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        masked = list(_masked(_rows_of(table, task), part))
        if not any(count_inside(mask) for _, mask in masked):
            return False, None
        kept = pa.Table.from_batches([rows.filter(pc.invert(mask)) for rows, mask in masked])
        if not kept.num_rows:
            return True, None
        target = f"{self._folder}/kept-{uuid.uuid4().hex[:8]}.parquet"
        with table.io.new_output(target).create(overwrite=False) as out:
            pq.write_table(kept, out)
        return True, target


def plan_restoration(
    table: Table, published: Sequence[Committable], name: str
) -> tuple[list[DataFile], list[DataFile]]:
    """Return what a revert of published replacements removes, and what it adds again.

    Raises:
        RevertError: another writer has changed the slice since, or the old files are gone.
    """
    added: dict[str, DataFile] = {}
    removed: dict[str, DataFile] = {}
    for committable in published:
        snapshot = published_snapshot(table.metadata, committable.epoch)
        if snapshot is None:
            raise RevertError(
                f"{name}: the snapshot of epoch {committable.epoch.epoch} has expired, so the "
                "files that it has replaced are not known any more; keep snapshots for as long as "
                "runs are replayable"
            )
        for is_removed, file in _changed_by(table, snapshot):
            (removed if is_removed else added)[file.file_path] = file
    ours = {path: file for path, file in added.items() if path not in removed}
    live = _live_paths(table)
    if gone := [path for path in ours if path not in live]:
        raise RevertError(
            f"{name}: {gone[0]} is no longer in the table; another program has compacted, replaced "
            "or deleted it, so that the rows before it are not known any more"
        )
    back = [file for path, file in removed.items() if path not in added]
    if lost := [f.file_path for f in back if not table.io.new_input(f.file_path).exists()]:
        raise RevertError(f"{name}: {lost[0]}, which was replaced, has been removed since")
    return [live[path] for path in ours], back


def _changed_by(table: Table, snapshot: Snapshot) -> Iterator[tuple[bool, DataFile]]:
    from pyiceberg.manifest import ManifestEntryStatus

    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id:
                yield entry.status == ManifestEntryStatus.DELETED, entry.data_file


def _live_paths(table: Table) -> dict[str, DataFile]:
    snapshot = table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _spark_name(kind: Any) -> str:
    names = {
        "int": "integer",
        "timestamptz": "timestamp",
        "timestamp": "timestamp_ntz",
    }
    return names.get(str(kind), str(kind))


def _expression(part: Slice) -> BooleanExpression:
    """Return what files with a row inside the slice fulfil."""
    from pyiceberg import expressions

    kinds: dict[str, Any] = {
        ">=": expressions.GreaterThanOrEqual,
        ">": expressions.GreaterThan,
        "<=": expressions.LessThanOrEqual,
        "<": expressions.LessThan,
    }
    # Iceberg orders no booleans in filters: a slice of one is found by reading.
    found: list[BooleanExpression] = [
        kinds[sign](column, value.isoformat() if isinstance(value, dt.date) else value)
        for column, bounds in part.bounds.items()
        for sign, value in bounds.comparisons()
        if not isinstance(value, bool)
    ]
    everything: BooleanExpression = expressions.AlwaysTrue()
    return functools.reduce(expressions.And, found, everything)


def _ranges_of(table: Table, file: DataFile, part: Slice) -> dict[str, ColumnRange]:
    from pyiceberg.conversions import from_bytes

    lows, highs = file.lower_bounds or {}, file.upper_bounds or {}
    nulls = file.null_value_counts or {}
    found = {}
    for column in part.bounds:
        field = table.schema().find_field(column)
        number, kind = field.field_id, cast("PrimitiveType", field.field_type)
        low, high = lows.get(number), highs.get(number)
        found[column] = ColumnRange(
            _as_python(from_bytes(kind, low), kind) if low is not None else None,
            _as_python(from_bytes(kind, high), kind) if high is not None else None,
            nulls.get(number),
            file.record_count,
        )
    return found


def _as_python(value: Any, kind: Any) -> Any:
    name = str(kind)
    if name == "date":
        return (_EPOCH + dt.timedelta(days=value)).date()
    if name.startswith("timestamp"):
        at = _EPOCH + dt.timedelta(microseconds=value)
        return at if name == "timestamptz" else at.replace(tzinfo=None)
    return value


def _rows_of(table: Table, task: FileScanTask) -> Iterable[pa.RecordBatch]:
    """Return the rows of a file with the table's current columns, found by their ids."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    rows: pa.Table = scan.to_table([task])
    return list(rows.to_batches())


def _staged_rows(table: Table, path: str) -> Iterable[pa.RecordBatch]:
    import pyarrow.parquet as pq

    with table.io.new_input(path).open() as source:
        yield from pq.ParquetFile(source).iter_batches()


def _masked(
    batches: Iterable[pa.RecordBatch], part: Slice
) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    for rows in batches:
        yield rows, part.mask(rows)
