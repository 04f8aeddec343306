"""Statements, put together from names that PostgreSQL reads as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg.sql import Composable, Composed


def in_schema(schema: str, text: str, **parts: Any) -> Composed:
    """Return *text* with ``{schema}`` and *parts* filled in as identifiers or as given."""
    from psycopg import sql

    filled = {k: sql.Identifier(v) if isinstance(v, str) else v for k, v in parts.items()}
    return sql.SQL(text).format(schema=sql.Identifier(schema), **filled)


def listed(names: Iterable[str]) -> Composed:
    """Return names as identifiers with commas between."""
    from psycopg import sql

    return commas(sql.Identifier(name) for name in names)


def commas(parts: Iterable[Composable]) -> Composed:
    """Return *parts* with commas between."""
    from psycopg import sql

    return sql.SQL(", ").join(parts)
