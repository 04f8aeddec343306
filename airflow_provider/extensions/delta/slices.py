"""Slices of a Delta table: which files a replacement removes, and which its revert restores.

A replacement is one version of the table. It removes the files whose rows are all inside the slice,
rewrites those that also have other rows, and adds the staged ones. The statistics in the log tell
most files apart; a file that they leave open is read. Its revert reads the version's entry in the
log, removes what that has added, and adds what that has removed, which VACUUM may have deleted.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.delta import delta_log
from airflow_provider.extensions.delta.add_file import DataFile, partition_text, read_data_file
from airflow_provider.extensions.delta.delta_log import RemovedFile
from airflow_provider.runtime.api.errors import (
    ConfigError,
    RevertError,
    SinkError,
)
from airflow_provider.runtime.api.kit.file_trees import flush
from airflow_provider.runtime.api.kit.locations import local_path_of
from airflow_provider.runtime.api.kit.slices import (
    ColumnRange,
    Relation,
    Slice,
    count_inside,
    parse_slice,
    rows_outside,
)
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltalake import DeltaTable

    from airflow_provider.runtime.api.sinks import Committable

_CUT: Final = dt.timedelta(milliseconds=1)  # Delta's writers may cut a highest time to milliseconds
_ROWS: Final = 64 * 1024


class SliceFile(NamedTuple):
    """A file of the table that may have rows in a slice."""

    path: str
    size: int
    partition: dict[str, str | None]
    relation: Relation


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What a version of the table removes and adds, beside the staged files."""

    removed: tuple[RemovedFile, ...]
    rewritten: tuple[DataFile, ...]


def slice_of(text: str, schema: Mapping[str, Any], name: str) -> Slice:
    """Read a slice of a table with this schema.

    Raises:
        ConfigError: it cannot be read.
    """
    return parse_slice(text, {field["name"]: field["type"] for field in schema["fields"]}, name)


def check_replaceable(table: DeltaTable, name: str) -> None:
    """Refuse a table from which no file can be removed."""
    if delta_log.is_append_only(table):
        raise ConfigError(
            f"{name}: the table has {delta_log.APPEND_ONLY}, so no slice of it can be replaced; "
            "unset the property, or write without replace"
        )


def check_rows_inside(files: Iterable[DataFile], part: Slice, read: FileReader, name: str) -> None:
    """Refuse staged files with a row outside of the slice.

    Raises:
        RefusedRowsError: there is one; nothing is published.
    """
    for file in files:
        if part.relation(_ranges_of(read_json(file.stats), file.partition, read.schema)) is (
            Relation.ALL
        ):
            continue
        outside = read.rows_outside(file.path, file.partition, part)
        if outside:
            raise rows_outside(name, outside, part, file.path)


