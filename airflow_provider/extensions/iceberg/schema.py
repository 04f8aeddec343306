"""Schema rules of the ``iceberg`` sink: the columns that fit, and how partitions are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.added_columns import absent_column_error
from airflow_provider.runtime.api.kit.columns import quoted
from airflow_provider.runtime.api.kit.spark import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import pyarrow as pa
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyspark.sql import Column, DataFrame

_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000
_BY_TIME: Final = ("year", "month", "day", "hour")


def staged_schema(df: DataFrame, name: str) -> pa.Schema:
    """Return the columns of a query as Spark writes them to files.

    Raises:
        ConfigError: a type has no counterpart in Arrow.
    """
    from pyspark.errors import PySparkException

    try:
        return as_staged(arrow_schema(df.schema))
    except PySparkException as error:
        raise ConfigError(f"{name}: a column's type has no counterpart: {error}") from error


def as_staged(schema: pa.Schema) -> pa.Schema:
    """Return *schema* as Spark writes it to a file: all may be null, at every depth."""
    import pyarrow as pa

    return pa.schema([pa.field(f.name, _nullable(f.type)) for f in schema])


def _nullable(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _nullable(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    return kind


def new_schema(arrow: pa.Schema, name: str) -> Schema:
    """Return the schema of a table made for *arrow*."""
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
    from pyiceberg.schema import assign_fresh_schema_ids

    for field in arrow:
        try:
            Catalog._convert_schema_if_needed(pa.schema([field]))
        except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
            raise ConfigError(
                f"{name}: Iceberg has no type for column {field.name!r}: {error}"
            ) from error
    return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(arrow))


def new_partition_fields(
    schema: Schema, partition_by: Sequence[str], name: str
) -> list[PartitionField]:
    """Return the fields that partition a new table by the values of columns."""
    from pyiceberg.partitioning import PartitionField
    from pyiceberg.transforms import IdentityTransform

    fields = []
    for number, column in enumerate(partition_by):
        source = schema.find_field(column)
        _check_source(source.field_type, column, name)
        fields.append(PartitionField(source.field_id, 1000 + number, IdentityTransform(), column))
    return fields


def _check_source(kind: Any, column: str, name: str) -> None:
    from pyiceberg.types import DoubleType, FloatType

    # The statistics that partition values are read from know no NaN.
    if not kind.is_primitive or isinstance(kind, DoubleType | FloatType):
        raise ConfigError(
            f"{name}: column {column!r} is of type {kind}, which is none to partition by"
        )


def check_fits(
    table: Table,
    arrow: pa.Schema,
    partition_by: Sequence[str],
    name: str,
    adds: Collection[str] = (),
) -> None:
    """Refuse an existing table that cannot take files with the columns *arrow*.

    The columns *adds* it need not have, because the sink adds them.
    """
    schema, known = table.schema(), names_of(table)
    for field in arrow:
        if field.name in known:
            _check_column(schema, field, table.metadata.format_version, name)
        elif field.name in adds:
            new_schema(arrow, name)
        else:
            raise absent_column_error(name, field.name)
    for column in schema.fields:
        if column.required:
            raise ConfigError(
                f"{name}: the table's column {column.name!r} is required, and Spark writes every "
                "column as optional; make it optional in the table"
            )
    _check_names(table, arrow, name)
    _check_partitions(table, arrow, partition_by, name)


def names_of(table: Table) -> list[str]:
    """Return the names of a table's columns."""
    return [field.name for field in table.schema().fields]


def _check_column(schema: Schema, field: Any, version: Any, name: str) -> None:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    only = schema.select(field.name)
    try:
        _check_pyarrow_schema_compatible(only, pa.schema([field]), format_version=version)
    except (TypeError, ValueError) as error:
        kind = schema.find_field(field.name).field_type
        raise ConfigError(
            f"{name}: column {field.name!r} is {field.type} in the query and {kind} in the table; "
            "cast it"
        ) from error


