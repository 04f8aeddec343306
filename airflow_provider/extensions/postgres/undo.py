"""Undo log of upserts: what their rows replaced, so that a revert can restore it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.statements import commas, in_schema
from airflow_provider.runtime.errors import RevertError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from psycopg import Connection
    from psycopg.sql import Composable, Composed

    from airflow_provider.extensions.postgres.statements import Epoch
    from airflow_provider.extensions.postgres.table import Destination, TableInfo

_TABLE: Final = """
CREATE INDEX IF NOT EXISTS epochs_with_undo ON {schema}.epochs (target, id) WHERE has_undo;
CREATE TABLE IF NOT EXISTS {schema}.undo (
  epoch_id bigint NOT NULL,
  key jsonb NOT NULL,
  before jsonb,
  after jsonb NOT NULL
);
CREATE INDEX IF NOT EXISTS undo_epoch_id ON {schema}.undo (epoch_id);
"""


class UndoLog:
    """For each row that an upsert changed: what it was, and what it became.

    Every method works in the transaction that is open.

    Args:
        schema: the schema of the sink's own tables.
        destination: the table that is written to, and how.
    """

    def __init__(self, schema: str, destination: Destination) -> None:
        self._schema = schema
        self._to = destination

    @property
    def is_kept(self) -> bool:
        """Whether it remembers what an epoch replaces that is published now."""
        return self._to.mode == "upsert" and self._to.undo_epochs > 0

    def make(self, connection: Connection[Any]) -> None:
        """Make its table, and an index on ``epochs``. Idempotent."""
        connection.execute(self._statement(_TABLE))

    # --- publish --------------------------------------------------------------------------------

    def prepare(self, connection: Connection[Any]) -> None:
        """Make room for an epoch that has just been recorded, and keep other writers out.

        What a row was before must be what it was when it was replaced.
        """
        if not self.is_kept:
            return
        older = self._statement(
            "UPDATE {schema}.epochs SET has_undo = false"
            " WHERE target = %(target)s AND has_undo AND id <= (SELECT id FROM {schema}.epochs"
            " WHERE target = %(target)s AND has_undo ORDER BY id DESC OFFSET %(keep)s LIMIT 1)"
            " RETURNING id"
        )
        values = {"target": self._to.table.text, "keep": self._to.undo_epochs}
        self.forget(connection, older, values)
        self._to.table.lock_against_writers(connection)

    def remembering(self, upsert: Composed, table: TableInfo, staged: Composable) -> Composed:
        """Return *upsert* with what remembers the rows that it changes.

        Args:
            upsert: an ``INSERT`` into the table under the alias ``t``.
            table: what the table is like.
            staged: the name of the table that the rows come from.

        Returns:
            A statement that takes the epoch's ``id``, and counts the rows that *upsert* counts.
        """
        from psycopg import sql

        if not self.is_kept:
            return upsert
        return self._statement(
            "WITH old AS MATERIALIZED (SELECT {key} AS key, {row} AS before FROM {table} t"
            " JOIN {staged} s ON {same}), new AS ({upsert} RETURNING {key} AS key, {row} AS after)"
            " INSERT INTO {schema}.undo (epoch_id, key, before, after)"
            " SELECT %(id)s, new.key, old.before, new.after FROM new LEFT JOIN old USING (key)",
            key=_row_as_json("t", self._to.keys),
            row=_row_as_json("t", [column.name for column in table.writable]),
            table=self._to.table.identifier,
            staged=staged,
            same=sql.SQL(" AND ").join(
                sql.SQL("t.{0} = s.{0}").format(sql.Identifier(key)) for key in self._to.keys
            ),
            upsert=upsert,
        )

    # --- retention ------------------------------------------------------------------------------

    def forget(
        self, connection: Connection[Any], epochs: Composed, values: Mapping[str, Any]
    ) -> None:
        """Remove what epochs had replaced.

        Args:
            connection: a session.
            epochs: a statement on ``epochs`` that returns their ids; it is executed, too.
            values: its parameters.
        """
        delete = (
            "WITH old AS ({epochs}) DELETE FROM {schema}.undo USING old WHERE epoch_id = old.id"
        )
        connection.execute(self._statement(delete, epochs=epochs), values)

    # --- revert ---------------------------------------------------------------------------------

    def check_can_restore(self, epoch: Epoch) -> None:
        """Refuse an epoch of upserts that it does not remember.

        Raises:
            RevertError: so it is.
        """
        if not epoch.has_undo:
            msg = (
                f"{self._to.table.text}: what epoch id {epoch.id} replaced is no longer known, it "
                f"is kept for undo_epochs={self._to.undo_epochs} epochs; restore the table from a "
                "backup"
            )
            raise RevertError(msg)

    def restore(self, connection: Connection[Any], table: TableInfo, epoch: Epoch) -> None:
        """Give the rows that an epoch changed, and nobody since, what they were before.

        Raises:
            RevertError: a column that tells rows apart has another name now, or is gone.
        """
        row = connection.execute(
            self._statement(
                "SELECT ARRAY(SELECT jsonb_object_keys(key)),"
                " ARRAY(SELECT jsonb_object_keys(after))"
                " FROM {schema}.undo WHERE epoch_id = %s LIMIT 1"
            ),
            (epoch.id,),
        ).fetchone()
        keys, before = row if row is not None else ([], [])
        if not keys or any(table.column(key) is None for key in keys):
            msg = (
                f"{self._to.table.text}: what tells rows apart was renamed or removed since epoch "
                f"id {epoch.id}; rename it back"
            )
            raise RevertError(msg)
        kept = [column for column in table.writable if column.name in before]
        gone = [name for name in before if name not in {column.name for column in kept}]
        for statement in self._restoring(table, keys, [column.name for column in kept]):
            connection.execute(statement, {"id": epoch.id, "gone": gone})

    def _restoring(
        self, table: TableInfo, keys: Sequence[str], kept: Sequence[str]
    ) -> list[Composed]:
        from psycopg import sql

        same = [
            sql.SQL("t.{} = {}").format(sql.Identifier(key), _stored(table, "key", key))
            for key in keys
        ]
        untouched = sql.SQL("{} = u.after - %(gone)s::text[]").format(_row_as_json("t", kept))
        sets = [
            sql.SQL("{} = {}").format(sql.Identifier(name), _stored(table, "before", name))
            for name in kept
            if name not in keys
        ]
        where = sql.SQL(" AND ").join([sql.SQL("u.epoch_id = %(id)s"), *same, untouched])
        parts = {"table": self._to.table.identifier, "where": where}
        statements = [
            # A later upsert of another query remembers our rows: without them it replaced these.
            self._statement(
                "UPDATE {schema}.undo o SET before = u.before FROM {schema}.undo u,"
                " {schema}.epochs e"
                " WHERE u.epoch_id = %(id)s AND o.epoch_id > %(id)s AND e.id = o.epoch_id"
                " AND e.target = (SELECT target FROM {schema}.epochs WHERE id = %(id)s)"
                " AND o.key = u.key AND o.before = u.after"
            ),
            self._statement(
                "DELETE FROM {table} t USING {schema}.undo u WHERE u.before IS NULL AND {where}",
                **parts,
            ),
        ]
        if sets:
            update = (
                "UPDATE {table} t SET {sets} FROM {schema}.undo u"
                " WHERE u.before IS NOT NULL AND {where}"
            )
            statements.append(self._statement(update, sets=commas(sets), **parts))
        return statements

    def _statement(self, text: str, **parts: Any) -> Composed:
        return in_schema(self._schema, text, **parts)


def _row_as_json(alias: str, columns: Sequence[str]) -> Composed:
    """Return an expression for a row as ``{column: value}``, each value as its type writes it.

    Unlike ``to_jsonb`` that loses nothing: a JSON null is not taken for a missing value, and every
    value can be read back by its type.
    """
    from psycopg import sql

    values = (sql.SQL("{}::text").format(sql.Identifier(alias, name)) for name in columns)
    return sql.SQL("jsonb_object(ARRAY[{}]::text[], ARRAY[{}]::text[])").format(
        commas(sql.Literal(name) for name in columns), commas(values)
    )


def _stored(table: TableInfo, place: str, name: str) -> Composed:
    """Return an expression for a remembered value of a column, in the column's type."""
    from psycopg import sql

    column = table.column(name)
    return sql.SQL("(u.{} ->> {})::{}").format(
        sql.SQL(place), sql.Literal(name), sql.SQL(column.type if column else "text")
    )
