"""Columns of messages, as Spark's connector has them, built as Arrow's arrays."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from airflow_provider.extensions.kafka.offsets import Partition

    Maker = Callable[[Sequence[Any], Partition, Any], Any]

HEADERS: Final = StructField(
    "headers",
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
)
SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def schema_of(*, has_headers: bool) -> StructType:
    """Return the columns of a source."""
    return StructType([*SCHEMA.fields, HEADERS]) if has_headers else SCHEMA


@dataclasses.dataclass(frozen=True)
class Columns:
    """Makes batches with the columns that a query wants; an executor gets it with its task."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, *, has_headers: bool) -> Columns:
        whole = {field.name: field.dataType for field in schema_of(has_headers=has_headers)}
        for field in schema:
            if whole.get(field.name) != field.dataType:
                columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in whole.items())
                raise ConfigError(
                    f"schema: {field.name} {field.dataType.simpleString()} is none of the columns "
                    f"of a message: {columns}; leave schema out, or name some of these"
                )
        return cls(tuple(field.name for field in schema))

    def batch_of(self, messages: Sequence[Any], partition: Partition) -> pa.RecordBatch:
        import pyarrow as pa

        types = _types()
        arrays = [_MAKERS[name](messages, partition, types[name]) for name in self.names]
        fields = [pa.field(name, types[name]) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@functools.cache
def _types() -> dict[str, Any]:
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    return {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "timestampType": pa.int32(),
        "headers": pa.list_(pa.field("element", header)),
    }


def _each(read: Callable[[Any], Any]) -> Maker:
    def make(messages: Sequence[Any], _: Partition, kind: Any) -> Any:
        import pyarrow as pa

        return pa.array([read(message) for message in messages], kind)

    return make


def _same(read: Callable[[Partition], Any]) -> Maker:
    def make(messages: Sequence[Any], partition: Partition, kind: Any) -> Any:
        import pyarrow as pa

        return pa.repeat(pa.scalar(read(partition), kind), len(messages))

    return make


def _times(messages: Sequence[Any], _: Partition, kind: Any) -> Any:
    import pyarrow as pa

    milliseconds = [message.timestamp()[1] for message in messages]
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(kind)


def _headers_of(message: Any) -> list[dict[str, Any]] | None:
    """Return headers as Spark's connector does: null where there are none."""
    headers = message.headers()
    return [{"key": key, "value": value} for key, value in headers] if headers else None


_MAKERS: Final[dict[str, Maker]] = {
    "key": _each(lambda message: message.key()),
    "value": _each(lambda message: message.value()),
    "topic": _same(lambda partition: partition.topic),
    "partition": _same(lambda partition: partition.number),
    "offset": _each(lambda message: message.offset()),
    "timestamp": _times,
    # Java's numbers: -1 for no time, 0 for the producer's, 1 for the broker's.
    "timestampType": _each(lambda message: message.timestamp()[0] - 1),
    "headers": _each(_headers_of),
}
