"""Statements that several modules of the sink send, and the row that they agree on."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from psycopg import Connection
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


@dataclasses.dataclass(frozen=True)
class Epoch:
    """A row of ``epochs``.

    Attributes:
        id: what the target's epoch column holds.
        mode: how its rows went in.
        has_ids: whether its rows in the target carry ``id``.
        has_undo: whether what its rows replaced is still known.
        is_reverted: whether it counts no longer.
    """

    id: int
    mode: str
    rows: int
    has_ids: bool
    has_undo: bool
    is_reverted: bool


def lock_name(connection: Connection[Any], name: str) -> None:
    """Hold a lock of that name until the transaction ends: ``IF NOT EXISTS`` alone races."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name,))
