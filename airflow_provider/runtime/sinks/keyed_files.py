"""Copy on write of a table by key: finds the rows of keys in its files, and rewrites files.

Bounded memory: an epoch's changes, the rows that they replace, and a part of one file. What was
found in a file is kept, because files never change: a commit that another writer was faster than
reads only the files that are new.
"""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar

from airflow_provider.runtime.sinks.keyed_merge import key_of, positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

_PART_ROWS: Final = 262_144  # of a row group
_PART_BYTES: Final = 64 * 2**20
_FILE_BYTES: Final = 128 * 2**20  # a rewritten file ends there


Partition: TypeAlias = tuple[Any, ...]
"""The values of a table's partition columns."""


class KeyedFile(Protocol):
    """A data file of a table.

    Attributes:
        path: its address; no two files have the same one.
        size: in bytes.
        partition: the partition that it belongs to.
        bounds: the least and greatest value of the first key column; None if not known.
    """

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def bounds(self) -> tuple[Any, Any] | None: ...


F = TypeVar("F", bound=KeyedFile)
W = TypeVar("W")


@dataclasses.dataclass(frozen=True)
class Found:
    """Rows of wanted keys in a file: their positions in it, in order, and the rows."""

    positions: pa.Array
    rows: pa.Table


class RowFinder:
    """Finds the rows of one set of keys in files.

    Args:
        wanted: a table with the keys.
        keys: the key columns.
        schema: the table's.
    """

    def __init__(self, wanted: pa.Table, keys: Sequence[str], schema: pa.Schema) -> None:
        self._keys, self._schema = keys, schema
        self._wanted = key_of(wanted, keys)
        firsts = wanted.column(keys[0]).unique().sort().to_pylist()
        self._firsts: list[Any] = firsts
        self._found: dict[str, Found | None] = {}

    def find(
        self, files: Iterable[F], read: Callable[[F, Sequence[str]], Iterator[pa.Table]]
    ) -> list[tuple[F, Found]]:
        """Return the files that have rows of the keys, with these rows.

        Args:
            files: the table's.
            read: yields the rows of a file in their order, with the given columns.
        """
        found = []
        for file in files:
            if file.path not in self._found:
                self._found[file.path] = self._look(file, read) if self._may_have(file) else None
            if (rows := self._found[file.path]) is not None:
                found.append((file, rows))
        return found

    def _may_have(self, file: KeyedFile) -> bool:
        if file.bounds is None:
            return bool(self._firsts)
        low, high = file.bounds
        at = bisect.bisect_left(self._firsts, low)
        return at < len(self._firsts) and bool(self._firsts[at] <= high)

    def _look(
        self, file: F, read: Callable[[F, Sequence[str]], Iterator[pa.Table]]
    ) -> Found | None:
        import pyarrow as pa
        import pyarrow.compute as pc

        masks = [
            pc.is_in(key_of(part, self._keys), value_set=self._wanted)
            for part in read(file, self._keys)
        ]
        if not any(pc.any(mask).as_py() for mask in masks):
            return None
        mask = pa.concat_arrays(masks)
        rows = []
        start = 0
        for part in read(file, self._schema.names):
            rows.append(part.filter(mask.slice(start, len(part))))
            start += len(part)
        return Found(positions(len(mask)).filter(mask), pa.concat_tables(rows))


def replaced_rows(found: Sequence[tuple[F, Found]], removed: pa.Array) -> list[tuple[F, pa.Array]]:
    """Return the files that lose rows, with the positions of these rows in each.

    Args:
        found: files and their rows.
        removed: positions in the rows of all *found*, one after another.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    removed = removed.cast(pa.int64())
    files = []
    start = 0
    for file, rows in found:
        places = pc.add(positions(len(rows.positions)), start)
        gone = rows.positions.filter(pc.is_in(places, value_set=removed))
        if len(gone):
            files.append((file, gone))
        start += len(rows.positions)
    return files


def rewritten(
    files: Sequence[tuple[F, pa.Array]],
    rows: Mapping[Partition, pa.Table],
    read: Callable[[F], Iterator[pa.Table]],
    write: Callable[[Partition, Iterator[pa.Table]], W],
) -> list[W]:
    """Write what is left of *files* together with new *rows*, partition by partition.

    Args:
        files: files that lose rows, with the positions of these rows.
        rows: the new rows of each partition.
        read: yields a file's rows in their order.
        write: writes the rows of a partition; it is not called for none.
    """
    partitions = list(dict.fromkeys([*(file.partition for file, _ in files), *rows]))
    written = []
    for partition in partitions:
        parts = _parts(
            [(file, gone) for file, gone in files if file.partition == partition],
            rows.get(partition),
            read,
        )
        first = next((part for part in parts if len(part)), None)
        if first is not None:
            written.append(write(partition, _chain(first, parts)))
    return written


def _parts(
    files: Sequence[tuple[F, pa.Array]],
    rows: pa.Table | None,
    read: Callable[[F], Iterator[pa.Table]],
) -> Iterator[pa.Table]:
    import pyarrow.compute as pc

    for file, gone in files:
        start = 0
        for part in read(file):
            places = pc.add(positions(len(part)), start)
            start += len(part)
            yield part.filter(pc.invert(pc.is_in(places, value_set=gone)))
    if rows is not None:
        yield rows


def _chain(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    yield first
    yield from rest


def write_parquet(
    parts: Iterator[pa.Table],
    open_file: Callable[[int], Any],
    *,
    compression: str = "snappy",
) -> list[int]:
    """Write tables as Parquet files of a bounded size; return the bytes of each file.

    Args:
        parts: the rows; at least one.
        open_file: opens the file with a number, from 0, to be written.
        compression: Parquet's name of the codec.
    """
    import pyarrow.parquet as pq

    sizes: list[int] = []
    pending = _row_groups(parts)
    group = next(pending, None)
    while group is not None:
        with open_file(len(sizes)) as sink:
            with pq.ParquetWriter(sink, group.schema, compression=compression) as writer:
                while group is not None:
                    writer.write_table(group, row_group_size=len(group) or None)
                    group = next(pending, None)
                    if sink.tell() >= _FILE_BYTES:
                        break
            sizes.append(sink.tell())
    return sizes


def _row_groups(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for part in parts:
        if len(part):
            waiting.append(part)
        rows, size = sum(len(each) for each in waiting), sum(each.nbytes for each in waiting)
        if rows >= _PART_ROWS or size >= _PART_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def schema_of(tables: Sequence[pa.Table]) -> pa.Schema:
    """Return all columns of *tables*, given newest first; later ones may lack what was added."""
    import pyarrow as pa

    return pa.unify_schemas([table.schema for table in tables])


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a file's rows with the columns and types of *schema*; a column it lacks is null."""
    import pyarrow as pa

    columns = []
    for field in schema:
        if field.name in table.column_names:
            columns.append(table.column(field.name).cast(field.type))
        else:
            columns.append(pa.nulls(len(table), field.type))
    return pa.table(columns, schema=schema)
