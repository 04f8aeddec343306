"""Data files of a Delta table, read as Arrow batches with exactly the columns of a query.

Executors import this module. A file is read row group by row group, a bounded part at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.delta.deleted_rows import kept
from airflow_provider.extensions.delta.stored_columns import (
    has_id,
    knows_names,
    name_in_file,
    with_stored_names,
)
from airflow_provider.extensions.delta.table_changes import CHANGE_TYPE
from airflow_provider.extensions.delta.table_log import TableLog
from airflow_provider.runtime.api.errors import ConfigError, LostInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.commits import TableFile
    from airflow_provider.extensions.delta.stored_columns import StoredColumn
    from airflow_provider.extensions.delta.table_options import TableOptions

_TASK_BYTES: Final = 16 * 2**20  # small files share a task, which costs more than reading them
_TASK_FILES: Final = 64
_PART_BYTES: Final = 64 * 2**20  # a larger file is read by several tasks
_BATCH_BYTES: Final = 8 * 2**20
_BATCH_ROWS: Final = 20_000
_EXACT_BITS: Final = {16: 8, 32: 16, 64: 32}  # of integers that a floating number holds
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}  # of integers
_BUFFER_BYTES: Final = 4 * 2**20  # of a column of a row group that is read


class FilePart(NamedTuple):
    """A part of a data file: its row groups that begin at *start* or later, and before *end*."""

    file: TableFile
    start: int = 0
    end: int | None = None


class FileTask(NamedTuple):
    """What one task reads, and the columns as files have them."""

    parts: tuple[FilePart, ...]
    columns: Mapping[str, StoredColumn]


def tasks_of(files: Iterable[TableFile], columns: Mapping[str, StoredColumn]) -> list[FileTask]:
    """Return the tasks that read *files*, in their order: some small ones, or a part of a large."""
    tasks: list[list[FilePart]] = []
    size = 0
    for part in (part for file in files for part in _parts_of(file)):
        length = part.file.size if part.end is None and not part.start else _PART_BYTES
        if not tasks or len(tasks[-1]) >= _TASK_FILES or size + length > _TASK_BYTES:
            tasks.append([])
            size = 0
        tasks[-1].append(part)
        size += length
    return [FileTask(tuple(task), columns) for task in tasks]


def _parts_of(file: TableFile) -> list[FilePart]:
    starts = range(0, max(file.size, 1), _PART_BYTES)
    ends = [*starts[1:], None]  # the log may have a wrong size
    return [FilePart(file, start, end) for start, end in zip(starts, ends, strict=True)]


def read_files(
    options: TableOptions, schema: StructType, task: FileTask
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts of files.

    Args:
        options: of the source.
        schema: the columns of the query; a file without one of them has null there.
        task: what is read, one part of a file after the other.

    Raises:
        ConfigError: a file is damaged, or has values of another type.
        LostInputError: a file is missing.
        OutageError: the store does not answer.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    plain = to_arrow_schema(schema, timezone="UTC")
    target = with_stored_names(plain, task.columns)
    table = TableLog(options)
    for part in task.parts:
        with table.own_errors(f"{part.file.path} cannot be read"):
            for batch in _read(table, part, target):
                yield pa.RecordBatch.from_arrays(batch.columns, schema=plain)


def _read(table: TableLog, part: FilePart, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = part.file
    where = f"{table.name}: {file.path}"
    if "://" in file.path or file.path.startswith("/"):
        raise ConfigError(
            f"{where} is outside of the table's folder, as in a shallow clone, which this source "
            "cannot read"
        )
    try:
        with table.filesystem().open_input_file(file.path) as source:
            # Spark's INT96 times have microseconds, which nanoseconds do not reach far enough for.
            parquet = pq.ParquetFile(
                source, coerce_int96_timestamp_unit="us", buffer_size=_BUFFER_BYTES
            )
            stored = parquet.schema_arrow
            if table.options.reads_feed and CHANGE_TYPE not in {*stored.names, *file.partition}:
                raise ConfigError(f"{where} is no change data file: it has no {CHANGE_TYPE}")
            names = _names_read(stored, target, file, where)
            rows = _rows_of_a_batch(parquet.metadata)
            deleted = file.deleted.unpacked() if file.deleted is not None else None
            for row, groups in _row_groups_of(parquet.metadata, part):
                first = row
                for batch in parquet.iter_batches(rows, row_groups=groups, columns=names):
                    found = conformed(batch, target, file, where)
                    yield found if deleted is None else kept(found, deleted, first)
                    first += batch.num_rows
    except FileNotFoundError:
        raise LostInputError(
            f"{where} is missing: it was removed, by VACUUM or by hand, before it was read"
        ) from None
    except pa.ArrowInvalid as error:
        raise ConfigError(f"{where} is damaged, or not a Parquet file: {error}") from None


def _names_read(stored: pa.Schema, target: pa.Schema, file: TableFile, where: str) -> list[str]:
    """Return the names in the file of the columns that are read from it."""
    read = [field for field in target if field.name not in file.partition]
    if read and len(stored) and all(has_id(f) for f in read) and not any(map(has_id, stored)):
        raise ConfigError(f"{where} has no ids of its columns, by which this table is read")
    names = (name_in_file(field, stored) for field in read)
    return [name for name in names if name is not None]


def _row_groups_of(metadata: Any, part: FilePart) -> list[tuple[int, list[int]]]:
    """Return runs of a part's row groups; each group of a file is in exactly one part.

    A run comes with the number of its first row in the file.
    """
    runs: list[tuple[int, list[int]]] = []
    row = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        start = group.column(0).data_page_offset if group.num_columns else 0
        if part.start <= start and (part.end is None or start < part.end):
            if not runs or runs[-1][1][-1] != number - 1:
                runs.append((row, []))
            runs[-1][1].append(number)
        row += group.num_rows
    return runs


def _rows_of_a_batch(metadata: Any) -> int:
    size = sum(metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
    mean = size / max(metadata.num_rows, 1)
    return int(max(1, min(_BATCH_ROWS, _BATCH_BYTES / max(mean, 1))))


def conformed(
    batch: pa.RecordBatch, target: pa.Schema, file: TableFile, where: str
) -> pa.RecordBatch:
    """Return the rows of a file with the columns of *target*.

    Raises:
        ConfigError: a column of the file has another type.
    """
    import pyarrow as pa

    arrays = []
    for field in target:
        if field.name in file.partition:
            value = pa.scalar(file.partition[field.name], field.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        elif (name := name_in_file(field, batch.schema)) is not None:
            column = f"{where}: column {field.name!r}"
            arrays.append(_converted(batch.column(name), field.type, column))
        else:
            arrays.append(pa.nulls(batch.num_rows, field.type))
    if not arrays:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def _converted(array: pa.Array, kind: pa.DataType, where: str) -> pa.Array:
    import pyarrow as pa

    if array.type.equals(kind) and not knows_names(kind):
        return array
    if pa.types.is_dictionary(array.type):
        return _converted(array.dictionary_decode(), kind, where)
    if pa.types.is_struct(kind) and pa.types.is_struct(array.type):
        return _struct(array, kind, where)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        return _map(array, kind, where)
    is_list = pa.types.is_list(array.type) or pa.types.is_large_list(array.type)
    if pa.types.is_list(kind) and is_list:
        offsets, values = _elements(array)
        inner = _converted(values, kind.value_type, where)
        return pa.ListArray.from_arrays(offsets, inner, type=kind, mask=array.is_null())
    if not _is_exact(array.type, kind):
        raise ConfigError(
            f"{where} has the type {array.type} in this file, which is not the table's, {kind}"
        )
    return array.cast(kind)


def _struct(array: pa.StructArray, kind: pa.StructType, where: str) -> pa.Array:
    import pyarrow as pa

    fields = list(array.type)
    stored = dict(zip((field.name for field in fields), array.flatten(), strict=True))
    children = [
        pa.nulls(len(array), field.type)
        if (name := name_in_file(field, fields)) is None
        else _converted(stored[name], field.type, where)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())


def _map(array: pa.MapArray, kind: pa.MapType, where: str) -> pa.Array:
    import pyarrow as pa

    entry = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    offsets, entries = _elements(array.cast(pa.list_(entry)))
    keys, items = entries.flatten()
    keys, items = (
        _converted(keys, kind.key_type, where),
        _converted(items, kind.item_type, where),
    )
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind, mask=array.is_null())


def _elements(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets and the elements of lists, which may be a slice of longer arrays."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(array), 0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    return pa.concat_arrays([pa.array([0], pa.int32()), ends]), array.flatten()


def _is_exact(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether every value of a file's type is one of the column's type."""
    import pyarrow.types as at

    if at.is_null(stored):
        return True
    if at.is_floating(kind) or at.is_signed_integer(kind) or at.is_decimal(kind):
        return _is_exact_number(stored, kind)
    if at.is_timestamp(kind):  # INT96, which Spark writes, has no zone; it is in UTC
        is_day = at.is_date32(stored) and kind.tz is None
        return is_day or (at.is_timestamp(stored) and (kind.tz is not None or stored.tz is None))
    binary = (at.is_binary, at.is_large_binary, at.is_fixed_size_binary)
    text = (at.is_string, at.is_large_string)
    known = {at.is_string: (*text, *binary[:2]), at.is_binary: binary}
    return any(of(kind) and any(check(stored) for check in known[of]) for of in known)


def _is_exact_number(stored: pa.DataType, kind: pa.DataType) -> bool:
    import pyarrow.types as at

    is_whole = at.is_signed_integer(stored)
    if at.is_decimal(kind):
        room = kind.precision - kind.scale
        if is_whole:
            return bool(room >= _DIGITS[stored.bit_width])
        is_narrower = at.is_decimal(stored) and stored.scale <= kind.scale
        return bool(is_narrower and stored.precision - stored.scale <= room)
    if at.is_signed_integer(kind):
        return bool(is_whole and stored.bit_width <= kind.bit_width)
    if is_whole:
        return bool(stored.bit_width <= _EXACT_BITS[kind.bit_width])
    return bool(at.is_floating(stored) and stored.bit_width <= kind.bit_width)
