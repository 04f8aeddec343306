"""Parts of SQL for rows by key."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.postgres.table import commas
from airflow_provider.runtime.api.kit.keyed_rows import DELETED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.table import Destination


def tombstones_of(to: Destination) -> str:
    """Return the name of the table with the deleted keys of a target."""
    return f"tombstones_{hashlib.sha256(to.table.text.encode()).hexdigest()[:16]}"


def row_as_json(alias: str, columns: Sequence[str]) -> Composed:
    """Return an expression for a row as ``{column: value}``, each value as its type writes it.

    Unlike ``to_jsonb`` that loses nothing: a JSON null is not taken for a missing value, and every
    value can be read back by its type.
    """
    from psycopg import sql

    values: Any = (sql.SQL("{}::text").format(sql.Identifier(alias, name)) for name in columns)
    return sql.SQL("jsonb_object(ARRAY[{}]::text[], ARRAY[{}]::text[])").format(
        commas(sql.Literal(name) for name in columns), commas(values)
    )


def same(one: str, other: str, keys: Sequence[str]) -> Composed:
    """Return the condition that two rows have the same keys."""
    from psycopg import sql

    return sql.SQL(" AND ").join(
        sql.SQL("{} = {}").format(sql.Identifier(one, key), sql.Identifier(other, key))
        for key in keys
    )


def named(alias: str, columns: Sequence[str]) -> Composed:
    """Return columns of *alias* with commas between."""
    from psycopg import sql

    return commas(sql.Identifier(alias, column) for column in columns)


def when_there(alias: str, key: str, value: Composed) -> Composed:
    """Return *value*, or null where the row of *alias* is missing."""
    from psycopg import sql

    return sql.SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(sql.Identifier(alias, key), value)


def deletes(to: Destination) -> Composed:
    """Return the condition that the staged change ``s`` deletes its key."""
    from psycopg import sql

    if to.keyed.delete_when is None:
        return boolean(value=False)
    return sql.SQL("{}").format(sql.Identifier("s", DELETED))


def boolean(*, value: bool) -> Composed:
    """Return a constant."""
    from psycopg import sql

    return sql.SQL("true" if value else "false").format()


def text(value: str) -> Composed:
    """Return a text as a literal."""
    from psycopg import sql

    return sql.SQL("{}").format(sql.Literal(value))
