"""Contents of state: queries, their sources, stateful operators and tables; pure.

=========================================  =========================================================
operator                                   its tables, key columns before values
=========================================  =========================================================
aggregation, deduplication, limit          ``keyed_state``: one row for each key session window
``keyed_state``: one row for each open session ``applyInPandasWithState`` and its like
``keyed_state``: the columns of the state, the timeout stream-stream join
``left``, ``right``: one row for each waiting row ``transformWithState``                     one for
each variable, by its name, and ``timers``
=========================================  =========================================================

A struct of columns in Spark's reader becomes columns; structs in these stay as they are.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint.operator_kinds import StateLayout, kind_named
from airflow_provider.runtime.checkpoint.operators import DEFAULT_FAMILY, StateSchema, type_text
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.checkpoint.operators import Field, StateVariable


SOURCES: Final = "sources"
SOURCE_COLUMNS: Final = (
    ("id", "int"),
    ("name", "string"),
    ("offset", "string"),
    ("finish_state", "string"),
    ("batch", "bigint"),
    ("watermark", "string"),
)
SOURCE_KEYS: Final = ("id", "name")
_OPERATOR_FACTS: Final = ("id", "name", "kind", "provider", "partitions", "bytes", "finish_state")


@dataclasses.dataclass(frozen=True)
class SourceState:
    """A query's position in one of its sources; *id* is its line in Spark's offset log."""

    id: int
    name: str | None
    offset: Any
    finish_state: str | None


@dataclasses.dataclass(frozen=True)
class OperatorState:
    """One stateful operator."""

    id: int
    job_name: str | None
    kind: str
    provider: str
    partitions: int
    bytes: int
    finish_state: str
    tables: tuple[Table, ...]
    metadata_path: str | None = None
    roots: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.job_name or f"op{self.id}"

    def is_called(self, name: str) -> bool:
        return name.lower() in {self.name.lower(), str(self.id), f"op{self.id}"}


class TableAddress(NamedTuple):
    """A table of a query: ``sources``, or a table of an operator."""

    name: str
    operator: OperatorState | None
    table: Table | None


@dataclasses.dataclass(frozen=True)
class QueryState:
    """One query after one batch."""

    name: str
    checkpoint: str
    batch: int
    watermark: str
    sources: tuple[SourceState, ...]
    operators: tuple[OperatorState, ...]
    holders: tuple[str, ...] = ()
    format_version: int = 1

    def operator(self, name: str) -> OperatorState:
        """Return a stateful operator by its name or number; the error names the others."""
        for operator in self.operators:
            if operator.is_called(name):
                return operator
        listed = ", ".join(f"{o.name} ({o.kind})" for o in self.operators)
        raise ConfigError(
            f"query {self.name!r} has no stateful operator {name!r}; "
            + (f"it has {listed}" if listed else "it keeps no state")
        )

    def tables(self) -> Iterator[TableAddress]:
        """Yield the tables; with several operators their names begin with the operator's."""
        yield TableAddress(SOURCES, None, None)
        for operator in self.operators:
            for table in operator.tables:
                prefix = f"{operator.name}." if len(self.operators) > 1 else ""
                yield TableAddress(f"{prefix}{table.name}", operator, table)

    def table(self, name: str) -> TableAddress:
        """Return a table by its name, with or without the operator's; the error names others."""
        wanted = name.lower()
        found = [*self.tables()]
        for address in found:
            full = address.name.lower()
            if wanted == full:
                return address
            if address.operator is not None and address.table is not None:
                before, _, last = wanted.rpartition(".")
                if last == address.table.name.lower() and address.operator.is_called(before):
                    return address
        raise ConfigError(
            f"query {self.name!r} has no table {name!r} after batch {self.batch}; it has "
            f"{', '.join(each.name for each in found)}"
        )


@dataclasses.dataclass(frozen=True)
class State:
    """The state at one address, after one batch of each query."""

    url: str
    kind: str
    job: str | None
    queries: Mapping[str, QueryState]

    def query(self, name: str) -> QueryState:
        """Return a query by its name; the error names the others."""
        for query in self.queries.values():
            if query.name.lower() == name.lower():
                return query
        raise ConfigError(f"{self.url}: no query {name!r}; its queries: {', '.join(self.queries)}")

    def check_has_state(self) -> None:
        if not any(query.operators for query in self.queries.values()):
            raise ConfigError(
                f"{self.url}: its queries ({', '.join(self.queries)}) keep no state: they have no "
                "aggregation, deduplication, join or other stateful operator"
            )


def describe_state(state: State, operator: str | None = None) -> dict[str, Any]:
    """Return everything that is known without Spark as JSON values, of all operators or of one."""
    return {
        "version": 1,
        "url": state.url,
        "kind": state.kind,
        "job": state.job,
        "queries": {
            name: _describe_query(query, operator) for name, query in state.queries.items()
        },
    }


