"""Parquet files as Spark writes them: the same types, names and schema, by pyarrow."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

# Spark's own 128 MiB are of encoded columns; these are of Arrow's, held by each of Spark's tasks.
_ROW_GROUP_BYTES: Final = 64 * 2**20
# By Spark's names, of which pyarrow has others; what both write in the same form.
_CODECS: Final = {
    "none": ("none", ""),
    "uncompressed": ("none", ""),
    "snappy": ("snappy", ".snappy"),
    "gzip": ("gzip", ".gz"),
    "zstd": ("zstd", ".zstd"),
    "brotli": ("brotli", ".br"),
    "lz4_raw": ("lz4", ".lz4raw"),
}
_TYPES: Final = frozenset(
    {"binary", "boolean", "byte", "date", "double", "float", "integer", "long", "short"}
    | {"string", "timestamp", "timestamp_ntz"}
)
_TYPE_STARTS: Final = ("decimal(", "string collate ", "char(", "varchar(")


@dataclasses.dataclass(frozen=True)
class ParquetFormat:
    """Parquet, of one schema."""

    codec: str
    schema: str
    spark_version: str

    @property
    def suffix(self) -> str:
        return f"{_CODECS[self.codec][1]}.parquet"

    def create(self, path: str) -> ParquetFile:
        footer = {
            "org.apache.spark.version": self.spark_version,
            "org.apache.spark.sql.parquet.row.metadata": self.schema,
        }
        return ParquetFile(path, codec=_CODECS[self.codec][0], footer=footer)


class ParquetFile:
    """A file that is being written; its rows are held until they fill a row group."""

    def __init__(self, path: str, *, codec: str, footer: dict[str, str]) -> None:
        self._path = path
        self._codec = codec
        self._footer = footer
        self._writer: Any = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _ROW_GROUP_BYTES:
            self._write_held()

    def written_bytes(self) -> int:
        return os.path.getsize(self._path) if self._writer is not None else 0

    def close(self) -> None:
        self._write_held()
        self._writer.add_key_value_metadata(self._footer)
        self._writer.close()

    def _write_held(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        rows = pa.Table.from_batches(self._held)
        schema = pa.schema([_nullable_within(field) for field in rows.schema])
        if self._writer is None:
            self._writer = self._opened(schema)
        self._writer.write_table(rows.cast(schema), row_group_size=max(rows.num_rows, 1))
        self._held, self._held_bytes = [], 0

    def _opened(self, schema: pa.Schema) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(
            self._path,
            schema,
            compression=self._codec,
            store_decimal_as_integer=True,
            # Else Python's readers would get the session's time zone instead of UTC.
            store_schema=False,
        )


def _nullable_within(field: pa.Field) -> pa.Field:
    """Allow nulls within values: pyarrow refuses them in a non-null member of a null struct."""
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_nullable(member) for member in kind]))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_nullable(kind.value_field)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_nullable(kind.value_field)))
    if pa.types.is_map(kind):
        key, item = _nullable_within(kind.key_field), _nullable(kind.item_field)
        return field.with_type(pa.map_(key, item))
    return field


def _nullable(field: pa.Field) -> pa.Field:
    return _nullable_within(field).with_nullable(True)  # noqa: FBT003 - pyarrow's


def check_codec(codec: str) -> None:
    """Refuse a codec that Spark and pyarrow do not write in the same form."""
    if codec not in _CODECS:
        raise ConfigError(
            f"compression {codec!r} is not written to buckets; use one of {', '.join(_CODECS)}"
        )


def check_types(schema: StructType) -> None:
    """Refuse types that Spark and pyarrow do not write in the same form."""
    for field in schema.fields:
        other = _other_type(field.dataType)
        if other is not None:
            raise ConfigError(
                f"column {field.name!r} has the type {other}, which is not written to Parquet in "
                "buckets; cast it, or write JSON"
            )


def _other_type(data_type: DataType) -> str | None:
    from pyspark.sql.types import ArrayType, MapType, StructType

    inner: list[DataType]
    if isinstance(data_type, StructType):
        inner = [field.dataType for field in data_type.fields]
    elif isinstance(data_type, ArrayType):
        inner = [data_type.elementType]
    elif isinstance(data_type, MapType):
        inner = [data_type.keyType, data_type.valueType]
    else:
        name = str(data_type.jsonValue())
        return None if name in _TYPES or name.startswith(_TYPE_STARTS) else name
    return next((other for other in map(_other_type, inner) if other is not None), None)
