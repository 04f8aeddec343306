"""Schema rules of the ``delta`` sink: the tables that the rows fit in."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.added_columns import absent_column_error

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from deltalake import DeltaTable

# The texts of other types depend on the session's time zone or are no exact image of the value.
_PARTITIONS_BY: Final = frozenset({"string", "byte", "short", "integer", "long", "boolean", "date"})
_ATOMIC: Final = _PARTITIONS_BY | {"binary", "float", "double", "timestamp", "timestamp_ntz"}
_DECIMAL: Final = re.compile(r"decimal\(\d+,-?\d+\)")
# They ask nothing of a writer that adds and removes whole files, or can be seen to be unused.
_WRITER_FEATURES: Final = frozenset(
    {
        *("appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors"),
        *("generatedColumns", "invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    }
)
_NULLABLE: Final = {
    **dict.fromkeys(("nullable", "containsNull", "valueContainsNull"), True),
    "metadata": {},
}
_NAME_MAPPING: Final = "delta.columnMapping.mode"
_TRANSACTIONS_KEPT: Final = "delta.setTransactionRetentionDuration"
_CONSTRAINT: Final = "delta.constraints."
# A column's values are then the writer's to compute or to check, and Spark wrote them already.
_COLUMN_RULES: Final = ("delta.invariants", "delta.generationExpression", "delta.identity.")


@dataclasses.dataclass(frozen=True)
class TableFacts:
    """A table's protocol, schema and configuration; old protocols have no writer features."""

    schema: Mapping[str, Any]
    partition_by: tuple[str, ...]
    configuration: Mapping[str, str]
    writer_features: frozenset[str]

    @classmethod
    def of(cls, table: DeltaTable) -> TableFacts:
        metadata = table.metadata()
        return cls(
            json.loads(table.schema().to_json()),  # noqa: TID251 - deltalake's own
            tuple(metadata.partition_columns),
            dict(metadata.configuration),
            frozenset(table.protocol().writer_features or ()),
        )


