"""Slices of a table of PostgreSQL: their condition, the rows that they replace, and their revert.

The transaction that publishes the rows deletes the slice's other rows, and keeps them in the undo
log. A lock keeps other writers out of the table until it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.table import commas
from airflow_provider.runtime.api.errors import RevertError
from airflow_provider.runtime.api.kit.slices import Slice, parse_slice, rows_outside
from airflow_provider.runtime.api.sink_errors import reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from psycopg.sql import Composed
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.postgres.bookkeeping import Epoch
    from airflow_provider.extensions.postgres.table import TableInfo
    from airflow_provider.runtime.api.sinks import Committable


def slice_of(text: str, schema: StructType, name: str) -> Slice:
    """Read a slice of rows with this schema.

    Raises:
        ConfigError: it cannot be read.
    """
    return parse_slice(text, _types_of(schema), name)


def staged_slice(part: Slice, schema: StructType) -> dict[str, Any]:
    """Return a slice as a committable has it."""
    types = _types_of(schema)
    return {"slice": part.text, "slice_columns": {column: types[column] for column in part.bounds}}


def slice_in(committable: Committable, name: str) -> Slice | None:
    """Return the slice that an epoch replaces; None if it replaces none."""
    if "slice" not in committable.data:
        return None
    with reading(name, committable):
        return parse_slice(
            str(committable.data["slice"]), dict(committable.data["slice_columns"]), name
        )


def check_rows_inside(books: Books, staged_id: int, part: Slice) -> None:
    """Refuse a staging table with a row outside of the slice.

    Raises:
        RefusedRowsError: there is one; nothing is published.
    """
    row = books.run(
        "SELECT count(*) FROM {schema}.{table} WHERE NOT coalesce({inside}, false)",
        table=staged_name(staged_id),
        inside=_condition(part),
    ).fetchone()
    if row is not None and row[0]:
        raise rows_outside(books.target, row[0], part)


def remove_slice(books: Books, part: Slice, epoch_id: int, *, keeps_undo: bool) -> None:
    """Delete the slice's rows, in the transaction that adds the new ones."""
    target, inside = books.to.table.identifier, _condition(part)
    if not keeps_undo:
        books.run("DELETE FROM {target} WHERE {inside}", target=target, inside=inside)
        return
    books.run(
        "WITH gone AS (DELETE FROM {target} AS t WHERE {inside} RETURNING to_jsonb(t) AS row)"
        " INSERT INTO {schema}.undo (epoch_id, key, before)"
        " SELECT {id}, '{{}}'::jsonb, row FROM gone",
        target=target,
        inside=inside,
        id=epoch_id,
    )


def check_whole(books: Books, epoch: Epoch) -> None:
    """Refuse to restore a slice that another writer has changed since.

    Raises:
        RevertError: rows of the epoch are missing.
    """
    row = books.run(
        "SELECT count(*) FROM {target} WHERE {column} = {id}",
        target=books.to.table.identifier,
        column=str(books.to.epoch_column),
        id=epoch.id,
    ).fetchone()
    if row is None or row[0] != epoch.rows:
        raise RevertError(
            f"{books.target}: epoch id {epoch.id} has replaced a slice with {epoch.rows:,} rows, "
            f"and {row[0] if row else 0:,} of them are left; another program has changed or "
            "replaced them, so that the rows before them are not known any more"
        )


def restore_slice(books: Books, table: TableInfo, epoch: Epoch) -> None:
    """Put back the rows that an epoch has replaced, in the place of its own."""
    from psycopg import sql

    target = books.to.table.identifier
    names = [sql.Identifier(column.name) for column in table.writable]
    books.run(
        "DELETE FROM {target} WHERE {column} = {id}",
        target=target,
        column=str(books.to.epoch_column),
        id=epoch.id,
    )
    books.run(
        "INSERT INTO {target} ({names}) SELECT {olds} FROM {schema}.undo AS u,"
        " jsonb_populate_record(NULL::{target}, u.before) AS old WHERE u.epoch_id = {id}",
        target=target,
        names=commas(names),
        olds=commas(sql.SQL("old.{}").format(name) for name in names),
        id=epoch.id,
    )


def _types_of(schema: StructType) -> Mapping[str, Any]:
    return {field["name"]: field["type"] for field in schema.jsonValue()["fields"]}


def _condition(part: Slice) -> Composed:
    from psycopg import sql

    found = []
    for column, bounds in sorted(part.bounds.items()):
        for operator, value in bounds.comparisons():
            # Texts are compared as Spark does, byte by byte, whatever the database's collation.
            form = '{} COLLATE "C" {} {}' if isinstance(value, str) else "{} {} {}"
            name, literal = sql.Identifier(column), sql.Literal(value)
            found.append(sql.SQL(form).format(name, sql.SQL(operator), literal))
    return sql.SQL(" AND ").join(found)
