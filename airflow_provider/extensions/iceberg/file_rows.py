"""Rows of one data file of an Iceberg table, in the columns of a schema, by pyiceberg's rules.

pyiceberg's own scan is not used for two reasons. It keeps all batches of a file in memory, and it
gives an empty list, or map, of structs for a null one (apache/iceberg-python#3833).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.visitors import bind, extract_field_ids, translate_column_names
from pyiceberg.io.pyarrow import (
    ArrowAccessor,
    ArrowProjectionVisitor,
    _combine_positional_deletes,
    _get_column_projection_values,
    _get_file_format,
    _read_deletes,
    expression_to_pyarrow,
    pyarrow_to_schema,
)
from pyiceberg.schema import prune_columns, visit_with_partner
from pyiceberg.types import ListType, MapType, StructType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import FileFormat
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask
    from pyiceberg.table.metadata import TableMetadata

_BATCH_ROWS: Final = 64 * 1024
_READ_AHEAD: Final = 2  # batches; Arrow's own 16 may fill the memory where rows are wide
_BUFFER_BYTES: Final = 8 * 1024 * 1024
_LAST_VERSION_WITHOUT_NS: Final = 2  # of the table format, that has times in nanoseconds


class FileReader:
    """Reads files of a table, whatever schema and partitions each was written with.

    It keeps the delete files that it has read, which one task's files often share.
    """

    def __init__(
        self, metadata: TableMetadata, io: FileIO, columns: Schema, where: BooleanExpression
    ) -> None:
        """Take *metadata* with the schema of which *columns* are read."""
        self._metadata = metadata
        self._io = io
        self._columns = columns
        self._where = bind(metadata.schema(), where, case_sensitive=True)
        self._deleted: dict[str, dict[str, pa.ChunkedArray]] = {}
        nested = (MapType, ListType)
        self._ids = {
            each for each in columns.field_ids if not isinstance(columns.find_type(each), nested)
        }.union(extract_field_ids(self._where))

    def read(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are not deleted and match."""
        deletes = self._deletes(task)
        with self._io.new_input(task.file.file_path).open() as stream:
            fragment = _format_of(task.file.file_format).make_fragment(stream)
            found = self._schema_in(fragment.physical_schema)
            missing = self._values_by_partition(task, found)
            matches = self._filter_in(found, missing)
            wanted = prune_columns(found, self._ids, select_full_types=False)
            scanner = ds.Scanner.from_fragment(
                fragment,
                schema=fragment.physical_schema,
                columns=[column.name for column in wanted.columns],
                # Positions of deletes are those before any filter.
                filter=None if deletes else matches,
                batch_size=_BATCH_ROWS,
                batch_readahead=_READ_AHEAD,
            )
            position = 0
            for batch in scanner.to_batches():
                kept = batch
                if deletes:
                    end = position + len(batch)
                    kept = batch.take(_combine_positional_deletes(deletes, position, end))
                    position = end
                    kept = kept if matches is None else _filtered(kept, matches)
                if kept.num_rows:
                    yield self._projected(wanted, kept, missing)

    def _deletes(self, task: FileScanTask) -> list[pa.ChunkedArray]:
        found = []
        for file in task.delete_files:
            if file.file_path not in self._deleted:
                self._deleted[file.file_path] = _read_deletes(self._io, file)
            positions = self._deleted[file.file_path].get(task.file.file_path)
            if positions is not None:
                found.append(positions)
        return found

    def _schema_in(self, physical: pa.Schema) -> Schema:
        metadata = self._metadata
        return pyarrow_to_schema(
            physical,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=self._downcasts,
            format_version=metadata.format_version,
        )

    def _values_by_partition(self, task: FileScanTask, found: Schema) -> dict[int, Any]:
        """Return values of columns that a file lacks, because its partition has them."""
        spec = self._metadata.specs().get(task.file.spec_id)
        return _get_column_projection_values(
            task.file, self._columns, self._metadata.schema(), spec, found.field_ids
        )

    def _filter_in(self, found: Schema, missing: dict[int, Any]) -> Any:
        if isinstance(self._where, AlwaysTrue):
            return None
        named = translate_column_names(
            self._where, found, case_sensitive=True, projected_field_values=missing
        )
        return expression_to_pyarrow(bind(found, named, case_sensitive=True), found)

    def _projected(
        self, found: Schema, batch: pa.RecordBatch, missing: dict[int, Any]
    ) -> pa.RecordBatch:
        visitor = _Projection(
            found,
            self._downcasts,
            projected_missing_fields=missing,
            allow_timestamp_tz_mismatch=True,
        )
        rows = visit_with_partner(self._columns, batch, visitor, ArrowAccessor(found))
        return pa.RecordBatch.from_struct_array(rows)

    @property
    def _downcasts(self) -> bool:
        return self._metadata.format_version <= _LAST_VERSION_WITHOUT_NS


class _Projection(ArrowProjectionVisitor):
    """Keeps null lists and maps apart from empty ones, and reads required partition columns."""

    def struct(self, struct: StructType, struct_array: Any, field_results: Any) -> Any:
        """Take a column that a file lacks from its partition, even if the column is required."""
        known = self._projected_missing_fields
        fields = (
            field.model_copy(update={"required": False}) if field.field_id in known else field
            for field in struct.fields
        )
        return super().struct(StructType(*fields), struct_array, field_results)

    def list(self, list_type: ListType, list_array: Any, value_array: Any) -> Any:
        if value_array is None or not isinstance(list_array, pa.ListArray | pa.LargeListArray):
            return super().list(list_type, list_array, value_array)
        values = self._cast_if_needed(list_type.element_field, value_array)
        field = self._construct_field(list_type.element_field, values.type)
        is_large = isinstance(list_array, pa.LargeListArray)
        kind, made = (
            (pa.large_list(field), pa.LargeListArray)
            if is_large
            else (pa.list_(field), pa.ListArray)
        )
        return made.from_arrays(
            _unsliced(list_array.offsets), values, type=kind, mask=list_array.is_null()
        )

    def map(self, map_type: MapType, map_array: Any, key_result: Any, value_result: Any) -> Any:
        if key_result is None or value_result is None or not isinstance(map_array, pa.MapArray):
            return None
        keys = self._cast_if_needed(map_type.key_field, key_result)
        values = self._cast_if_needed(map_type.value_field, value_result)
        kind = pa.map_(
            self._construct_field(map_type.key_field, keys.type),
            self._construct_field(map_type.value_field, values.type),
        )
        return pa.MapArray.from_arrays(
            _unsliced(map_array.offsets), keys, values, type=kind, mask=map_array.is_null()
        )


def _unsliced(offsets: Any) -> Any:
    """Return a copy: Arrow takes no mask with offsets that are a part of an array."""
    return pc.add(offsets, pa.scalar(0, offsets.type))


def _filtered(batch: pa.RecordBatch, matches: Any) -> pa.RecordBatch:
    # Of a table: RecordBatch.filter fails before pyarrow 21 if no row is left.
    table = pa.Table.from_batches([batch]).filter(matches)
    return table.combine_chunks().to_batches()[0] if table.num_rows else batch.slice(0, 0)


def _format_of(file_format: FileFormat) -> Any:
    options: dict[str, Any] = {"pre_buffer": True, "buffer_size": _BUFFER_BYTES}
    return _get_file_format(file_format, **options)
