"""The table that a sink writes to: its name, its columns, and the checks before a run."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.copy import TargetColumn, is_compatible
from airflow_provider.runtime.api.errors import ConfigError
from airflow_provider.runtime.api.kit.added_columns import absent_column_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg import Connection
    from psycopg.sql import Composable, Composed, Identifier

    from airflow_provider.runtime.api.kit.keyed_rows import KeyedRows


_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_TABLE_KINDS: Final = ("r", "p")  # ordinary and partitioned
_OLDEST: Final = 120000  # generated columns, and floating point that can be read back
_NEEDED: Final = {
    "append": ("INSERT", "SELECT"),
    "upsert": ("INSERT", "SELECT", "UPDATE", "DELETE"),
    "slice": ("INSERT", "SELECT", "DELETE"),
}


def listed(names: Iterable[str]) -> Composed:
    """Return names as identifiers with commas between."""
    from psycopg import sql

    return commas(sql.Identifier(name) for name in names)


def commas(parts: Iterable[Composable]) -> Composed:
    """Return *parts* with commas between."""
    from psycopg import sql

    return sql.SQL(", ").join(parts)


def lock_name(connection: Connection[Any], name: str) -> None:
    """Hold a lock of that name until the transaction ends: ``IF NOT EXISTS`` alone races."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table of the database: its columns, those that need or take no value, its unique keys."""

    oid: int
    columns: tuple[TargetColumn, ...]
    required: frozenset[str]
    computed: frozenset[str]
    unique: tuple[frozenset[str], ...]

    def column(self, name: str) -> TargetColumn | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def writable(self) -> tuple[TargetColumn, ...]:
        return tuple(column for column in self.columns if column.name not in self.computed)


class TableName:
    """A table's name, ``table`` or ``schema.table``, exactly as PostgreSQL stores it."""

    def __init__(self, text: str) -> None:
        self.parts = _split(text)
        self.text = text

    @property
    def schema(self) -> str | None:
        """The schema; None leaves it to the session's search path."""
        return self.parts[0] if len(self.parts) > 1 else None

    @property
    def identifier(self) -> Identifier:
        from psycopg import sql

        return sql.Identifier(*self.parts)

    def look(self, connection: Connection[Any]) -> TableInfo | None:
        """Return the table's columns and constraints; None without a table."""
        found = connection.execute(
            "SELECT c.oid, c.relkind::text FROM pg_class c WHERE c.oid = to_regclass(%s)",
            (self.identifier.as_string(connection),),
        ).fetchone()
        if found is None:
            return None
        oid, kind = found
        if kind not in _TABLE_KINDS:
            raise ConfigError(
                f"{self.text} is not a table (pg_class.relkind is {kind!r}); name one"
            )
        rows = connection.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod),"
            " a.attnotnull AND NOT a.atthasdef AND a.attidentity = '',"
            " a.attgenerated <> '' OR a.attidentity = 'a'"
            " FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped"
            " ORDER BY a.attnum",
            (oid,),
        ).fetchall()
        return TableInfo(
            oid=oid,
            columns=tuple(TargetColumn(name, kind) for name, kind, _, _ in rows),
            required=frozenset(name for name, _, is_required, _ in rows if is_required),
            computed=frozenset(name for name, _, _, is_computed in rows if is_computed),
            unique=_unique_sets(connection, oid),
        )

    def lock_against_writers(self, connection: Connection[Any]) -> None:
        from psycopg import sql

        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(self.identifier)
        )


@dataclasses.dataclass(frozen=True)
class Destination:
    """Where rows go, and how: appended, by key, or in the place of a slice."""

    table: TableName
    keyed: KeyedRows
    epoch_column: str | None
    undo_epochs: int
    replace: str | None = None
    adds_columns: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return self.keyed.keys

    @property
    def mode(self) -> str:
        """The kind of an epoch in the sink's own tables."""
        if self.replace is not None:
            return "slice"
        return "upsert" if self.keys else "append"

    @property
    def keeps_undo(self) -> bool:
        return self.mode != "append" and self.undo_epochs > 0

    def has_ids(self, table: TableInfo) -> bool:
        return self.epoch_column is not None and table.column(self.epoch_column) is not None

    def make(self, connection: Connection[Any], columns: Sequence[TargetColumn]) -> None:
        """Make the table in the open transaction, unless another driver is faster."""
        from psycopg import sql

        lock_name(connection, f"spark-stream target {self.table.text}")
        ids = [TargetColumn(self.epoch_column, "bigint")] if self.epoch_column else []
        parts = [definition(column) for column in (*columns, *ids)]
        if self.keys:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(listed(self.keys)))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                self.table.identifier, commas(parts)
            )
        )

    def add(self, connection: Connection[Any], columns: Sequence[TargetColumn]) -> None:
        """Add columns to the table in the open transaction, unless another driver was faster."""
        from psycopg import sql

        for column in columns:
            connection.execute(
                sql.SQL("ALTER TABLE {} ADD COLUMN IF NOT EXISTS {}").format(
                    self.table.identifier, definition(column)
                )
            )


def definition(column: TargetColumn) -> Any:
    """Return a column as ``CREATE TABLE`` wants it."""
    from psycopg import sql

    # The type is PostgreSQL's own spelling, or ours: never a user's text.
    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))