def _describe_query(query: QueryState, operator: str | None) -> dict[str, Any]:
    chosen = query.operators if operator is None else (query.operator(operator),)
    named = {id(a.table): a.name for a in query.tables() if a.table is not None}
    return {
        "checkpoint": query.checkpoint,
        "batch": query.batch,
        "watermark": query.watermark,
        "sources": [dataclasses.asdict(source) for source in query.sources],
        "operators": [
            {
                **{fact: getattr(each, fact) for fact in _OPERATOR_FACTS},
                "tables": [
                    {
                        "name": named[id(table)],
                        "rows_are": table.kind.value,
                        "has_ttl": table.has_ttl,
                        "has_watermark": table.has_watermark,
                        "columns": [
                            {"name": c.name, "type": c.type, "is_key": c.is_key}
                            for c in table.columns
                        ],
                    }
                    for table in each.tables
                ],
            }
            for each in chosen
        ],
    }


KEYED_STATE: Final = "keyed_state"
TIMERS: Final = "timers"
PARTITION: Final = "partition_id"
EVENT_TIME: Final = "__event_time"  # what a join in state format 4 adds to its keys
_WATERMARK: Final = "spark.watermarkDelayMs"  # Spark's mark of a column of event time
_WITHIN_WATERMARK: Final = "dedupeWithinWatermark"  # whose rows have a time of their own
_TIMER_VARIABLE: Final = "TimerState"
_DUMMY: Final = "__dummy__"  # Spark's value of keys that have none
_NO_TYPES: Final = frozenset({"void", "null"})
_JOIN_STORES: Final = ("{}-keyWithIndexToValue", "{}-keyWithTsToValues")


class TableKind(enum.Enum):
    """The kind of rows in a table."""

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
    """One column; *path* is a column of Spark's reader, and the locations within its structs."""

    name: str
    type: str
    path: tuple[Any, ...]
    is_key: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """One table of a stateful operator; *options* are those of Spark's reader."""

    name: str
    kind: TableKind
    options: Mapping[str, str]
    has_ttl: bool = False
    has_watermark: bool = False
    columns: tuple[Column, ...] = ()


def tables_of(
    kind: str, variables: Sequence[StateVariable], schemas: Mapping[str, StateSchema]
) -> tuple[Table, ...]:
    """Return the tables of an operator of Spark's *kind*; *schemas* are those of its stores."""
    tables = [
        dataclasses.replace(
            table,
            columns=lay_out(table, fields) if fields else (),
            has_watermark=_has_watermark(kind, fields),
        )
        for table, fields in _tables(kind, variables, schemas)
    ]
    names = unique_names(table.name for table in tables)
    return tuple(
        dataclasses.replace(table, name=name) for table, name in zip(tables, names, strict=True)
    )


def _has_watermark(kind: str, fields: Sequence[Field]) -> bool:
    """Whether rows are removed when the watermark has passed their event time."""
    if kind_named(kind).layout is StateLayout.VARIABLES:
        return False
    return kind == _WITHIN_WATERMARK or _WATERMARK in json.dumps(fields)


def _tables(
    kind: str, variables: Sequence[StateVariable], schemas: Mapping[str, StateSchema]
) -> Iterator[tuple[Table, Sequence[Field]]]:
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
    """Return a table's columns from those of Spark's reader: keys, values, and the partition."""
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
    name = field["name"]
    if table.kind is TableKind.LIST and name == "list_value":
        yield {**field, "name": table.name}, (name,)
        return
    inner = _struct_fields(field)
    if inner is None:
        yield field, (name,)
        return
    for position, part in enumerate(inner):
        within = _struct_fields(part) if _is_wrapped(table, name, part) else None
        if within is not None:
            for inner_location, leaf in enumerate(within):
                yield leaf, (name, position, inner_location)
        elif part["name"] != _DUMMY and type_text(part["type"]) not in _NO_TYPES:
            yield part, (name, position)


def _is_wrapped(table: Table, column: str, part: Field) -> bool:
    if table.kind is TableKind.GROUPS:
        return column == "value" and part["name"] == "groupState"
    return table.has_ttl and column in {"value", "user_map_value"} and part["name"] == "value"


def _struct_fields(field: Field) -> Sequence[Field] | None:
    kind = field["type"]
    return kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else None


def unique_names(names: Iterable[str]) -> list[str]:
    """Return *names* with numbers where needed; SQL ignores case."""
    taken: set[str] = set()
    found = []
    for name in names:
        chosen, number = name, 2
        while chosen.lower() in taken:
            chosen, number = f"{name}_{number}", number + 1
        taken.add(chosen.lower())
        found.append(chosen)
    return found