def _check_names(table: Table, arrow: pa.Schema, name: str) -> None:
    """Refuse a name mapping by which readers would not find a column, and so read nulls."""
    mapping = table.metadata.name_mapping()
    if mapping is None:
        return  # the first commit adds one
    for field in (f for f in arrow if f.name in names_of(table)):
        wanted = table.schema().find_field(field.name).field_id
        known = [m.field_id for m in mapping.root if field.name in m.names]
        if known != [wanted]:
            raise ConfigError(
                f"{name}: the table's property schema.name-mapping.default does not map column "
                f"{field.name!r} to its id {wanted}, so readers would not find it; correct it"
            )


def _check_partitions(
    table: Table, arrow: pa.Schema, partition_by: Sequence[str], name: str
) -> None:
    from pyiceberg.io.pyarrow import MetricModeTypes, compute_statistics_plan

    schema, spec = table.schema(), table.spec()
    plan = compute_statistics_plan(schema, table.metadata.properties)
    by_value = []
    for field in spec.fields:
        column = schema.find_column_name(field.source_id)
        _split(field, name)
        if column is None or column not in arrow.names:
            raise ConfigError(
                f"{name}: the table is partitioned by {column!r}, which the query does not have"
            )
        _check_source(schema.find_field(column).field_type, column, name)
        if plan[field.source_id].mode.type in {MetricModeTypes.NONE, MetricModeTypes.COUNTS}:
            raise ConfigError(
                f"{name}: partition values are read from the files' statistics, and the table's "
                f"write.metadata.metrics properties turn those of column {column!r} off"
            )
        by_value.append(column if str(field.transform) == "identity" else f"{field.transform}")
    if partition_by and list(partition_by) != by_value:
        made = f"by {', '.join(by_value)}" if by_value else "not"
        raise ConfigError(
            f"{name}: the table is partitioned {made}, so partition_by={list(partition_by)} cannot "
            "be kept to; leave partition_by out"
        )


def partition_columns(table: Table, df: DataFrame, name: str) -> list[Column]:
    """Return expressions that are equal within each of the table's partitions, and only there.

    Truncated numbers may differ within one, which only costs files.
    """
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    made = []
    for field in table.spec().fields:
        column = str(table.schema().find_column_name(field.source_id))
        kind = df.schema[column].dataType.typeName()
        value = _split(field, name)(F.col(quoted(column)), kind)
        made.append(_tagged(value))
    return made


def _tagged(value: Column) -> Column:
    """Return a text that differs where *value* does; Spark calls both null and "" null."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    return F.coalesce(F.concat(F.lit("="), value.cast("string")), F.lit("null"))


def _split(field: PartitionField, name: str) -> Callable[[Column, str], Column]:
    from pyiceberg.transforms import TruncateTransform

    transform = str(field.transform)
    if transform == "identity":
        return _exact
    if transform in _BY_TIME:
        return lambda column, kind: _by_time(transform, column, kind)
    if isinstance(field.transform, TruncateTransform):
        width = field.transform.width
        return lambda column, kind: _truncated(width, column, kind)
    raise ConfigError(
        f"{name}: the table is partitioned by {transform} ({field.name!r}); only values, year, "
        "month, day, hour and truncate can be derived from a file's statistics"
    )


def _exact(column: Column, kind: str) -> Column:
    """Return a column that casts to different texts for different values."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    if kind == "timestamp":
        return F.unix_micros(column)  # an hour of local time comes twice a year
    return F.hex(column) if kind == "binary" else column


def _by_time(unit: str, column: Column, kind: str) -> Column:
    """Return the start of the unit in UTC, as Iceberg counts, in any time zone of the session."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    if kind == "timestamp":
        if unit == "hour":
            return F.floor(F.unix_micros(column) / _HOUR_US)
        days = F.floor(F.unix_micros(column) / _DAY_US).cast("int")
        date = F.date_add(F.lit("1970-01-01").cast("date"), days)
    else:
        date = column.cast("date")
        if unit == "hour":
            return F.concat_ws(" ", date, F.hour(column))
    return date if unit == "day" else F.trunc(date, unit)


def _truncated(width: int, column: Column, kind: str) -> Column:
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    return _exact(F.substring(column, 1, width) if kind in {"string", "binary"} else column, kind)
