"""Columns of messages, as Spark's connector has them, built as Arrow's arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
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

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider.runtime.sources.kafka.offsets import Partition

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
_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}


def schema_of(*, has_headers: bool) -> StructType:
    """Return the columns of a source."""
    return StructType([*SCHEMA.fields, HEADERS]) if has_headers else SCHEMA


@dataclasses.dataclass(frozen=True)
class Columns:
    """Makes batches with the columns that a query wants; an executor gets it with its task.

    Attributes:
        names: the columns, in their order.
    """

    names: tuple[str, ...]

    @classmethod
    def of(cls, schema: StructType, *, has_headers: bool) -> Columns:
        """Return the columns of a schema, which may be fewer than there are.

        Raises:
            ConfigError: it has others, or other types.
        """
        whole = {field.name: field.dataType for field in schema_of(has_headers=has_headers)}
        for field in schema:
            if whole.get(field.name) != field.dataType:
                columns = ", ".join(f"{name} {kind.simpleString()}" for name, kind in whole.items())
                msg = (
                    f"schema: {field.name} {field.dataType.simpleString()} is none of the columns "
                    f"of a message: {columns}; leave schema out, or name some of these"
                )
                raise ConfigError(msg)
        return cls(tuple(field.name for field in schema))

    def batch_of(self, messages: Sequence[Any], partition: Partition) -> pa.RecordBatch:
        """Return messages of one partition as a batch.

        Args:
            messages: the client's.
            partition: where they are from.
        """
        arrays = [_MAKERS[name](messages, partition) for name in self.names]
        fields = [pa.field(name, _TYPES[name]) for name in self.names]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _times(messages: Sequence[Any], _: Partition) -> pa.Array:
    milliseconds = [message.timestamp()[1] for message in messages]
    return pa.array(milliseconds, pa.timestamp("ms", tz="UTC")).cast(_TYPES["timestamp"])


def _time_types(messages: Sequence[Any], _: Partition) -> pa.Array:
    """Return Java's numbers: -1 for no time, 0 for the producer's, 1 for the broker's."""
    return pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32())


def _headers(messages: Sequence[Any], _: Partition) -> pa.Array:
    """Return headers as Spark's connector does: null where there are none."""
    values = [
        [{"key": key, "value": value} for key, value in headers] if headers else None
        for headers in (message.headers() for message in messages)
    ]
    return pa.array(values, _TYPES["headers"])


_MAKERS: Final[dict[str, Callable[[Sequence[Any], Partition], pa.Array]]] = {
    "key": lambda messages, _: pa.array([m.key() for m in messages], pa.binary()),
    "value": lambda messages, _: pa.array([m.value() for m in messages], pa.binary()),
    "topic": lambda messages, at: pa.repeat(pa.scalar(at.topic, pa.string()), len(messages)),
    "partition": lambda messages, at: pa.repeat(pa.scalar(at.number, pa.int32()), len(messages)),
    "offset": lambda messages, _: pa.array([m.offset() for m in messages], pa.int64()),
    "timestamp": _times,
    "timestampType": _time_types,
    "headers": _headers,
}
