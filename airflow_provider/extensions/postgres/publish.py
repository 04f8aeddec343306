"""The transactions that publish and revert epochs, and the undo log of upserts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.copy import TargetColumn, is_own_type
from airflow_provider.extensions.postgres.table import commas, listed
from airflow_provider.runtime.api.errors import RevertError, SinkError
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.messages import FROM_SCRATCH
from airflow_provider.runtime.api.sinks import reading, skipped_epoch_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.sql import Composable, Composed

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
    table = _look_or_make(books, columns)
    id_ = books.record_epoch(
        epoch, rows=staged_rows, has_ids=to.has_ids(table), has_undo=to.keeps_undo
    )
    if to.keeps_undo:
        books.keep_undo_of_last(to.undo_epochs)
        # The undo log must have what a row was at the moment when it was replaced.
        to.table.lock_against_writers(books.connection)
    if not books.has_staged(staged_id):
        raise SinkError(
            f"{books.target}: epoch {epoch.epoch} is neither published nor staged: "
            f"{books.schema}.{staged_name(staged_id)} is gone; it was removed by hand, or the "
            f"database was restored to an earlier time; {FROM_SCRATCH}"
        )
    statement = _insert_statement(books, table, [column.name for column in columns], staged_id)
    rows = books.connection.execute(statement, {"id": id_}).rowcount
    if rows != staged_rows:
        raise SinkError(
            f"{books.target}: {staged_rows} rows of epoch {epoch.epoch} were staged, but the table "
            f"took {rows}; a trigger or rule of it drops rows"
        )


def _look_or_make(books: Books, columns: Sequence[TargetColumn]) -> TableInfo:
    table = books.to.table.look(books.connection)
    if table is not None:
        return table
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


def _insert_statement(
    books: Books, table: TableInfo, names: Sequence[str], staged_id: int
) -> Composed:
    from psycopg import sql

    to = books.to
    ids = [to.epoch_column] if to.epoch_column and to.has_ids(table) else []
    staged = sql.Identifier(books.schema, staged_name(staged_id))
    insert = sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {}").format(
        to.table.identifier,
        listed([*names, *ids]),
        commas([*map(sql.Identifier, names), *(sql.Placeholder("id") for _ in ids)]),
        staged,
    )
    if to.mode == "append":
        return insert
    changed = [name for name in [*names, *ids] if name not in to.keys]
    # A row of keys alone is set to itself, so that it is locked and counted like the others.
    sets = (
        sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in changed or to.keys
    )
    upsert = sql.SQL("{} ORDER BY {keys} ON CONFLICT ({keys}) DO UPDATE SET {}").format(
        insert, commas(sets), keys=listed(to.keys)
    )
    return _with_undo(books, upsert, table, staged) if to.keeps_undo else upsert


def _with_undo(books: Books, upsert: Composed, table: TableInfo, staged: Composable) -> Composed:
    """Return *upsert* as a statement that also logs the rows that it changes, and counts them."""
    from psycopg import sql

    keys = books.to.keys
    same = (sql.SQL("t.{0} = s.{0}").format(sql.Identifier(key)) for key in keys)
    return books.statement(
        "WITH old AS MATERIALIZED (SELECT {key} AS key, {row} AS before FROM {table} t"
        " JOIN {staged} s ON {same}), new AS ({upsert} RETURNING {key} AS key, {row} AS after)"
        " INSERT INTO {schema}.undo (epoch_id, key, before, after)"
        " SELECT %(id)s, new.key, old.before, new.after FROM new LEFT JOIN old USING (key)",
        key=_row_as_json("t", keys),
        row=_row_as_json("t", [column.name for column in table.writable]),
        table=books.to.table.identifier,
        staged=staged,
        same=sql.SQL(" AND ").join(same),
        upsert=upsert,
    )


# --- reverting ----------------------------------------------------------------------------------


def plan_revert(
    books: Books, committables: Sequence[Committable]
) -> tuple[TableInfo | None, list[Epoch]]:
    """Return the table, and its published epochs, newest first; refuse what would not be exact."""
    if not books.exists():
        return None, []
    found = (books.epoch_of(committable.epoch) for committable in committables)
    epochs = [epoch for epoch in found if epoch is not None and not epoch.is_reverted]
    table = books.to.table.look(books.connection)
    if table is not None:
        for epoch in epochs:
            if epoch.rows > 0:
                _check_revertible(books, table, epoch)
    return table, sorted(epochs, key=lambda epoch: epoch.id, reverse=True)


def _check_revertible(books: Books, table: TableInfo, epoch: Epoch) -> None:
    name, to = books.target, books.to
    if epoch.mode == "upsert" and not epoch.has_undo:
        raise RevertError(
            f"{name}: what epoch id {epoch.id} replaced is no longer known, it is kept for "
            f"undo_epochs={to.undo_epochs} epochs; restore the table from a backup"
        )
    if epoch.mode == "append" and not (epoch.has_ids and to.has_ids(table)):
        raise RevertError(
            f"{name}: the rows of epoch id {epoch.id} do not say that they are its, because the "
            f"table has or had no column for it; ALTER TABLE {name} ADD COLUMN "
            f"{to.epoch_column or 'spark_epoch'} bigint makes it possible for later epochs"
        )


def revert(books: Books, committables: Sequence[Committable], fence: Fence) -> None:
    """Remove what *committables* have published, and make sure that they never publish again.

    Crash safety: all in one transaction, or nothing.
    Idempotent: by query id, table and epoch.
    """
    with books.connection.transaction():
        books.raise_fence(committables[0].epoch.query_id, fence.token)
        table, epochs = plan_revert(books, committables)
        if table is not None and epochs:
            books.to.table.lock_against_writers(books.connection)
            _remove(books, table, [epoch for epoch in epochs if epoch.rows > 0])
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
            _restore(books, table, epoch)


def _restore(books: Books, table: TableInfo, epoch: Epoch) -> None:
    """Restore the previous values of rows that only this epoch has changed."""
    from psycopg import sql

    keys, logged = _logged_columns(books, table, epoch)
    kept = [column.name for column in table.writable if column.name in logged]
    values = {"id": epoch.id, "gone": [name for name in logged if name not in kept]}

    def equal(prefix: str, member: str, name: str) -> Composed:
        column = table.column(name)
        return sql.SQL(prefix + "{} = (u." + member + " ->> {})::{}").format(
            sql.Identifier(name), sql.Literal(name), sql.SQL(column.type if column else "text")
        )

    untouched = sql.SQL("{} = u.after - %(gone)s::text[]").format(_row_as_json("t", kept))
    same = [equal("t.", "key", key) for key in keys]
    where = sql.SQL(" AND ").join([sql.SQL("u.epoch_id = %(id)s"), *same, untouched])
    parts = {"table": books.to.table.identifier, "where": where}
    # A later upsert of another query has logged our rows: without them it replaced these.
    books.run(
        "UPDATE {schema}.undo o SET before = u.before FROM {schema}.undo u, {schema}.epochs e"
        " WHERE u.epoch_id = %(id)s AND o.epoch_id > %(id)s AND e.id = o.epoch_id"
        " AND e.target = (SELECT target FROM {schema}.epochs WHERE id = %(id)s)"
        " AND o.key = u.key AND o.before = u.after",
        values,
    )
    books.run(
        "DELETE FROM {table} t USING {schema}.undo u WHERE u.before IS NULL AND {where}",
        values,
        **parts,
    )
    if sets := [equal("", "before", name) for name in kept if name not in keys]:
        books.run(
            "UPDATE {table} t SET {sets} FROM {schema}.undo u"
            " WHERE u.before IS NOT NULL AND {where}",
            values,
            sets=commas(sets),
            **parts,
        )


def _logged_columns(books: Books, table: TableInfo, epoch: Epoch) -> tuple[list[str], list[str]]:
    row = books.run(
        "SELECT ARRAY(SELECT jsonb_object_keys(key)), ARRAY(SELECT jsonb_object_keys(after))"
        " FROM {schema}.undo WHERE epoch_id = %s LIMIT 1",
        (epoch.id,),
    ).fetchone()
    keys, logged = row if row is not None else ([], [])
    if not keys or any(table.column(key) is None for key in keys):
        raise RevertError(
            f"{books.target}: a key column was renamed or removed since epoch id {epoch.id}; "
            "rename it back"
        )
    return keys, logged


def _row_as_json(alias: str, columns: Sequence[str]) -> Composed:
    """Return an expression for a row as ``{column: value}``, each value as its type writes it.

    Unlike ``to_jsonb`` that loses nothing: a JSON null is not taken for a missing value, and every
    value can be read back by its type.
    """
    from psycopg import sql

    values: Any = (sql.SQL("{}::text").format(sql.Identifier(alias, name)) for name in columns)
    return sql.SQL("jsonb_object(ARRAY[{}]::text[], ARRAY[{}]::text[])").format(
        commas(sql.Literal(name) for name in columns), commas(values)
    )