def as_stored(spark_schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a new table's schema for rows of *spark_schema*: all may be null, without metadata.

    A stream cannot promise that a column has no nulls, and Spark's metadata (watermarks, ids of
    other tables) would be taken for the table's own.

    Raises:
        ConfigError: a type has no counterpart in Delta.
    """
    fields = []
    for field in spark_schema["fields"]:
        kind = _stored_type(field["type"], field["name"], name)
        fields.append({"name": field["name"], "type": kind, "nullable": True, "metadata": {}})
    lower = [field["name"].lower() for field in fields]
    double = next((f["name"] for f in fields if lower.count(f["name"].lower()) > 1), None)
    if double is not None:
        raise ConfigError(
            f"{name}: Delta's columns differ by more than case; {double!r} is there twice"
        )
    odd = next((f["name"] for f in fields if re.search(r"[ ,;{}()\n\t=]", f["name"])), None)
    if odd is not None:
        raise ConfigError(
            f"{name}: Delta has no column {odd!r}: rename it, without any of ' ,;{{}}()=' in it"
        )
    return {"type": "struct", "fields": fields}


def _stored_type(kind: Any, column: str, name: str) -> Any:
    if isinstance(kind, str):
        if kind in _ATOMIC or _DECIMAL.fullmatch(kind):
            return kind
    elif kind["type"] == "struct":
        return as_stored(kind, name)
    elif kind["type"] == "array":
        element = _stored_type(kind["elementType"], column, name)
        return {"type": "array", "elementType": element, "containsNull": True}
    elif kind["type"] == "map":
        return {
            "type": "map",
            "keyType": _stored_type(kind["keyType"], column, name),
            "valueType": _stored_type(kind["valueType"], column, name),
            "valueContainsNull": True,
        }
    shown = kind if isinstance(kind, str) else kind.get("type")
    raise ConfigError(
        f"{name}: column {column!r} has the type {shown}, which Delta does not have; cast it"
    )


def check_partitions(schema: Mapping[str, Any], partition_by: Sequence[str], name: str) -> None:
    """Refuse partition columns that are missing, or whose type is no exact text."""
    types = {field["name"]: field["type"] for field in schema["fields"]}
    for column in partition_by:
        if column not in types:
            raise ConfigError(f"{name}: there is no column {column!r} to partition by")
        if types[column] not in _PARTITIONS_BY:
            raise ConfigError(
                f"{name}: column {column!r} of type {types[column]} cannot partition the table; "
                f"use one of {', '.join(sorted(_PARTITIONS_BY))}, such as a date of a timestamp"
            )
    if partition_by and len(partition_by) == len(types):
        raise ConfigError(f"{name}: a table cannot be partitioned by all of its columns")


def check_fits(
    table: TableFacts,
    schema: Mapping[str, Any],
    partition_by: Sequence[str],
    name: str,
    adds: Collection[str] = (),
) -> None:
    """Refuse a table that the rows do not fit in, or that requires more than the sink does.

    Args:
        table: its facts.
        schema: the rows'.
        partition_by: the sink's words.
        name: the sink's.
        adds: the columns that the table need not have, because the sink adds them.
    """
    _check_rules(table, name)
    if tuple(partition_by) != table.partition_by:
        has = ", ".join(table.partition_by) or "no column"
        raise ConfigError(
            f"{name}: the table is partitioned by {has}; say the same in partition_by"
        )
    theirs = {field["name"]: field for field in table.schema["fields"]}
    for field in schema["fields"]:
        known = theirs.pop(field["name"], None)
        if known is None:
            _check_new(field["name"], table, name, adds)
            continue
        if _plain(known["type"]) != field["type"]:
            raise ConfigError(
                f"{name}: column {field['name']!r} is {_shown(field['type'])}, but "
                f"{_shown(known['type'])} in the table; cast it"
            )
    for column in (f for f in table.schema["fields"] if not f["nullable"]):
        raise ConfigError(
            f"{name}: the table's column {column['name']!r} must not be null, which no writer "
            "checks for the rows of a stream; drop the rule (alter.drop_column_not_null)"
        )
    if missing := set(theirs) & set(table.partition_by):
        raise ConfigError(
            f"{name}: there is no column {missing.pop()!r}, by which the table is partitioned"
        )


def _check_new(column: str, table: TableFacts, name: str, adds: Collection[str]) -> None:
    if column not in adds:
        raise absent_column_error(name, column)
    for field in table.schema["fields"]:
        if field["name"].lower() == column.lower():
            raise ConfigError(
                f"{name}: the table has the column {field['name']!r}, and Delta's columns differ "
                f"by more than case; rename {column!r} in the query"
            )


def _check_rules(table: TableFacts, name: str) -> None:
    if unknown := sorted(table.writer_features - _WRITER_FEATURES):
        raise ConfigError(
            f"{name}: the table has the feature {unknown[0]!r}, which this sink cannot write"
        )
    if table.configuration.get(_NAME_MAPPING, "none") != "none":
        raise ConfigError(f"{name}: the table has {_NAME_MAPPING}, which this sink cannot write")
    if _TRANSACTIONS_KEPT in table.configuration:
        raise ConfigError(
            f"{name}: the table has {_TRANSACTIONS_KEPT}, so it would forget which epochs it has "
            "and take them twice; unset the property"
        )
    for key in table.configuration:
        if key.startswith(_CONSTRAINT):
            raise ConfigError(
                f"{name}: the table has the constraint {key!r}, which would not be checked; drop it"
            )
    for field in table.schema["fields"]:
        if any(key.startswith(_COLUMN_RULES) for key in field.get("metadata", {})):
            raise ConfigError(
                f"{name}: the table's column {field['name']!r} has rules that would not be applied"
            )


def _plain(kind: Any) -> Any:
    if isinstance(kind, list):
        return [_plain(each) for each in kind]
    if isinstance(kind, dict):
        return {key: _NULLABLE.get(key, _plain(value)) for key, value in kind.items()}
    return kind


def _shown(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        inner = ", ".join(f"{f['name']}: {_shown(f['type'])}" for f in kind["fields"])
        return f"struct<{inner}>"
    if kind["type"] == "array":
        return f"array<{_shown(kind['elementType'])}>"
    return f"map<{_shown(kind['keyType'])}, {_shown(kind['valueType'])}>"
