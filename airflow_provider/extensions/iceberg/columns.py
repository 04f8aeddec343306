"""Columns of an Iceberg table as Spark's types, and batches of exactly these types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyspark.sql.types import DataType, StructType


def projected(schema: Schema, columns: tuple[str, ...] | None, name: str) -> Schema:
    """Return the columns of *schema* that are read, in the table's order.

    Raises:
        ConfigError: a column does not exist.
    """
    if columns is None:
        return schema
    try:
        return schema.select(*columns)
    except ValueError:
        known = ", ".join(schema.column_names)
        missing = [c for c in columns if c not in schema.column_names]
        raise ConfigError(
            f"{name}: columns: the table has no column {missing[0]!r}; it has {known}"
        ) from None


def spark_schema(schema: Schema, name: str) -> StructType:
    """Return the columns as Spark has them; each may be null, as in every source of files.

    A UUID is a text, as Iceberg's own reader has it.

    Raises:
        ConfigError: Spark has no type for a column.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    fields = []
    for field in schema.fields:
        try:
            is_uuid = str(field.field_type) == "uuid"
            kind = StringType() if is_uuid else _spark_type(field.field_type)
            fields.append(StructField(field.name, kind))
        except KeyError as error:
            raise ConfigError(
                f"{name}: column {field.name!r}: Spark has no type for {error.args[0]}; leave it "
                "out with columns="
            ) from None
    return StructType(fields)


def _spark_type(kind: Any) -> DataType:
    from pyiceberg import types as iceberg
    from pyspark.sql import types as spark

    if isinstance(kind, iceberg.StructType):
        fields = [spark.StructField(f.name, _spark_type(f.field_type)) for f in kind.fields]
        return spark.StructType(fields)
    if isinstance(kind, iceberg.ListType):
        return spark.ArrayType(_spark_type(kind.element_type))
    if isinstance(kind, iceberg.MapType):
        return spark.MapType(_spark_type(kind.key_type), _spark_type(kind.value_type))
    if isinstance(kind, iceberg.DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, iceberg.FixedType):
        return spark.BinaryType()
    names = {
        "boolean": spark.BooleanType(),
        "int": spark.IntegerType(),
        "long": spark.LongType(),
        "float": spark.FloatType(),
        "double": spark.DoubleType(),
        "date": spark.DateType(),
        "timestamp": spark.TimestampNTZType(),
        "timestamptz": spark.TimestampType(),
        "string": spark.StringType(),
        "binary": spark.BinaryType(),
    }
    return names[str(kind)]


def as_spark_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the very types that Spark takes: Iceberg's strings may be larger ones."""
    import pyarrow as pa

    arrays = [_cast(batch.column(field.name), field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cast(array: Any, kind: Any) -> Any:
    import pyarrow as pa

    if not isinstance(array.type, pa.UuidType):
        return array.cast(kind)
    return pa.array([None if each is None else str(each) for each in array.to_pylist()], kind)
