"""Schema rules of a Delta table as a source: the tables and columns that are read exactly."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.delta.stored_columns import is_stored_alike, stored_columns
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.delta.stored_columns import StoredColumn

_READER_FEATURES: Final = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"),
        *("vacuumProtocolCheck", "typeWidening", "typeWidening-preview"),
        # Columns of this type are refused, and only where they are read.
        *("variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
    }
)
_NEWEST_READER: Final = 3  # of the protocol; it names its features one by one
_ATOMIC: Final = frozenset(
    {
        *("string", "byte", "short", "integer", "long", "float", "double", "boolean", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
_NO_COLUMNS: Final = '{"type":"struct","fields":[]}'
_DECIMAL: Final = re.compile(r"decimal\(\d+,\s*-?\d+\)")


def check_readable(table: DeltaTable, name: str) -> None:
    """Refuse a table that this source cannot read exactly.

    Raises:
        ConfigError: it names the feature.
    """
    protocol = table.protocol()
    check_protocol(protocol.min_reader_version, protocol.reader_features or (), name)


def check_protocol(reader_version: int, features: Sequence[str], name: str) -> None:
    """Refuse a protocol whose features this source does not know; see `check_readable`."""
    if reader_version > _NEWEST_READER:
        raise ConfigError(
            f"{name}: it needs version {reader_version} of Delta's reader protocol; this source "
            f"knows version {_NEWEST_READER}"
        )
    if unknown := sorted(set(features) - _READER_FEATURES):
        raise ConfigError(
            f"{name}: the table has the feature {unknown[0]!r}, which this source cannot read; "
            "read it with Delta's own connector"
        )


def spark_schema(schema: Mapping[str, Any], columns: Sequence[str] | None, name: str) -> StructType:
    """Return Spark's columns for a table; any may be null, since files may be older than a column.

    Args:
        schema: the table's, as Delta has it in JSON.
        columns: the names of those that are read, in this order; None for all.
        name: of the table, for messages.

    Raises:
        ConfigError: a column does not exist, or its type is unknown.
    """
    from pyspark.sql.types import StructType

    fields = {field["name"]: field for field in schema["fields"]}
    for column in columns or ():
        if column not in fields:
            raise ConfigError(
                f"{name}: columns: there is no column {column!r}; it has {', '.join(fields)}"
            )
    chosen = [fields[column] for column in (columns or fields)]
    for field in chosen:
        _check_type(field["type"], f"{name}: column {field['name']!r}")
    return StructType.fromJson(_nullable({"type": "struct", "fields": chosen}))


def _check_type(kind: Any, where: str) -> None:
    if isinstance(kind, str):
        if kind not in _ATOMIC and not _DECIMAL.fullmatch(kind):
            raise ConfigError(
                f"{where} has the type {kind}, which this source cannot read; leave it out with "
                "columns="
            )
        return
    for inner in _inner_types(kind):
        _check_type(inner, where)


def _inner_types(kind: Mapping[str, Any]) -> list[Any]:
    if kind["type"] == "struct":
        return [field["type"] for field in kind["fields"]]
    return [kind[key] for key in ("elementType", "keyType", "valueType") if key in kind]


def _nullable(kind: Any) -> Any:
    """Return a type that allows nulls everywhere, without the metadata of its fields."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        fields = [
            {"name": f["name"], "type": _nullable(f["type"]), "nullable": True, "metadata": {}}
            for f in kind["fields"]
        ]
        return {"type": "struct", "fields": fields}
    types = {k: _nullable(kind[k]) for k in ("elementType", "keyType", "valueType") if k in kind}
    allowed = "containsNull" if kind["type"] == "array" else "valueContainsNull"
    return {"type": kind["type"], **types, allowed: True}


def check_metadata(
    metadata: Mapping[str, Any],
    wanted: StructType,
    stored: Mapping[str, StoredColumn],
    where: str,
    *,
    may_lack: bool,
) -> list[str]:
    """Refuse metadata of a commit under which the columns of a query cannot be read.

    Args:
        metadata: the action in the log.
        wanted: the columns of the query.
        stored: these columns as files have them.
        where: the table and the version, for messages.
        may_lack: whether a column may be missing, because the metadata are older than the query.

    Returns:
        The names of the columns that the query does not read.

    Raises:
        ConfigError: a column was dropped, or has another type or another name in files.
    """
    # A table may be created without columns, and then without this text.
    text = metadata.get("schemaString") or _NO_COLUMNS
    schema = json.loads(text)  # noqa: TID251 - a text in a text that was checked
    check_columns(schema, wanted, where, may_lack=may_lack)
    now = stored_columns(schema, metadata.get("configuration") or {}, where)
    check_stored(now, stored, where, may_lack=may_lack)
    return [f["name"] for f in schema["fields"] if f["name"] not in wanted.fieldNames()]


def check_stored(
    now: Mapping[str, StoredColumn],
    wanted: Mapping[str, StoredColumn],
    where: str,
    *,
    may_lack: bool,
) -> None:
    """Refuse files that have the columns of a query under other names; see `check_metadata`."""
    if not may_lack and not is_stored_alike(wanted.values(), now.values()):
        raise ConfigError(
            f"{where}: a column was replaced by another one of the same name; begin with a new "
            "query from a snapshot (starts='snapshot')"
        )


def check_columns(
    schema: Mapping[str, Any], wanted: StructType, where: str, *, may_lack: bool
) -> None:
    """Refuse a schema under which the columns of a query cannot be read; see `check_metadata`."""
    known = {field["name"]: field["type"] for field in schema["fields"]}
    for field in wanted.jsonValue()["fields"]:
        column, kind = field["name"], field["type"]
        if column not in known and may_lack:
            continue
        if column not in known:
            raise ConfigError(
                f"{where}: column {column!r} was dropped or renamed; begin with a new query from a "
                "snapshot (starts='snapshot')"
            )
        if not _is_same(kind, known[column], may_lack=may_lack):
            raise ConfigError(
                f"{where}: column {column!r} has another type than the query reads, "
                f"{_shown(known[column])} instead of {_shown(kind)}; begin with a new query from a "
                "snapshot (starts='snapshot')"
            )


def _is_same(wanted: Any, kind: Any, *, may_lack: bool) -> bool:
    """Whether the values of *kind* are those of *wanted*, apart from further fields of structs."""
    if isinstance(wanted, str) or isinstance(kind, str):
        return bool(_spaceless(wanted) == _spaceless(kind))
    if wanted["type"] != kind["type"]:
        return False
    if wanted["type"] == "struct":
        known = {field["name"]: field["type"] for field in kind["fields"]}
        return all(
            _is_same(f["type"], known[f["name"]], may_lack=may_lack)
            if f["name"] in known
            else may_lack
            for f in wanted["fields"]
        )
    inner = zip(_inner_types(wanted), _inner_types(kind), strict=True)
    return all(_is_same(one, other, may_lack=may_lack) for one, other in inner)


def _spaceless(kind: Any) -> Any:
    return kind.replace(" ", "") if isinstance(kind, str) else kind


def _shown(kind: Any) -> str:
    from pyspark.sql.types import StructType

    field = {"name": "column", "type": _nullable(kind), "nullable": True, "metadata": {}}
    made = StructType.fromJson({"type": "struct", "fields": [field]})
    return str(made.fields[0].dataType.simpleString())
