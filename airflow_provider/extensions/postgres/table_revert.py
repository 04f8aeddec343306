"""Revert of epochs in a table, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import RevertError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection

    from airflow_provider.extensions.postgres.bookkeeping import Bookkeeping
    from airflow_provider.extensions.postgres.statements import Epoch
    from airflow_provider.extensions.postgres.table import Destination, TableInfo
    from airflow_provider.runtime.api.sinks import Committable, Fence


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
            if epoch.mode == "upsert":
                books.undo.check_can_restore(epoch)
            else:
                _check_can_delete(destination, table, epoch)
    return table, sorted(epochs, key=lambda epoch: epoch.id, reverse=True)


def _check_can_delete(destination: Destination, table: TableInfo, epoch: Epoch) -> None:
    name = destination.table.text
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
    with connection.transaction():
        books.raise_fence(connection, committables[0].epoch.query_id, fence.token)
        table, epochs = plan_revert(connection, books, destination, committables)
        if table is not None and epochs:
            destination.table.lock_against_writers(connection)
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
            books.undo.restore(connection, table, epoch)
