"""Rows by key in PostgreSQL: which staged changes count, their transaction, and its undo log.

The table ``tombstones_<hash>`` of the bookkeeping schema has for each key that was deleted from a
target its sequence, in the columns and types of the target. It is changed in the transaction that
publishes an epoch, so no crash leaves one without the other, and it stays as long as the target.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.copy import TargetColumn
from airflow_provider.extensions.postgres.keyed_sql import (
    boolean,
    deletes,
    named,
    row_as_json,
    same,
    text,
    tombstones_of,
    when_there,
)
from airflow_provider.extensions.postgres.table import commas, definition, listed, lock_name
from airflow_provider.runtime.api.errors import (
    ConfigError,
    RefusedRowsError,
    SinkError,
)
from airflow_provider.runtime.api.kit.keyed_rows import DELETED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.table import TableInfo

log = logging.getLogger(__name__)

_SHOWN: Final = 4  # keys that are asked for, for one error


def check_tombstones(books: Books) -> None:
    """Refuse other keys or sequences than those by which the target's deletes are recorded."""
    keyed, name = books.to.keyed, tombstones_of(books.to)
    if not keyed.sequence_by or not books.has_table(name):
        return
    known, wanted = _staged_columns(books, name), [*keyed.keys, *keyed.sequence_by]
    if known != wanted:
        raise ConfigError(
            f"the table's deleted keys are recorded by {', '.join(known)}, and keys= and "
            f"sequence_by= name {', '.join(wanted)}; keep to them, or write a new table"
        )


# --- staging -------------------------------------------------------------------------------------


def reduce_staged(books: Books, staged_id: int, name: str) -> int:
    """Leave one change per key in a staging table; return how many there are. Idempotent.

    Raises:
        RefusedRowsError: two changes of a key of which neither is newer, or a null in a key.
    """
    import psycopg

    keyed, staged = books.to.keyed, staged_name(staged_id)

    def add_key() -> None:
        with books.connection.transaction():
            books.run(
                "ALTER TABLE {schema}.{table} ADD PRIMARY KEY ({keys})",
                table=staged,
                keys=listed(keyed.keys),
            )

    try:
        add_key()
    except psycopg.errors.InvalidTableDefinition:
        pass  # it has one: this was done, and its answer lost
    except psycopg.errors.UniqueViolation:
        _refuse_conflicts(books, staged, name)
        with books.connection.transaction():
            books.run(
                "DELETE FROM {schema}.{table} a USING {schema}.{table} b"
                " WHERE a.ctid > b.ctid AND {same}",
                table=staged,
                same=same("a", "b", keyed.keys),
            )
        add_key()
    except psycopg.errors.NotNullViolation as error:
        raise RefusedRowsError(
            f"{name}: rows of an epoch have a null in {', '.join(keyed.keys)}, by which the newest "
            f"row of a key is found: {error.diag.message_primary}; leave such rows out"
        ) from error
    row = books.run("SELECT count(*) FROM {schema}.{table}", table=staged).fetchone()
    return int(row[0]) if row is not None else 0


def _refuse_conflicts(books: Books, staged: str, name: str) -> None:
    keyed, columns = books.to.keyed, _staged_columns(books, staged)
    found = books.run(
        "SELECT {keys} FROM {schema}.{table} s GROUP BY {keys} HAVING count(*) > 1"
        " AND (NOT {ordered} OR count(DISTINCT CASE WHEN {deletes} THEN '{{}}' ELSE {row} END) > 1)"
        " LIMIT {most}",
        keys=named("s", keyed.keys),
        table=staged,
        ordered=boolean(value=bool(keyed.sequence_by)),
        deletes=deletes(books.to),
        row=row_as_json("s", columns),
        most=_SHOWN,
    ).fetchall()
    if found:
        raise keyed.conflict(name, "an epoch", found)


def _staged_columns(books: Books, staged: str) -> list[str]:
    found = books.run(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = {at}::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attname <> {deleted} ORDER BY attnum",
        at=text(f'"{books.schema}"."{staged}"'),
        deleted=text(DELETED),
    )
    return [str(name) for (name,) in found]


# --- publishing ----------------------------------------------------------------------------------


