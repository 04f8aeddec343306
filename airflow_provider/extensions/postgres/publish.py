"""The one transaction that publishes an epoch: its rows and the record that they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.postgres.bookkeeping import Bookkeeping, staged_name
from airflow_provider.extensions.postgres.columns import TargetColumn, is_own_type
from airflow_provider.extensions.postgres.statements import commas, listed
from airflow_provider.runtime.api.sinks import reading, skipped_epoch_error
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import SinkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.table import Destination, TableInfo
    from airflow_provider.runtime.api.sinks import Committable, Fence


def publish(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    committable: Committable,
    fence: Fence,
    *,
    confirmed: int,
) -> None:
    """Publish what *committable* names, unless its epoch is known already.

    Args:
        connection: a session without a transaction.
        books: the sink's bookkeeping.
        destination: the table.
        committable: what was staged.
        fence: checked before the transaction commits.
        confirmed: the last epoch of the query that the database has confirmed; -1 for none.

    Raises:
        LeaseLostError: another driver has taken over.
        SinkError: what was staged is gone, or the table did not take every row.
        CheckpointError: later epochs of the query are known and this one is not, or *confirmed* is
            not known any more.

    Crash safety: all in one transaction, or nothing.
    Idempotent: by query id, table and epoch, which the transaction records.
    """
    epoch = committable.epoch
    with connection.transaction():
        books.raise_fence(connection, epoch.query_id, fence.token)
        staged_id = books.staged_for(connection, committable)
        books.check_kept(connection, epoch.query_id, confirmed)
        if books.epoch_of(connection, epoch) is None:
            last = books.last_epoch(connection, epoch.query_id)
            if epoch.epoch < last:
                fence.check()
                raise skipped_epoch_error(books.target, epoch, last=last)
            _insert(connection, books, destination, committable, staged_id)
            if committable.writer is not None:
                books.record_writer(connection, committable.writer)
        books.drop_staged(connection, staged_id)
        fence.check()
        failpoints.hit("sql.committing")
    failpoints.hit("sql.committed")


def _insert(
    connection: Connection[Any],
    books: Bookkeeping,
    destination: Destination,
    committable: Committable,
    staged_id: int,
) -> None:
    data = committable.data
    with reading(books.target, committable):
        columns = [TargetColumn(str(name), str(kind)) for name, kind in data["columns"]]
        staged_rows = int(data["rows"])
    table = _look_or_make(connection, destination, columns)
    has_ids = _has_epoch_column(destination, table)
    id_ = books.record_epoch(
        connection,
        committable.epoch,
        mode=destination.mode,
        rows=staged_rows,
        has_ids=has_ids,
        has_undo=books.undo.is_kept,
    )
    books.undo.prepare(connection)
    _check_staged(connection, books, committable)
    statement = _statement(books, destination, table, columns, staged_id)
    rows = connection.execute(statement, {"id": id_}).rowcount
    if rows != staged_rows:
        msg = (
            f"{destination.table.text}: {staged_rows} rows of epoch {committable.epoch.epoch} "
            f"were staged, but the table took {rows}; a trigger or rule of it drops rows"
        )
        raise SinkError(msg)


def _look_or_make(
    connection: Connection[Any], destination: Destination, columns: Sequence[TargetColumn]
) -> TableInfo:
    table = destination.table.look(connection)
    if table is None:
        if unknown := [column for column in columns if not is_own_type(column.type)]:
            msg = (
                f"{destination.table.text}: the table is gone, and the type {unknown[0].type!r} of "
                f"column {unknown[0].name!r} is none that this sink gives a new one; make it again"
            )
            raise SinkError(msg)
        destination.table.make(
            connection, columns, keys=destination.keys, epoch_column=destination.epoch_column
        )
        table = destination.table.look(connection)
    if table is None:
        msg = f"{destination.table.text}: the table was made and is not visible"
        raise SinkError(msg)
    return table


def _has_epoch_column(destination: Destination, table: TableInfo) -> bool:
    column = destination.epoch_column
    return column is not None and table.column(column) is not None


def _check_staged(
    connection: Connection[Any], books: Bookkeeping, committable: Committable
) -> None:
    staged_id = int(committable.data["staged_id"])
    if not books.has_staged(connection, staged_id):
        msg = (
            f"{books.target}: epoch {committable.epoch.epoch} is neither published nor staged: "
            f"{books.schema}.{staged_name(staged_id)} is gone; it was removed by hand, or the "
            "database was restored to an earlier time; start a new job directory"
        )
        raise SinkError(msg)


# --- statements ---------------------------------------------------------------------------------


def _statement(
    books: Bookkeeping,
    destination: Destination,
    table: TableInfo,
    columns: Sequence[TargetColumn],
    staged_id: int,
) -> Composed:
    from psycopg import sql

    names = [column.name for column in columns]
    has_ids = _has_epoch_column(destination, table)
    ids = [destination.epoch_column] if destination.epoch_column and has_ids else []
    staged = sql.Identifier(books.schema, staged_name(staged_id))
    insert = sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {}").format(
        destination.table.identifier,
        listed([*names, *ids]),
        commas([*map(sql.Identifier, names), *(sql.Placeholder("id") for _ in ids)]),
        staged,
    )
    if destination.mode == "append":
        return insert
    changed = [name for name in [*names, *ids] if name not in destination.keys]
    # A row of keys alone is set to itself, so that it is locked and counted like the others.
    sets = (
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
        for name in changed or destination.keys
    )
    upsert = sql.SQL("{} ORDER BY {keys} ON CONFLICT ({keys}) DO UPDATE SET {}").format(
        insert, commas(sets), keys=listed(destination.keys)
    )
    return books.undo.remembering(upsert, table, staged)
