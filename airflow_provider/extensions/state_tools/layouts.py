"""State as tables: which ones a stateful operator has, and how each column is found; pure.

=========================================  =========================================================
operator                                   its tables, key columns before values
=========================================  =========================================================
aggregation, deduplication, limit          ``keyed_state``: one row for each key
session window                             ``keyed_state``: one row for each open session
``applyInPandasWithState`` and its like    ``keyed_state``: the columns of the state, the timeout
stream-stream join                         ``left``, ``right``: one row for each waiting row
``transformWithState``                     one for each variable, by its name, and ``timers``
=========================================  =========================================================

What Spark's reader gives as structs of columns becomes columns; what these hold stays as it is.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint.operator_kinds import StateLayout, kind_named
from airflow_provider.runtime.checkpoint.operators import (
    DEFAULT_FAMILY,
    StateSchema,
    type_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.operators import Field, StateVariable

KEYED_STATE: Final = "keyed_state"
TIMERS: Final = "timers"
PARTITION: Final = "partition_id"
EVENT_TIME: Final = "__event_time"  # what a join in state format 4 adds to its keys
_TIMER_VARIABLE: Final = "TimerState"
_DUMMY: Final = "__dummy__"  # Spark's value of keys that have none
_NO_TYPES: Final = frozenset({"void", "null"})
_JOIN_STORES: Final = ("{}-keyWithIndexToValue", "{}-keyWithTsToValues")


class TableKind(enum.Enum):
    """The kind of rows that a table has."""

    KEYED = "keyed"
    SESSIONS = "sessions"
    GROUPS = "groups"
    JOIN_SIDE = "join side"
    VALUE = "value"
    LIST = "list"
    MAP = "map"
    TIMERS = "timers"


_VARIABLES: Final = {
    "ValueState": TableKind.VALUE,
    "ListState": TableKind.LIST,
    "MapState": TableKind.MAP,
}


class Column(NamedTuple):
    """One column.

    Attributes:
        name: unique in its table.
        type: as SQL writes it.
        path: where Spark's reader has it: one of its columns, and the places within the structs.
        is_key: whether it tells the row from others.
    """

    name: str
    type: str
    path: tuple[Any, ...]
    is_key: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of a stateful operator.

    Attributes:
        name: its name among those of the operator.
        kind: what its rows are.
        options: the options of Spark's reader, apart from the place, operator and batch.
        has_ttl: whether its rows expire.
        columns: empty when the schema is not known without Spark.
    """

    name: str
    kind: TableKind
    options: Mapping[str, str]
    has_ttl: bool = False
    columns: tuple[Column, ...] = ()


def tables_of(
    kind: str, variables: Sequence[StateVariable], schemas: Mapping[str, StateSchema]
) -> tuple[Table, ...]:
    """Return the tables of a stateful operator.

    Args:
        kind: what Spark calls it.
        variables: those of ``transformWithState``.
        schemas: what is known of its stores and column families, by their names.
    """
    tables = [
        dataclasses.replace(table, columns=lay_out(table, fields) if fields else ())
        for table, fields in _tables(kind, variables, schemas)
    ]
    names = unique_names(table.name for table in tables)
    return tuple(
        dataclasses.replace(table, name=name) for table, name in zip(tables, names, strict=True)
    )


def _tables(
    kind: str, variables: Sequence[StateVariable], schemas: Mapping[str, StateSchema]
) -> Iterator[tuple[Table, Sequence[Field]]]:
    """Yield each table, and its columns as Spark's reader gives them; none when not known."""
    layout = kind_named(kind).layout
    if layout is StateLayout.SIDES:
        for side in ("left", "right"):
            schema = next(
                (schemas[n] for each in _JOIN_STORES if (n := each.format(side)) in schemas), None
            )
            fields = _key_and_value(schema, join=True)
            yield Table(side, TableKind.JOIN_SIDE, {"joinSide": side}), fields
    elif layout is StateLayout.VARIABLES:
        yield from _variable_tables(variables, schemas)
    else:
        rows = TableKind(layout.value)
        yield Table(KEYED_STATE, rows, {}), _key_and_value(schemas.get(DEFAULT_FAMILY))


def _variable_tables(
    variables: Sequence[StateVariable], schemas: Mapping[str, StateSchema]
) -> Iterator[tuple[Table, Sequence[Field]]]:
    for variable in variables:
        kind = _VARIABLES.get(variable.kind)
        if kind is None:
            continue
        # A list as one value, so that its order is kept and a key has one row.
        flat = {"flattenCollectionTypes": "false"} if kind is TableKind.LIST else {}
        table = Table(
            variable.name, kind, {"stateVarName": variable.name, **flat}, variable.has_ttl
        )
        yield table, _variable_fields(kind, schemas.get(variable.name))
    timers = [variable.name for variable in variables if variable.kind == _TIMER_VARIABLE]
    if timers:
        table = Table(TIMERS, TableKind.TIMERS, {"readRegisteredTimers": "true"})
        known = next((schemas[name] for name in timers if name in schemas), None)
        key = _inner(known.key, "key") if known else ()
        yield (
            table,
            ([_struct("key", key), _plain("expiration_timestamp_ms", "long")] if known else ()),
        )


