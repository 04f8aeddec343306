"""Columns as the files of a Delta table have them: under names, or ids, that no rename changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

_MODE: Final = "delta.columnMapping.mode"
_MODES: Final = ("none", "name", "id")
_PHYSICAL: Final = "delta.columnMapping.physicalName"
_FIELD_ID: Final = "delta.columnMapping.id"
_PARQUET_ID: Final = b"PARQUET:field_id"
_NAME: Final = b"delta.name"  # of an Arrow field: its name in files
_ID: Final = b"delta.id"


class StoredColumn(NamedTuple):
    """A column, or a field of a struct.

    Attributes:
        name: the table's name of it.
        physical: its name in files, and in the partition values of the log.
        id: its id in files, if files are read by ids.
        inner: what the types within its type have: of a struct its fields, else one of these for
            an element, a key, or a value.
    """

    name: str
    physical: str
    id: int | None
    inner: tuple[Any, ...]


def stored_columns(
    schema: Mapping[str, Any], configuration: Mapping[str, Any], where: str
) -> dict[str, StoredColumn]:
    """Return the columns of a schema of Delta's in JSON, by their names in the table.

    Raises:
        ConfigError: the table names columns in a way that this source does not know.
    """
    mode = str(configuration.get(_MODE) or "none")
    if mode not in _MODES:
        raise ConfigError(
            f"{where}: {_MODE} is {mode!r}, which this source cannot read; read it with Delta's "
            "own connector"
        )
    return {column.name: column for column in _fields(schema["fields"], mode)}


def _fields(fields: Sequence[Mapping[str, Any]], mode: str) -> tuple[StoredColumn, ...]:
    found = []
    for field in fields:
        facts = field.get("metadata") or {} if mode != "none" else {}
        physical = str(facts.get(_PHYSICAL) or field["name"])
        number = facts.get(_FIELD_ID) if mode == "id" else None
        found.append(StoredColumn(field["name"], physical, number, _inner(field["type"], mode)))
    return tuple(found)


def _inner(kind: Any, mode: str) -> tuple[Any, ...]:
    if isinstance(kind, str):
        return ()
    if kind["type"] == "struct":
        return _fields(kind["fields"], mode)
    names = ("elementType", "keyType", "valueType")
    return tuple(_inner(kind[name], mode) for name in names if name in kind)


def is_stored_alike(known: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether the files of *now* have all that is in *known* under the same names and ids."""
    found = {each.name if isinstance(each, StoredColumn) else n: each for n, each in enumerate(now)}
    for number, each in enumerate(known):
        if not isinstance(each, StoredColumn):
            if number in found and not is_stored_alike(each, found[number]):
                return False
        elif other := found.get(each.name):
            is_same = (each.physical, each.id) == (other.physical, other.id)
            if not is_same or not is_stored_alike(each.inner, other.inner):
                return False
    return True


def with_stored_names(schema: pa.Schema, columns: Mapping[str, StoredColumn]) -> pa.Schema:
    """Return a schema whose fields know their names in files; `name_in_file` reads them."""
    import pyarrow as pa

    return pa.schema([_named(field, columns.get(field.name)) for field in schema])


def _named(field: pa.Field, column: StoredColumn | None) -> pa.Field:
    if column is None:
        return field
    facts = {} if column.physical == column.name else {_NAME: column.physical.encode()}
    if column.id is not None:
        facts[_ID] = str(column.id).encode()
    return field.with_type(_named_type(field.type, column.inner)).with_metadata(facts or None)


def _named_type(kind: pa.DataType, inner: tuple[Any, ...]) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        columns = {column.name: column for column in inner}
        return pa.struct([_named(field, columns.get(field.name)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_named_type(kind.value_type, inner[0])))
    if pa.types.is_map(kind):
        return pa.map_(_named_type(kind.key_type, inner[0]), _named_type(kind.item_type, inner[1]))
    return kind


def knows_names(kind: pa.DataType) -> bool:
    """Whether fields within a type have other names in files, or ids."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(
            not {_NAME, _ID}.isdisjoint(field.metadata or ()) or knows_names(field.type)
            for field in kind
        )
    if pa.types.is_list(kind):
        return knows_names(kind.value_type)
    return pa.types.is_map(kind) and (knows_names(kind.key_type) or knows_names(kind.item_type))


def has_id(field: pa.Field) -> bool:
    """Whether a file's field has an id, or a column's field is read by one."""
    facts = field.metadata or {}
    return _ID in facts or _PARQUET_ID in facts


def name_in_file(field: pa.Field, stored: Iterable[pa.Field]) -> str | None:
    """Return the name that a field of a file has for *field*; None if the file lacks it."""
    facts = field.metadata or {}
    if _ID in facts:
        ids = {(each.metadata or {}).get(_PARQUET_ID): each.name for each in stored}
        return ids.get(facts[_ID])
    name = facts[_NAME].decode() if _NAME in facts else str(field.name)
    return name if any(each.name == name for each in stored) else None