class FileReader:
    """Reads and rewrites data files of one table, whose rows have *schema*.

    It opens the filesystem with the first file: before, the table's folder may be missing.
    """

    def __init__(self, open_files: Callable[[], Any], url: str, schema: Mapping[str, Any]) -> None:
        self._open_files, self._url, self.schema = open_files, url, schema
        self._rewritten: dict[str, DataFile | None] = {}

    @functools.cached_property
    def _filesystem(self) -> Any:
        return self._open_files()

    def rows_outside(self, path: str, partition: Mapping[str, Any], part: Slice) -> int:
        """Count the rows of a file that are outside of the slice."""
        fixed = _fixed(part, partition, self.schema)
        if fixed is None:
            return self._rows(path)
        return sum(
            rows.num_rows - count_inside(inside) for rows, inside in self._masked(path, part, fixed)
        )

    def without_slice(self, file: SliceFile, part: Slice, folder: str) -> DataFile | None:
        """Write the rows of *file* that are outside of the slice into a new file in *folder*.

        None if the file has no row inside; a new file without rows if it has no row outside. A file
        is rewritten once, however often the commit is tried.
        """
        if file.path not in self._rewritten:
            self._rewritten[file.path] = self._rewrite(file, part, folder)
        return self._rewritten[file.path]

    def _rewrite(self, file: SliceFile, part: Slice, folder: str) -> DataFile | None:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        fixed = _fixed(part, file.partition, self.schema)
        if fixed is None:
            return None
        target = f"{folder}/kept-{uuid.uuid4().hex[:8]}/part-00000.parquet"
        self._filesystem.create_dir(f"{folder}", recursive=True)
        inside, writer = 0, None
        with self._filesystem.open_output_stream(target) as out:
            for rows, mask in self._masked(file.path, part, fixed):
                writer = writer or pq.ParquetWriter(out, rows.schema)
                inside += count_inside(mask)
                writer.write_batch(rows.filter(pc.invert(mask)))
            if writer is not None:
                writer.close()
        if local_path_of(self._url) is not None:
            flush(f"{self._url}/{folder}", [target.removeprefix(f"{folder}/")])
        if not inside:
            self._filesystem.delete_file(target)
            return None
        size = self._filesystem.get_file_info([target])[0].size
        made = read_data_file(self._filesystem, target, size, self.schema)
        return made._replace(partition=dict(file.partition))

    def _masked(self, path: str, part: Slice, fixed: frozenset[str]) -> Iterable[tuple[Any, Any]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._filesystem.open_input_file(path) as source:
            # Delta has no nanoseconds, which old files of Spark's would be read as.
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            is_known = (part.bounds.keys() - fixed) <= set(parquet.schema_arrow.names)
            for rows in parquet.iter_batches(batch_size=_ROWS):
                # A file from before a column was added has nulls there, which are outside.
                outside = pa.array([False] * rows.num_rows, pa.bool_())
                yield rows, part.mask(rows, fixed) if is_known else outside

    def _rows(self, path: str) -> int:
        import pyarrow.parquet as pq

        with self._filesystem.open_input_file(path) as source:
            return int(pq.ParquetFile(source).metadata.num_rows)

    def restored(self, file: RemovedFile) -> DataFile:
        """Return the entry that adds a file again which has left the table.

        Raises:
            FileNotFoundError: it was deleted since.
        """
        made = read_data_file(self._filesystem, file.path, file.size, self.schema)
        return made._replace(partition=dict(file.partition))

    def entry(self, version: int) -> list[dict[str, Any]]:
        """Return the actions of a version.

        Raises:
            FileNotFoundError: the log no longer has it.
        """
        path = f"_delta_log/{version:020d}.json"
        with self._filesystem.open_input_stream(path) as source:
            lines = source.readall().splitlines()
        return [dict(read_json(line)) for line in lines if line.strip()]


def plan_replacement(
    table: DeltaTable, part: Slice, read: FileReader, *, folder: str, name: str
) -> Replacement:
    """Return what leaves the table and what is rewritten; writes the rewritten files to *folder*.

    Raises:
        SinkError: a file in the slice has a deletion vector.
    """
    found = [f for f in _files_of(table, read.schema, part) if f.relation is not Relation.NONE]
    if marked := delta_log.partly_deleted(table, [file.path for file in found]):
        raise SinkError(
            f"{name}: {min(marked)} in the slice {part.text} has a deletion vector, which this "
            "sink cannot replace; run REORG TABLE … APPLY (PURGE) first"
        )
    removed: list[RemovedFile] = []
    rewritten: list[DataFile] = []
    for file in found:
        if file.relation is Relation.SOME:
            kept = read.without_slice(file, part, folder)
            if kept is None:
                continue
            if read_json(kept.stats)["numRecords"]:
                rewritten.append(kept)
        removed.append(RemovedFile(file.path, file.size, file.partition))
    return Replacement(tuple(removed), tuple(rewritten))


def plan_restoration(
    table: DeltaTable, published: Sequence[Committable], read: FileReader, name: str
) -> tuple[list[RemovedFile], list[DataFile]]:
    """Return what a revert of published replacements removes, and what it adds again.

    Raises:
        RevertError: another writer has changed the slice since, or the old files are gone.
    """
    added: dict[str, RemovedFile] = {}
    removed: dict[str, RemovedFile] = {}
    for committable in published:
        for action in _entry_of(table, committable, read, name):
            for kind, files in (("add", added), ("remove", removed)):
                if found := action.get(kind):
                    file = _removed_file(found)
                    files[file.path] = file
    ours = [file for path, file in added.items() if path not in removed]
    active = delta_log.active_paths(table, [file.path for file in ours])
    if gone := [file.path for file in ours if file.path not in active]:
        raise RevertError(
            f"{name}: {gone[0]} is no longer in the table; another program has compacted, replaced "
            "or deleted it, so that the rows before it are not known any more"
        )
    try:
        back = [read.restored(file) for path, file in removed.items() if path not in added]
    except FileNotFoundError as error:
        raise RevertError(
            f"{name}: the rows that were replaced are gone ({error}): VACUUM has removed them"
        ) from error
    return ours, back


def _entry_of(
    table: DeltaTable, committable: Committable, read: FileReader, name: str
) -> list[dict[str, Any]]:
    epoch = committable.epoch
    for info in table.history():
        facts = info.get("sparkStream")
        facts = read_json(facts) if isinstance(facts, str) else facts
        if facts and (facts.get("queryId"), facts.get("epoch")) == (epoch.query_id, epoch.epoch):
            return read.entry(int(info["version"]))
    raise RevertError(
        f"{name}: the table's log no longer has the version that published epoch {epoch.epoch}, so "
        "the files that it has replaced are not known any more (delta.logRetentionDuration)"
    )


def _removed_file(action: Mapping[str, Any]) -> RemovedFile:
    partition = dict(action.get("partitionValues") or {})
    return RemovedFile(unquote(action["path"]), int(action.get("size") or 0), partition)


def _files_of(table: DeltaTable, schema: Mapping[str, Any], part: Slice) -> Iterable[SliceFile]:
    import pyarrow as pa

    listed = pa.table(table.get_add_actions(flatten=True))
    partitions = table.metadata().partition_columns
    wanted = {"path", "size_bytes", "num_records", *(f"partition.{c}" for c in partitions)}
    wanted |= {f"{kind}.{c}" for kind in ("min", "max", "null_count") for c in part.bounds}
    for row in listed.select([c for c in listed.column_names if c in wanted]).to_pylist():
        partition = {
            column: partition_text(row.get(f"partition.{column}")) for column in partitions
        }
        stats = {
            "numRecords": row.get("num_records"),
            "minValues": {c: row.get(f"min.{c}") for c in part.bounds},
            "maxValues": {c: row.get(f"max.{c}") for c in part.bounds},
            "nullCount": {c: row.get(f"null_count.{c}") for c in part.bounds},
        }
        relation = part.relation(_ranges_of(stats, partition, schema))
        yield SliceFile(unquote(row["path"]), row["size_bytes"], partition, relation)


def _ranges_of(
    stats: Mapping[str, Any], partition: Mapping[str, str | None], schema: Mapping[str, Any]
) -> dict[str, ColumnRange]:
    """Return the ranges of a file's columns from Delta's statistics and its partition."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    lows, highs = stats.get("minValues") or {}, stats.get("maxValues") or {}
    counts, rows = stats.get("nullCount") or {}, stats.get("numRecords")
    found = {}
    for column, kind in types.items():
        if column in partition:
            value = _from_text(partition[column], kind)
            found[column] = ColumnRange(value, value, 0 if value is not None else rows, rows)
        elif column in lows and column in highs:
            low, high = _from_stats(lows[column], kind), _from_stats(highs[column], kind)
            if isinstance(high, dt.datetime):
                high += _CUT
            found[column] = ColumnRange(low, high, counts.get(column), rows)
    return found


def _fixed(
    part: Slice, partition: Mapping[str, str | None], schema: Mapping[str, Any]
) -> frozenset[str] | None:
    """Return the slice's columns that partition the table; None if the file is outside by them."""
    columns = part.bounds.keys() & partition.keys()
    ranges = _ranges_of({}, {c: partition[c] for c in columns}, schema)
    only = Slice(part.text, {column: part.bounds[column] for column in columns})
    # A null's range has no bound.
    has_null = any(partition[column] is None for column in columns)
    return None if has_null or only.relation(ranges) is Relation.NONE else frozenset(columns)


def _from_text(text: str | None, kind: Any) -> Any:
    if text is None or kind == "string":
        return text
    if kind == "date":
        return dt.date.fromisoformat(text)
    return text.lower() == "true" if kind == "boolean" else int(text)


def _from_stats(value: Any, kind: Any) -> Any:
    """Return a value of Delta's statistics, as JSON or as delta-rs has it, as Python has it."""
    if kind not in {"date", "timestamp", "timestamp_ntz"} or value is None:
        return value
    if isinstance(value, str):
        value = (dt.date if kind == "date" else dt.datetime).fromisoformat(value.rstrip("Z"))
    if kind != "timestamp":
        return value
    return value.replace(tzinfo=dt.timezone.utc) if value.tzinfo is None else value
