"""The transactions that publish and revert epochs, and what an epoch appends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.extensions.postgres import slices
from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.copy import TargetColumn, is_own_type
from airflow_provider.extensions.postgres.keyed import KeyedEpoch
from airflow_provider.extensions.postgres.keyed_revert import KeyedRevert
from airflow_provider.extensions.postgres.table import commas, listed
from airflow_provider.runtime.api.errors import RevertError, SinkError
from airflow_provider.runtime.api.kit.added_columns import added_columns, log_added
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.sink_errors import reading, skipped_epoch_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.bookkeeping import Epoch
    from airflow_provider.extensions.postgres.table import TableInfo
    from airflow_provider.runtime.api.sinks import Committable, Fence


def publish(books: Books, committable: Committable, fence: Fence, *, confirmed: int) -> None:
    """Publish a staged epoch, unless it is known already; *confirmed* must still be known.

    Crash safety: all in one transaction, or nothing. Idempotent: by query id, table and epoch,
    which the transaction records.
    """
    epoch = committable.epoch
    with books.connection.transaction():
        books.raise_fence(epoch.query_id, fence.token)
        staged_id = books.staged_for(committable)
        books.check_kept(epoch.query_id, confirmed)
        if books.epoch_of(epoch) is None:
            last = books.last_epoch(epoch.query_id)
            if epoch.epoch < last:
                fence.check()
                raise skipped_epoch_error(books.target, epoch, last=last)
            _insert(books, committable, staged_id)
            if committable.writer is not None:
                books.record_writer(committable.writer)
        books.drop_staged(staged_id)
        fence.check()
        failpoints.hit("postgres.committing")
    failpoints.hit("postgres.committed")


def _insert(books: Books, committable: Committable, staged_id: int) -> None:
    with reading(books.target, committable):
        columns = [TargetColumn(str(name), str(kind)) for name, kind in committable.data["columns"]]
        staged_rows = int(committable.data["rows"])
    epoch, to = committable.epoch, books.to
    table = _look_or_make(books, columns, committable)
    id_ = books.record_epoch(
        epoch, rows=staged_rows, has_ids=to.has_ids(table), has_undo=to.keeps_undo
    )
    if to.keeps_undo:
        books.keep_undo_of_last(to.undo_epochs)
    part = slices.slice_in(committable, books.target)
    if to.keeps_undo or to.keyed.sequence_by or part is not None:
        # Between a look at a row and its replacement nobody may change it.
        to.table.lock_against_writers(books.connection)
    if not books.has_staged(staged_id):
        raise SinkError(
            f"{books.target}: epoch {epoch.epoch} is neither published nor staged: "
            f"{books.schema}.{staged_name(staged_id)} is gone; it was removed by hand, or the "
            f"database was restored to an earlier time; {FROM_SCRATCH}"
        )
    names = [column.name for column in columns]
    if to.keys:
        KeyedEpoch(books, table, names, staged_id, id_).publish(epoch.epoch)
        return
    if part is not None:
        slices.remove_slice(books, part, id_, keeps_undo=to.keeps_undo)
    statement = _insert_statement(books, table, names, staged_id)
    rows = books.connection.execute(statement, {"id": id_}).rowcount
    if rows != staged_rows:
        raise SinkError(
            f"{books.target}: {staged_rows} rows of epoch {epoch.epoch} were staged, but the table "
            f"took {rows}; a trigger or rule of it drops rows"
        )


def _look_or_make(
    books: Books, columns: Sequence[TargetColumn], committable: Committable
) -> TableInfo:
    table = books.to.table.look(books.connection)
    if table is not None:
        return _with_columns(books, table, columns, committable)
    if unknown := [column for column in columns if not is_own_type(column.type)]:
        raise SinkError(
            f"{books.target}: the table is gone, and the type {unknown[0].type!r} of "
            f"column {unknown[0].name!r} is none that this sink gives a new one; make it again"
        )
    books.to.make(books.connection, columns)
    table = books.to.table.look(books.connection)
    if table is None:
        raise SinkError(f"{books.target}: the table was made and is not visible")
    return table


def _with_columns(
    books: Books, table: TableInfo, columns: Sequence[TargetColumn], committable: Committable
) -> TableInfo:
    """Return the table with all columns of the epoch's rows; it adds those that are new."""
    adds = added_columns(books.target, committable)
    new = [column for column in columns if column.name in adds and not table.column(column.name)]
    if not new:
        return table
    log_added(books.target, committable.epoch.epoch, [column.name for column in new])
    books.to.add(books.connection, new)
    return books.to.table.look(books.connection) or table


