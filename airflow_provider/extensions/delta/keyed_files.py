"""Data files of a Delta table by key: listed with their bounds, read and written with pyarrow."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.delta import delta_log
from airflow_provider.extensions.delta.add_file import DataFile, partition_text, read_data_file
from airflow_provider.extensions.delta.delta_log import RemovedFile
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.file_trees import flush
from airflow_provider.runtime.api.kit.keyed_rows import as_schema, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from deltalake import DeltaTable

_BOUNDED: Final = frozenset({"byte", "short", "integer", "long", "date", "string"})
_CODECS: Final = {"uncompressed": "none", "none": "none", "lz4raw": "lz4", "lz4_raw": "lz4"}
_PARTITION_KINDS: Final = (bool, int, str, dt.date)

TOMBSTONES: Final = "spark-stream/tombstones"
"""The application transaction with the number of the table's tombstones."""


class TableFile(NamedTuple):
    """A data file of one version of the table.

    Attributes:
        path: relative to the table, as the filesystem has it.
        size: in bytes.
        partition: the values of the partition columns.
        bounds: the least and greatest value of the first key column; None if not known.
    """

    path: str
    size: int
    partition: tuple[Any, ...]
    bounds: tuple[Any, Any] | None


def last_change(table: DeltaTable, query_id: str) -> tuple[int, int | None]:
    """Return the last epoch of a query that was published by key, and the number of its file."""
    number = table.transaction_version(f"{query_id}/keys")
    epoch = table.transaction_version(f"{query_id}/keys-epoch")
    return (-1, None) if number is None or epoch is None else (epoch, number)


def marks_of(query_id: str, epoch: int, change: int, tombstones: int) -> dict[str, int]:
    """Return the transactions of an epoch that is published by key."""
    return {
        f"{query_id}/keys": change,
        f"{query_id}/keys-epoch": epoch,
        TOMBSTONES: tombstones,
    }


class DeltaState:
    """One version of a Delta table, for rows by key.

    Args:
        table: the table at that version.
        files: pyarrow's filesystem, in which paths are relative to the table.
        url: the table's folder.
        query_id: the query.
        key: the first key column.
        schema: the rows'.
        options: of Spark's Parquet writer.
        folder: where new files go, relative to the table.
    """

    def __init__(
        self,
        table: DeltaTable,
        files: Any,
        url: str,
        *,
        query_id: str,
        key: str,
        schema: pa.Schema,
        options: Mapping[str, str],
        folder: str,
    ) -> None:
        self._table, self._files, self._url = table, files, url
        self._key, self._schema, self._folder = key, schema, folder
        self._partition_by = tuple(table.metadata().partition_columns)
        self._delta_schema = _schema_of(table)
        named = options.get("compression", "snappy").lower()
        self._compression = _CODECS.get(named, named)
        self.tombstones = table.transaction_version(TOMBSTONES) or 0
        self.last = last_change(table, query_id)

    def files(self) -> list[TableFile]:
        import pyarrow as pa

        types = {field["name"]: field["type"] for field in self._delta_schema["fields"]}
        has_bounds = types.get(self._key) in _BOUNDED
        found = []
        for row in pa.table(self._table.get_add_actions(flatten=True)).to_pylist():
            partition = tuple(row.get(f"partition.{column}") for column in self._partition_by)
            bounds = None
            if self._key in self._partition_by:
                value = row.get(f"partition.{self._key}")
                bounds = None if value is None else (value, value)
            elif has_bounds:
                low, high = row.get(f"min.{self._key}"), row.get(f"max.{self._key}")
                bounds = None if low is None or high is None else (low, high)
            path = unquote(row["path"])
            found.append(TableFile(path, int(row["size_bytes"]), partition, bounds))
        return found

    def read(self, file: TableFile, columns: Sequence[str]) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([self._schema.field(column) for column in columns])
        values = dict(zip(self._partition_by, file.partition, strict=True))
        with self._files.open_input_file(file.path) as source:
            stored = pq.ParquetFile(source)
            wanted = [column for column in columns if column not in values]
            if not wanted or any("." in column for column in wanted):
                wanted = [column for column in stored.schema_arrow.names if column not in values]
            for batch in stored.iter_batches(columns=wanted):
                part = pa.Table.from_batches([batch])
                for column in columns:
                    if column in values:
                        kind = self._schema.field(column).type
                        value = pa.repeat(pa.scalar(values[column], kind), len(part))
                        part = part.append_column(column, value)
                yield as_schema(part, schema)

    def split(self, rows: pa.Table) -> dict[tuple[Any, ...], pa.Table]:
        import pyarrow as pa

        if not len(rows):
            return {}
        if not self._partition_by:
            return {(): rows}
        texts = rows.select(list(self._partition_by)).to_pylist()
        found: dict[tuple[Any, ...], list[int]] = {}
        for number, row in enumerate(texts):
            found.setdefault(tuple(row[c] for c in self._partition_by), []).append(number)
        return {value: rows.take(pa.array(places)) for value, places in found.items()}

    def write(self, partition: tuple[Any, ...], parts: Iterator[pa.Table]) -> list[DataFile]:
        own = f"{self._folder}/keyed-{secrets.token_hex(8)}"
        self._files.create_dir(own, recursive=True)
        plain = (part.drop_columns(list(self._partition_by)) for part in parts)
        sizes = write_parquet(
            plain,
            lambda number: self._files.open_output_stream(f"{own}/part-{number:05d}.parquet"),
            compression=self._compression,
        )
        paths = [f"{own}/part-{number:05d}.parquet" for number in range(len(sizes))]
        flush(self._url, paths)
        texts = dict(zip(self._partition_by, map(partition_text, partition), strict=True))
        return [
            read_data_file(self._files, path, size, self._delta_schema)._replace(partition=texts)
            for path, size in zip(paths, sizes, strict=True)
        ]

    def discard(self, written: Sequence[DataFile]) -> None:
        for file in written:
            try:
                self._files.delete_file(file.path)
            except FileNotFoundError:
                continue

    def removed(self, files: Sequence[TableFile]) -> list[RemovedFile]:
        """Return files as the log names those that leave the table."""
        return [
            RemovedFile(
                file.path,
                file.size,
                dict(zip(self._partition_by, map(partition_text, file.partition), strict=True)),
            )
            for file in files
        ]


