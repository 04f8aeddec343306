"""Data files of an Iceberg table by key: listed with their bounds, read and rewritten."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.iceberg import tables
from airflow_provider.extensions.iceberg.table_staging import codec_of
from airflow_provider.runtime.api.errors import ConfigError, CorruptDocumentError, SinkError
from airflow_provider.runtime.api.kit.file_trees import flush
from airflow_provider.runtime.api.kit.keyed_rows import as_schema, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

_LAST: Final = "spark-stream.keys."
TOMBSTONES: Final = "spark-stream.tombstones"
"""The table property with the number of the table's tombstones."""

_EPOCH: Final = dt.date(1970, 1, 1)


class TableFile(NamedTuple):
    """A data file of one state of the table; see :class:`.keyed_files.KeyedFile`."""

    path: str
    size: int
    partition: tuple[Any, ...]
    bounds: tuple[Any, Any] | None
    task: FileScanTask


def last_change(table: Table, query_id: str) -> tuple[int, int | None]:
    """Return the last epoch of a query that was published by key, and the number of its file."""
    text = table.metadata.properties.get(_LAST + query_id)
    if text is None:
        return -1, None
    epoch, _, number = text.partition(":")
    if not (epoch.isdecimal() and number.isdecimal()):
        raise CorruptDocumentError(
            f"table property {_LAST}{query_id} is {text!r}; put back what the table had there"
        )
    return int(epoch), int(number)


def tombstones_of(table: Table) -> int:
    """Return the number of the table's tombstones; 0 for none."""
    text = table.metadata.properties.get(TOMBSTONES, "0")
    if not text.isdecimal():
        raise CorruptDocumentError(
            f"table property {TOMBSTONES} is {text!r}; put back what the table had there"
        )
    return int(text)


def properties_of(query_id: str, epoch: int, change: int, tombstones: int) -> dict[str, str]:
    """Return the table properties of an epoch that is published by key."""
    return {_LAST + query_id: f"{epoch}:{change}", TOMBSTONES: str(tombstones)}


def location_of(table: Table) -> str:
    """Return the folder of a table."""
    return str(table.metadata.location).rstrip("/")


class IcebergState:
    """One state of an Iceberg table, for rows by key.

    Args:
        table: the table in that state.
        name: the sink's.
        query_id: the query.
        key: the first key column.
        schema: the rows'.
        options: of Spark's Parquet writer.
        folder: the address of the folder where new files go.
    """

    def __init__(
        self,
        table: Table,
        name: str,
        *,
        query_id: str,
        key: str,
        schema: pa.Schema,
        options: Mapping[str, str],
        folder: str,
    ) -> None:
        self._table, self._name, self._key, self._schema = table, name, key, schema
        self._folder = folder
        self._compression = codec_of(options)
        self.tombstones = tombstones_of(table)
        self.last = last_change(table, query_id)

    def files(self) -> list[TableFile]:
        field = self._table.schema().find_field(self._key)
        spec = self._table.metadata.default_spec_id
        found = []
        for task in self._table.scan().plan_files():
            if task.file.spec_id != spec:
                raise SinkError(
                    f"{self._name}: {task.file.file_path} is of an older partitioning of the "
                    "table, by which the sink writes no files; rewrite the table's files"
                )
            values = task.file.partition
            partition = tuple(values[at] for at in range(len(self._table.spec().fields)))
            found.append(
                TableFile(
                    task.file.file_path,
                    task.file.file_size_in_bytes,
                    partition,
                    _bounds(task.file, field),
                    task,
                )
            )
        return found

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        import pyarrow as pa
        from pyiceberg.expressions import AlwaysTrue

        from airflow_provider.extensions.iceberg.file_rows import FileReader

        schema = pa.schema([self._schema.field(column) for column in columns])
        selected = self._table.schema().select(*columns)
        reader = FileReader(self._table.metadata, self._table.io, selected, AlwaysTrue())
        for batch in reader.read(file.task):
            yield as_schema(pa.Table.from_batches([batch]), schema)

    def split(self, rows: pa.Table) -> dict[tuple[Any, ...], pa.Table]:
        from pyiceberg.io.pyarrow import _determine_partitions

        spec = self._table.spec()
        if not len(rows):
            return {}
        if not spec.fields:
            return {(): rows}
        found = _determine_partitions(spec, self._table.schema(), rows)
        count = len(spec.fields)
        return {
            tuple(part.partition_key.partition[at] for at in range(count)): as_schema(
                part.arrow_table_partition, self._schema
            )
            for part in found
        }

    def write(self, partition: tuple[Any, ...], parts: Iterator[pa.Table]) -> list[DataFile]:
        del partition  # it is read from the files' statistics, as of Spark's files
        own = f"keyed-{secrets.token_hex(8)}"

        def open_file(number: int) -> Any:
            return self._table.io.new_output(self._path(own, number)).create()

        sizes = write_parquet(parts, open_file, compression=self._compression)
        paths = [self._path(own, number) for number in range(len(sizes))]
        flush(self._folder, [path.removeprefix(f"{self._folder}/") for path in paths])
        return tables.DataFiles(self._name, paths).get(self._table)

    def _path(self, own: str, number: int) -> str:
        return f"{self._folder}/{own}/part-{number:05d}.parquet"

    def discard(self, written: Sequence[DataFile]) -> None:
        for file in written:
            with contextlib.suppress(FileNotFoundError):
                self._table.io.delete(file.file_path)


def check_rewritable(table: Table, columns: Sequence[str], name: str) -> None:
    """Refuse a table whose rows the sink cannot rewrite without losing something."""
    more = [field.name for field in table.schema().fields if field.name not in columns]
    if more:
        raise ConfigError(
            f"{name}: the query has no column {more[0]!r}, which the table has, so a row that is "
            "replaced would lose its value; add it to the query"
        )


def _bounds(file: DataFile, field: Any) -> tuple[Any, Any] | None:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import DateType, IntegerType, LongType, StringType

    low = (file.lower_bounds or {}).get(field.field_id)
    high = (file.upper_bounds or {}).get(field.field_id)
    kind = field.field_type
    if (
        low is None
        or high is None
        or not isinstance(kind, DateType | IntegerType | LongType | StringType)
    ):
        return None
    values: tuple[Any, Any] = (from_bytes(kind, low), from_bytes(kind, high))
    if isinstance(kind, DateType):
        return _EPOCH + dt.timedelta(values[0]), _EPOCH + dt.timedelta(values[1])
    return values
