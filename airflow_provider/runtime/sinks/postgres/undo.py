"""Revert of epochs in a table, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.errors import RevertError
from airflow_provider.runtime.sinks.postgres.publish import (
    Destination,
    commas,
    lock_against_writers,
    row_as_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.sql import Composed

    from airflow_provider.runtime.sinks.postgres.bookkeeping import Bookkeeping, Epoch
    from airflow_provider.runtime.sinks.postgres.table import TableInfo
    from airflow_provider.runtime.sinks.protocol import Committable, Fence


def plan_revert(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    committables: Sequence[Committable],
) -> tuple[TableInfo | None, list[Epoch]]:
    """Return the table, and the published epochs to take out of it, newest first.

    Raises:
        RevertError: it could not be exact.
    """
    if not books.exists(connection):
        return None, []
    found = (books.epoch_of(connection, committable.epoch) for committable in committables)
    epochs = [epoch for epoch in found if epoch is not None and not epoch.is_reverted]
    table = destination.table.look(connection)
    if table is None:
        return None, epochs
    for epoch in epochs:
        if epoch.rows > 0:
            _check_can_undo(destination, table, epoch)
    return table, sorted(epochs, key=lambda epoch: epoch.id, reverse=True)


def _check_can_undo(destination: Destination, table: TableInfo, epoch: Epoch) -> None:
    name = destination.table.text
    if epoch.mode == "upsert":
        if not epoch.has_undo:
            msg = (
                f"{name}: what epoch id {epoch.id} replaced is no longer known, it is kept for "
                f"undo_epochs={destination.undo_epochs} epochs; restore the table from a backup"
            )
            raise RevertError(msg)
        return
    column = destination.epoch_column
    if not epoch.has_ids or column is None or table.column(column) is None:
        msg = (
            f"{name}: the rows of epoch id {epoch.id} do not say that they are its, because the "
            f"table has or had no column for it; ALTER TABLE {name} ADD COLUMN "
            f"{column or 'spark_epoch'} bigint makes it possible for later epochs"
        )
        raise RevertError(msg)


def revert(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    committables: Sequence[Committable],
    fence: Fence,
) -> None:
    """Take out what *committables* have published, and see to it that they never publish again.

    Raises:
        LeaseLostError: another driver has taken over.
        RevertError: it could not be exact; nothing was changed.

    Crash safety: all in one transaction, or nothing.
    Idempotent: by query id, table and epoch.
    """
    if not committables:
        return
    with connection.transaction():
        books.raise_fence(connection, committables[0].epoch.query_id, fence.token)
        table, epochs = plan_revert(connection, books, destination, committables)
        if table is not None and epochs:
            lock_against_writers(connection, destination.table)
            _remove(connection, books, destination, table, epochs)
        books.mark_reverted(connection, [epoch.id for epoch in epochs])
        for committable in committables:
            if books.epoch_of(connection, committable.epoch) is None:
                books.record_epoch(
                    connection, committable.epoch, mode=destination.mode, rows=0, is_reverted=True
                )
            books.drop_staged(connection, books.staged_for(connection, committable))
        fence.check()
        failpoints.hit("sql.reverting")
    failpoints.hit("sql.reverted")


def _remove(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    table: TableInfo,
    epochs: Sequence[Epoch],
) -> None:
    from psycopg import sql

    appended = [epoch.id for epoch in epochs if epoch.mode == "append" and epoch.rows > 0]
    if appended and destination.epoch_column is not None:
        delete = sql.SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(
            destination.table.identifier, sql.Identifier(destination.epoch_column)
        )
        connection.execute(delete, (appended,))
    for epoch in epochs:
        if epoch.mode == "upsert" and epoch.rows > 0:
            _restore(connection, books, destination, table, epoch)


def _restore(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    table: TableInfo,
    epoch: Epoch,
) -> None:
    """Give the rows that an epoch changed, and nobody since, what they were before."""
    row = connection.execute(
        books.statement(
            "SELECT ARRAY(SELECT jsonb_object_keys(key)), ARRAY(SELECT jsonb_object_keys(after))"
            " FROM {schema}.undo WHERE epoch_id = %s LIMIT 1"
        ),
        (epoch.id,),
    ).fetchone()
    keys, before = row if row is not None else ([], [])
    if not keys or any(table.column(key) is None for key in keys):
        msg = (
            f"{destination.table.text}: what tells rows apart was renamed or removed since epoch "
            f"id {epoch.id}; rename it back"
        )
        raise RevertError(msg)
    kept = [column for column in table.writable if column.name in before]
    gone = [name for name in before if name not in {column.name for column in kept}]
    for statement in _restoring(books, destination, table, keys, [c.name for c in kept]):
        connection.execute(statement, {"id": epoch.id, "gone": gone})


def _restoring(
    books: Bookkeeping,
    destination: Destination,
    table: TableInfo,
    keys: Sequence[str],
    kept: Sequence[str],
) -> list[Composed]:
    from psycopg import sql

    def stored(place: str, name: str) -> Composed:
        column = table.column(name)
        return sql.SQL("(u.{} ->> {})::{}").format(
            sql.SQL(place), sql.Literal(name), sql.SQL(column.type if column else "text")
        )

    same = [sql.SQL("t.{} = {}").format(sql.Identifier(key), stored("key", key)) for key in keys]
    untouched = sql.SQL("{} = u.after - %(gone)s::text[]").format(row_as_json("t", kept))
    sets = [
        sql.SQL("{} = {}").format(sql.Identifier(name), stored("before", name))
        for name in kept
        if name not in keys
    ]
    where = sql.SQL(" AND ").join([sql.SQL("u.epoch_id = %(id)s"), *same, untouched])
    parts = {"table": destination.table.identifier, "where": where}
    statements = [
        # A later upsert of another query remembers our rows: without them it replaced these.
        books.statement(
            "UPDATE {schema}.undo o SET before = u.before FROM {schema}.undo u, {schema}.epochs e"
            " WHERE u.epoch_id = %(id)s AND o.epoch_id > %(id)s AND e.id = o.epoch_id"
            " AND e.target = (SELECT target FROM {schema}.epochs WHERE id = %(id)s)"
            " AND o.key = u.key AND o.before = u.after"
        ),
        books.statement(
            "DELETE FROM {table} t USING {schema}.undo u WHERE u.before IS NULL AND {where}",
            **parts,
        ),
    ]
    if sets:
        update = (
            "UPDATE {table} t SET {sets} FROM {schema}.undo u"
            " WHERE u.before IS NOT NULL AND {where}"
        )
        statements.append(books.statement(update, sets=commas(sets), **parts))
    return statements
