"""The table that a sink writes to: what it is called, what it is like, whether it will do."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.columns import TargetColumn, is_compatible
from airflow_provider.extensions.postgres.statements import lock_name
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.sql import Identifier


_PART: Final = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_TABLE_KINDS: Final = ("r", "p")  # ordinary and partitioned


@dataclasses.dataclass(frozen=True)
class TableInfo:
    """A table of the database.

    Attributes:
        columns: all that it has, in order.
        required: columns that a row must give a value for.
        computed: columns that take no value.
        unique: sets of columns with a unique constraint or index over all rows.
    """

    oid: int
    columns: tuple[TargetColumn, ...]
    required: frozenset[str]
    computed: frozenset[str]
    unique: tuple[frozenset[str], ...]

    def column(self, name: str) -> TargetColumn | None:
        """Return the column of that name, if there is one."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def writable(self) -> tuple[TargetColumn, ...]:
        """Return the columns that take a value."""
        return tuple(column for column in self.columns if column.name not in self.computed)


class TableName:
    """A table's name, ``table`` or ``schema.table``, exactly as PostgreSQL stores it.

    Upper case stays upper case. A part that holds a dot is written in double quotes.

    Raises:
        ConfigError: it is not such a name.
    """

    def __init__(self, text: str) -> None:
        self.parts = _split(text)
        self.text = text

    @property
    def schema(self) -> str | None:
        """Return the schema; None leaves it to the session's search path."""
        return self.parts[0] if len(self.parts) > 1 else None

    @property
    def identifier(self) -> Identifier:
        """Return it quoted for a statement."""
        from psycopg import sql

        return sql.Identifier(*self.parts)

    def look(self, connection: Connection[Any]) -> TableInfo | None:
        """Return what the table is like; None when there is none.

        Raises:
            ConfigError: something else has that name.
        """
        found = connection.execute(
            "SELECT c.oid, c.relkind::text FROM pg_class c WHERE c.oid = to_regclass(%s)",
            (self.identifier.as_string(connection),),
        ).fetchone()
        if found is None:
            return None
        oid, kind = found
        if kind not in _TABLE_KINDS:
            msg = f"{self.text} is not a table (pg_class.relkind is {kind!r}); name one"
            raise ConfigError(msg)
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

    def make(
        self,
        connection: Connection[Any],
        columns: Sequence[TargetColumn],
        *,
        keys: Sequence[str],
        epoch_column: str | None,
    ) -> None:
        """Make the table in the transaction that is open, unless somebody else is faster."""
        from psycopg import sql

        lock_name(connection, f"spark-stream target {self.text}")
        parts = [definition(column) for column in columns]
        if epoch_column is not None:
            parts.append(definition(TargetColumn(epoch_column, "bigint")))
        if keys:
            names = sql.SQL(", ").join(map(sql.Identifier, keys))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names))
        connection.execute(
            sql.SQL("CREATE TABLE IF NOT EXISTS {} ({})").format(
                self.identifier, sql.SQL(", ").join(parts)
            )
        )

    def lock_against_writers(self, connection: Connection[Any]) -> None:
        """Keep other writers, but no reader, out of it until the transaction ends."""
        from psycopg import sql

        connection.execute(
            sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(self.identifier)
        )


def definition(column: TargetColumn) -> Any:
    """Return a column as ``CREATE TABLE`` wants it."""
    from psycopg import sql

    # The type is PostgreSQL's own spelling, or ours: never a user's text.
    return sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))


def check_fits(
    table: TableInfo,
    wanted: Sequence[TargetColumn],
    *,
    keys: Sequence[str],
    epoch_column: str | None,
) -> None:
    """Refuse a table that cannot take the rows.

    Raises:
        ConfigError: the message names the column, without the table.
    """
    for column in wanted:
        existing = table.column(column.name)
        if existing is None:
            msg = f"the table has no column {column.name!r}; ALTER TABLE … ADD COLUMN it"
            raise ConfigError(msg)
        if column.name in table.computed:
            msg = f"column {column.name!r} is generated by the table; leave it out of the rows"
            raise ConfigError(msg)
        if not is_compatible(column, existing):
            msg = (
                f"column {column.name!r} has type {existing.type}, and the rows' {column.type} "
                "does not fit into it without loss; cast one of them"
            )
            raise ConfigError(msg)
    given = {column.name for column in wanted} | ({epoch_column} if epoch_column else set())
    if missing := sorted(table.required - given):
        msg = f"column {missing[0]!r} is NOT NULL without a default, and the rows do not have it"
        raise ConfigError(msg)
    if keys and frozenset(keys) not in table.unique:
        names = ", ".join(keys)
        msg = f"there is no unique constraint on exactly ({names}); ALTER TABLE … ADD UNIQUE it"
        raise ConfigError(msg)
    existing = table.column(epoch_column) if epoch_column else None
    if existing is not None and existing.type != "bigint":
        msg = (
            f"column {epoch_column!r} is for the epochs' ids and must be bigint, not "
            f"{existing.type}; choose another name by epoch_column="
        )
        raise ConfigError(msg)


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
        msg = f"table {text!r}: write table or schema.table, a part with dots in double quotes"
        raise ConfigError(msg)
    return tuple(parts)


@dataclasses.dataclass(frozen=True)
class Destination:
    """Where rows go, and how.

    Attributes:
        mode: ``append`` or ``upsert``.
        keys: what tells rows apart in ``upsert``.
        epoch_column: the table's column for epochs' ids; None for none.
        undo_epochs: for how many epochs it is kept what an upsert replaced.
    """

    table: TableName
    mode: str
    keys: tuple[str, ...]
    epoch_column: str | None
    undo_epochs: int