def _key_and_value(schema: StateSchema | None, *, join: bool = False) -> Sequence[Field]:
    if schema is None:
        return ()
    key, value = list(schema.key), list(schema.value)
    if join:  # the reader leaves out what the operator has added
        key = [field for field in key if field["name"] not in {"index", EVENT_TIME}]
        value = [field for field in value if field is not value[-1] or field["name"] != "matched"]
    return [_struct("key", key), _struct("value", value)]


def _variable_fields(kind: TableKind, schema: StateSchema | None) -> Sequence[Field]:
    if schema is None:
        return ()
    if kind is TableKind.LIST:
        elements = {"type": "array", "elementType": _struct("", schema.value)["type"]}
        return [_struct("key", schema.key), {"name": "list_value", "type": elements}]
    if kind is TableKind.MAP:
        return [
            _struct("key", _inner(schema.key, "key")),
            _struct("user_map_key", schema.user_key or _inner(schema.key, "userKey")),
            _struct("user_map_value", schema.value),
        ]
    return _key_and_value(schema)


def _inner(fields: Iterable[Field], name: str) -> Sequence[Field]:
    found = next((f["type"] for f in fields if f["name"] == name), None)
    return found["fields"] if isinstance(found, dict) and found.get("type") == "struct" else ()


def _struct(name: str, fields: Iterable[Field]) -> Field:
    return {"name": name, "type": {"type": "struct", "fields": list(fields)}}


def _plain(name: str, kind: str) -> Field:
    return {"name": name, "type": kind}


def lay_out(table: Table, fields: Sequence[Field]) -> tuple[Column, ...]:
    """Return a table's columns: keys, values, and the partition.

    Args:
        table: the table.
        fields: the columns that Spark's reader gives, as its schema has them in JSON.
    """
    is_key = {"key", "user_map_key"} | ({"expiration_timestamp_ms"} & {f["name"] for f in fields})
    found: list[tuple[Field, tuple[Any, ...], bool]] = []
    for field in fields:
        if field["name"] != PARTITION:
            found += [
                (*each, field["name"] in is_key)
                for each in _leaves(table, field)
                if not (table.kind is TableKind.JOIN_SIDE and each[0]["name"] == EVENT_TIME)
            ]
    keys = [each for each in found if each[2]]
    same = {(f["name"], type_text(f["type"])) for f, _, _ in keys}
    values = [
        each
        for each in found
        if not each[2]
        and not (
            table.kind is TableKind.SESSIONS
            and (each[0]["name"], type_text(each[0]["type"])) in same
        )
    ]
    kept = [*keys, *values, (_plain(PARTITION, "integer"), (PARTITION,), False)]
    names = unique_names(field["name"] for field, _, _ in kept)
    return tuple(
        Column(name, type_text(field["type"]), path, key)
        for name, (field, path, key) in zip(names, kept, strict=True)
    )


def _leaves(table: Table, field: Field) -> Iterator[tuple[Field, tuple[Any, ...]]]:
    """Yield the columns that one of the reader's columns becomes."""
    name = field["name"]
    if table.kind is TableKind.LIST and name == "list_value":
        yield {**field, "name": table.name}, (name,)
        return
    inner = _struct_fields(field)
    if inner is None:
        yield field, (name,)
        return
    for place, part in enumerate(inner):
        within = _struct_fields(part) if _is_wrapped(table, name, part) else None
        if within is not None:
            for inner_place, leaf in enumerate(within):
                yield leaf, (name, place, inner_place)
        elif part["name"] != _DUMMY and type_text(part["type"]) not in _NO_TYPES:
            yield part, (name, place)


def _is_wrapped(table: Table, column: str, part: Field) -> bool:
    """Whether the state's own columns lie one struct deeper, beside a timeout or a TTL."""
    if table.kind is TableKind.GROUPS:
        return column == "value" and part["name"] == "groupState"
    return table.has_ttl and column in {"value", "user_map_value"} and part["name"] == "value"


def _struct_fields(field: Field) -> Sequence[Field] | None:
    kind = field["type"]
    return kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else None


def unique_names(names: Iterable[str]) -> list[str]:
    """Return *names* with numbers where needed: to SQL two that differ by case are the same."""
    taken: set[str] = set()
    found = []
    for name in names:
        chosen, number = name, 2
        while chosen.lower() in taken:
            chosen, number = f"{name}_{number}", number + 1
        taken.add(chosen.lower())
        found.append(chosen)
    return found