def check_rewritable(table: DeltaTable, schema: Mapping[str, Any], name: str) -> None:
    """Refuse a table whose files the sink cannot rewrite without losing something."""
    import pyarrow as pa

    configuration = table.metadata().configuration
    if configuration.get("delta.enableChangeDataFeed", "").lower() == "true":
        raise ConfigError(
            f"{name}: the table has delta.enableChangeDataFeed, whose files the sink does not "
            "write, so its readers would see unchanged rows deleted and inserted; unset it"
        )
    if delta_log.is_append_only(table):
        raise ConfigError(
            f"{name}: the table has {delta_log.APPEND_ONLY}, so no row can be replaced"
        )
    known = {field["name"] for field in schema["fields"]}
    more = [f["name"] for f in _schema_of(table)["fields"] if f["name"] not in known]
    if more:
        raise ConfigError(
            f"{name}: the query has no column {more[0]!r}, which the table has, so a row that is "
            "replaced would lose its value; add it to the query"
        )
    features = table.protocol().reader_features or ()
    if "deletionVectors" in features and len(pa.table(table.deletion_vectors())):
        raise ConfigError(
            f"{name}: the table has files with deletion vectors, which the sink cannot rewrite; "
            "REORG TABLE … APPLY (PURGE) them, and unset delta.enableDeletionVectors"
        )


def _schema_of(table: DeltaTable) -> dict[str, Any]:
    from airflow_provider.extensions.delta.schema import TableFacts

    return dict(TableFacts.of(table).schema)


def empty_partitions_as_null(rows: pa.Table, partition_by: Sequence[str]) -> pa.Table:
    """Return rows in which an empty text of a partition column is null, as the table has it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for column in partition_by:
        values = rows.column(column)
        if pa.types.is_string(values.type):
            empty = pc.fill_null(pc.equal(values, ""), False)  # noqa: FBT003 - a value
            kept = pc.if_else(empty, pa.scalar(None, values.type), values)
            rows = rows.set_column(rows.schema.get_field_index(column), column, kept)
    return rows


def folder_of_revert(query_id: str) -> str:
    """Return the folder of the files that a revert rewrites, relative to the table."""
    return f"{delta_log.home_of(query_id)}/reverted"