class KeyedEpoch:
    """The staged changes of an epoch, in the transaction that publishes them.

    Args:
        books: the sink's own tables, and the session.
        table: the target.
        names: the columns of the rows.
        staged_id: the staging table.
        epoch_id: the id of the epoch in the bookkeeping.
    """

    def __init__(
        self, books: Books, table: TableInfo, names: Sequence[str], staged_id: int, epoch_id: int
    ) -> None:
        from psycopg import sql

        self._books, self._table, self._names = books, table, names
        self._keyed, self._id = books.to.keyed, epoch_id
        self._beside = tombstones_of(books.to)
        self._parts: dict[str, Any] = {
            "target": books.to.table.identifier,
            "staged": sql.Identifier(books.schema, staged_name(staged_id)),
            "beside": sql.Identifier(books.schema, self._beside),
            "same": same("t", "s", self._keyed.keys),
            "same_beside": same("b", "s", self._keyed.keys),
            "deletes": deletes(books.to),
            "key": row_as_json("s", self._keyed.keys),
        }

    def publish(self, epoch: int) -> int:
        """Apply the changes that count; return how many rows the target took, and should have.

        Raises:
            RefusedRowsError: the target has another row of a key with the same sequence.
            SinkError: a trigger or rule of the target drops rows.
        """
        if self._keyed.sequence_by:
            make_tombstones(self._books, self._table)
            self._refuse_conflicts(epoch)
            self._drop_superseded(epoch)
        if self._keyed.delete_when is not None:
            self._bury()
        wanted = self._count("SELECT count(*) FROM {staged} s WHERE NOT {deletes}")
        taken = self._books.connection.execute(self._upsert(), {"id": self._id}).rowcount
        if self._keyed.sequence_by:
            self._run("DELETE FROM {beside} b USING {staged} s WHERE {same_beside}")
            self._run(
                "INSERT INTO {beside} ({columns}) SELECT {columns} FROM {staged} s WHERE {deletes}",
                columns=listed([*self._keyed.keys, *self._keyed.sequence_by]),
            )
        if taken != wanted:
            raise SinkError(
                f"{self._books.target}: {wanted} rows of epoch {epoch} count, but the table took "
                f"{taken}; a trigger or rule of it drops rows"
            )
        return int(taken)

    def _run(self, text: str, **parts: Any) -> Any:
        return self._books.run(text, {"id": self._id}, **{**self._parts, **parts})

    def _count(self, text: str, **parts: Any) -> int:
        return int(self._run(text, **parts).fetchone()[0])

    def _sequence(self, alias: str) -> Composed:
        from psycopg import sql

        types = {column.name: column.type for column in self._table.columns}
        values = []
        for column in self._keyed.sequence_by:
            value = sql.Identifier(alias, column)
            is_text = types[column].startswith(("text", "character"))
            # As Spark and Arrow order texts: by their bytes.
            values.append(sql.SQL('{} COLLATE "C"').format(value) if is_text else value)
        return sql.SQL("ROW({})").format(commas(values))

    def _refuse_conflicts(self, epoch: int) -> None:
        found = self._run(
            "SELECT {keys} FROM {staged} s JOIN {target} t ON {same}"
            " WHERE {new} = {old} AND ({deletes} OR {mine} IS DISTINCT FROM {theirs})"
            " UNION ALL SELECT {keys} FROM {staged} s JOIN {beside} b ON {same_beside}"
            " WHERE {new} = {buried} AND NOT {deletes}"
            " AND NOT EXISTS (SELECT FROM {target} t WHERE {same}) LIMIT {most}",
            keys=named("s", self._keyed.keys),
            new=self._sequence("s"),
            old=self._sequence("t"),
            buried=self._sequence("b"),
            mine=row_as_json("s", self._names),
            theirs=row_as_json("t", self._names),
            most=_SHOWN,
        ).fetchall()
        if found:
            raise self._keyed.conflict(self._books.target, f"epoch {epoch}", found, in_table=True)

    def _drop_superseded(self, epoch: int) -> None:
        new = self._sequence("s")
        older = self._run(
            "SELECT count(*) FROM {staged} s JOIN {target} t ON {same} WHERE {new} < {old}",
            new=new,
            old=self._sequence("t"),
        ).fetchone()[0]
        self._run(
            "DELETE FROM {staged} s USING {target} t WHERE {same} AND {new} <= {old}",
            new=new,
            old=self._sequence("t"),
        )
        buried = self._run(
            "DELETE FROM {staged} s USING {beside} b WHERE {same_beside} AND {new} <= {old}"
            " AND NOT EXISTS (SELECT FROM {target} t WHERE {same})",
            new=new,
            old=self._sequence("b"),
        ).rowcount
        if older or buried:
            log.info(
                "%s: epoch %s: %s changes are older than the table's rows, %s are not newer than "
                "deletes of their keys",
                self._books.target,
                epoch,
                older,
                buried,
            )

    def _bury(self) -> None:
        """Delete the rows of deleted keys; log what they were."""
        if not self._books.to.keeps_undo:
            self._run("DELETE FROM {target} t USING {staged} s WHERE {same} AND {deletes}")
            return
        remembers = bool(self._keyed.sequence_by)
        self._run(
            "WITH gone AS (DELETE FROM {target} t USING {staged} s WHERE {same} AND {deletes}"
            " RETURNING {key} AS key, {row} AS before)"
            " INSERT INTO {schema}.undo (epoch_id, key, before, after, buried_before, buried_after)"
            " SELECT %(id)s, {key}, gone.before, NULL, {buried_before}, {buried_after}"
            " FROM {staged} s LEFT JOIN gone ON gone.key = {key} {join}"
            " WHERE {deletes} AND ({remembers} OR gone.key IS NOT NULL)",
            row=row_as_json("t", [column.name for column in self._table.writable]),
            remembers=boolean(value=remembers),
            join=self._join_beside(),
            buried_before=self._buried("b"),
            buried_after=self._buried("s"),
        )

    def _join_beside(self) -> Composed:
        from psycopg import sql

        if not self._keyed.sequence_by:
            return sql.SQL("").format()
        return sql.SQL("LEFT JOIN {beside} b ON {same_beside}").format(
            beside=self._parts["beside"], same_beside=self._parts["same_beside"]
        )

    def _buried(self, alias: str) -> Composed:
        """Return a tombstone as JSON; null without one."""
        from psycopg import sql

        if not self._keyed.sequence_by:
            return sql.SQL("NULL::jsonb").format()
        return sql.SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(
            sql.Identifier(alias, self._keyed.keys[0]), row_as_json(alias, self._keyed.sequence_by)
        )

    def _upsert(self) -> Any:
        from psycopg import sql

        to, keys = self._books.to, self._keyed.keys
        ids = [to.epoch_column] if to.epoch_column and to.has_ids(self._table) else []
        written = [*self._names, *ids]
        # A row of keys alone is set to itself, so that it is locked and counted like the others.
        changed = [name for name in written if name not in keys] or keys
        sets = (sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in changed)
        upsert = sql.SQL(
            "INSERT INTO {} AS t ({}) SELECT {} FROM {} s WHERE NOT {} ORDER BY {keys}"
            " ON CONFLICT ({keys}) DO UPDATE SET {}"
        ).format(
            to.table.identifier,
            listed(written),
            commas([*map(sql.Identifier, self._names), *(sql.Placeholder("id") for _ in ids)]),
            self._parts["staged"],
            self._parts["deletes"],
            commas(sets),
            keys=listed(keys),
        )
        return self._with_undo(upsert) if to.keeps_undo else upsert

    def _with_undo(self, upsert: Composed) -> Composed:
        """Return *upsert* as a statement that logs the rows that it changes, and counts them."""
        row = row_as_json("t", [column.name for column in self._table.writable])
        return self._books.statement(
            "WITH old AS MATERIALIZED (SELECT coalesce({old_key}, {staged_key}) AS key,"
            " {before} AS before, {buried} AS buried"
            " FROM {staged} s LEFT JOIN {target} t ON {same} {join}"
            " WHERE NOT {deletes}),"
            " new AS ({upsert} RETURNING {target_key} AS key, {row} AS after)"
            " INSERT INTO {schema}.undo (epoch_id, key, before, after, buried_before)"
            " SELECT %(id)s, new.key, old.before, new.after, old.buried"
            " FROM new LEFT JOIN old USING (key)",
            # Equal keys may be written in two ways; the table keeps its own.
            old_key=when_there("t", self._keyed.keys[0], row_as_json("t", self._keyed.keys)),
            staged_key=self._parts["key"],
            target_key=row_as_json("t", self._keyed.keys),
            before=when_there("t", self._keyed.keys[0], row),
            buried=self._buried("b"),
            row=row,
            join=self._join_beside(),
            upsert=upsert,
            **{name: self._parts[name] for name in ("staged", "target", "same", "deletes")},
        )


def make_tombstones(books: Books, table: TableInfo) -> None:
    """Make the table of deleted keys of the target, in the open transaction. Idempotent."""
    name = tombstones_of(books.to)
    if books.has_table(name):
        return
    lock_name(books.connection, f"spark-stream {books.schema}.{name}")
    columns = [*books.to.keyed.keys, *books.to.keyed.sequence_by]
    kinds = [table.column(column) or TargetColumn(column, "text") for column in columns]
    books.run(
        "CREATE TABLE IF NOT EXISTS {schema}.{name} ({columns}, PRIMARY KEY ({keys}))",
        name=name,
        columns=commas(map(definition, kinds)),
        keys=listed(books.to.keyed.keys),
    )