def _insert_statement(
    books: Books, table: TableInfo, names: Sequence[str], staged_id: int
) -> Composed:
    from psycopg import sql

    to = books.to
    ids = [to.epoch_column] if to.epoch_column and to.has_ids(table) else []
    return sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {}").format(
        to.table.identifier,
        listed([*names, *ids]),
        commas([*map(sql.Identifier, names), *(sql.Placeholder("id") for _ in ids)]),
        sql.Identifier(books.schema, staged_name(staged_id)),
    )


# --- reverting ----------------------------------------------------------------------------------


def plan_revert(
    books: Books, committables: Sequence[Committable], *, removes: bool = True
) -> tuple[TableInfo | None, list[Epoch]]:
    """Return the table, and its published epochs, newest first; refuse what would not be exact."""
    if not books.exists():
        return None, []
    found = (books.epoch_of(committable.epoch) for committable in committables)
    epochs = [epoch for epoch in found if epoch is not None and not epoch.is_reverted]
    table = books.to.table.look(books.connection)
    if table is not None and removes:
        for epoch in epochs:
            if epoch.has_effect:
                _check_revertible(books, table, epoch)
    return table, sorted(epochs, key=lambda epoch: epoch.id, reverse=True)


def _check_revertible(books: Books, table: TableInfo, epoch: Epoch) -> None:
    name, to = books.target, books.to
    if epoch.mode in {"upsert", "slice"} and not epoch.has_undo:
        raise RevertError(
            f"{name}: what epoch id {epoch.id} replaced is no longer known, it is kept for "
            f"undo_epochs={to.undo_epochs} epochs; restore the table from a backup"
        )
    if epoch.mode in {"append", "slice"} and not (epoch.has_ids and to.has_ids(table)):
        raise RevertError(
            f"{name}: the rows of epoch id {epoch.id} do not say that they are its, because the "
            f"table has or had no column for it; ALTER TABLE {name} ADD COLUMN "
            f"{to.epoch_column or 'spark_epoch'} bigint makes it possible for later epochs"
        )
    if epoch.mode == "slice":
        slices.check_whole(books, epoch)


def revert(
    books: Books, committables: Sequence[Committable], fence: Fence, *, removes: bool = True
) -> None:
    """Remove what *committables* have published, and make sure that they never publish again.

    Without *removes* their rows stay, because a commit is about to replace them.

    Crash safety: all in one transaction, or nothing.
    Idempotent: by query id, table and epoch.
    """
    with books.connection.transaction():
        books.raise_fence(committables[0].epoch.query_id, fence.token)
        table, epochs = plan_revert(books, committables, removes=removes)
        if removes and table is not None and epochs:
            books.to.table.lock_against_writers(books.connection)
            _remove(books, table, [epoch for epoch in epochs if epoch.has_effect])
        books.mark_reverted([epoch.id for epoch in epochs])
        for committable in committables:
            if books.epoch_of(committable.epoch) is None:
                books.record_epoch(committable.epoch, rows=0, is_reverted=True)
            books.drop_staged(books.staged_for(committable))
        fence.check()
        failpoints.hit("postgres.reverting")
    failpoints.hit("postgres.reverted")


def _remove(books: Books, table: TableInfo, epochs: Sequence[Epoch]) -> None:
    appended = [epoch.id for epoch in epochs if epoch.mode == "append"]
    if appended and books.to.epoch_column is not None:
        books.run(
            "DELETE FROM {table} WHERE {column} = ANY(%s)",
            (appended,),
            table=books.to.table.identifier,
            column=books.to.epoch_column,
        )
    for epoch in epochs:
        if epoch.mode == "upsert":
            KeyedRevert(books, table, epoch).restore()
        elif epoch.mode == "slice":
            slices.restore_slice(books, table, epoch)