def _check_columns(table: TableInfo, wanted: Sequence[TargetColumn], to: Destination) -> None:
    for column in wanted:
        existing = table.column(column.name)
        if existing is None:
            if to.adds_columns:
                continue
            raise absent_column_error(to.table.text, column.name)
        if column.name in table.computed:
            raise ConfigError(
                f"column {column.name!r} is generated by the table; leave it out of the rows"
            )
        if not is_compatible(column, existing):
            raise ConfigError(
                f"column {column.name!r} has type {existing.type}, and the rows' {column.type} "
                "does not fit into it without loss; cast one of them"
            )


def _check_fits(table: TableInfo, wanted: Sequence[TargetColumn], to: Destination) -> None:
    keys, epoch_column = to.keys, to.epoch_column
    _check_columns(table, wanted, to)
    given = {column.name for column in wanted} | ({epoch_column} if epoch_column else set())
    if missing := sorted(table.required - given):
        raise ConfigError(
            f"column {missing[0]!r} is NOT NULL without a default, and the rows do not have it"
        )
    if keys and frozenset(keys) not in table.unique:
        names = ", ".join(keys)
        raise ConfigError(
            f"there is no unique constraint on exactly ({names}); ALTER TABLE … ADD UNIQUE it"
        )
    existing = table.column(epoch_column) if epoch_column else None
    if existing is not None and existing.type != "bigint":
        raise ConfigError(
            f"column {epoch_column!r} is for the epochs' ids and must be bigint, not "
            f"{existing.type}; choose another name by epoch_column="
        )


def _unique_sets(connection: Connection[Any], oid: int) -> tuple[frozenset[str], ...]:
    rows = connection.execute(
        "SELECT array_agg(a.attname::text) FROM pg_index i"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid"
        " AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])"
        " WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate"
        " AND i.indpred IS NULL AND i.indexprs IS NULL GROUP BY i.indexrelid",
        (oid,),
    ).fetchall()
    return tuple(frozenset(names) for (names,) in rows)


def _split(text: str) -> tuple[str, ...]:
    parts: list[str] = []
    at = 0
    while match := _PART.match(text, at):
        parts.append(match[1].replace('""', '"') if match[1] else match[2])
        at = match.end()
        if text[at : at + 1] != "." or at + 1 == len(text):
            break
        at += 1
    if at != len(text) or not 1 <= len(parts) <= 2:  # noqa: PLR2004 - schema and table
        raise ConfigError(
            f"table {text!r}: write table or schema.table, a part with dots in double quotes"
        )
    return tuple(parts)


# --- checks before a run -------------------------------------------------------------------------


def check_database(
    connection: Connection[Any], schema: str, to: Destination, columns: Sequence[TargetColumn]
) -> None:
    """Refuse a database that cannot take the rows, or the sink's own *schema*; writes nothing."""
    if connection.info.server_version < _OLDEST:
        raise ConfigError(
            f"PostgreSQL {connection.info.server_version // 10000} is too old; 12 is needed"
        )
    if _ask(connection, "SELECT current_setting('transaction_read_only')::boolean"):
        raise ConfigError("this server only reads, it is a standby or set so; name the primary")
    _check_bookkeeping(connection, schema)
    table = to.table.look(connection)
    if table is None:
        _check_can_make(connection, to.table)
        return
    _check_fits(table, columns, to)
    _check_can_add(connection, table, columns, to)
    for privilege in _NEEDED[to.mode]:
        question = "SELECT has_table_privilege(%s::oid, %s)"
        if not _ask(connection, question, (table.oid, privilege)):
            raise ConfigError(f"no permission; GRANT {privilege} on the table to this user")


def _check_can_add(
    connection: Connection[Any],
    table: TableInfo,
    columns: Sequence[TargetColumn],
    to: Destination,
) -> None:
    if all(table.column(column.name) for column in columns):
        return
    question = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = %s"
    if not _ask(connection, question, (table.oid,)):
        raise ConfigError(
            "no permission to add a column, which the table's owner alone has; ALTER TABLE … ADD "
            "COLUMN it as the owner, or GRANT the owner's role to this user"
        )


def _check_bookkeeping(connection: Connection[Any], schema: str) -> None:
    allowed = _may_create_in(connection, schema)
    if allowed is None:
        question = "SELECT has_database_privilege(current_database(), 'CREATE')"
        if not _ask(connection, question):
            raise ConfigError(
                f"there is no schema {schema!r} for the sink's own tables, and no permission "
                f"to make one; CREATE SCHEMA {schema} AUTHORIZATION this user"
            )
    elif not allowed:
        raise ConfigError(
            f"no permission to make tables in schema {schema!r}; GRANT CREATE, USAGE on it"
        )


def _check_can_make(connection: Connection[Any], table: TableName) -> None:
    schema = table.schema or _ask(connection, "SELECT current_schema()")
    allowed = None if schema is None else _may_create_in(connection, schema)
    if allowed is None:
        raise ConfigError(
            f"there is no schema {schema or 'in the search path'!r} for the table; CREATE it"
        )
    if not allowed:
        raise ConfigError(
            f"there is no such table, and no permission to make it in schema {schema!r}"
        )


def _may_create_in(connection: Connection[Any], schema: str) -> bool | None:
    question = (
        "SELECT has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE')"
        " FROM pg_namespace WHERE nspname = %s"
    )
    found = _ask(connection, question, (schema,))
    return None if found is None else bool(found)


def _ask(connection: Connection[Any], question: str, values: Sequence[Any] = ()) -> Any:
    row = connection.execute(question.encode(), values).fetchone()
    return None if row is None else row[0]
