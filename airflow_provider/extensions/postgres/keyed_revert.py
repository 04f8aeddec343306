"""The revert of an epoch of a table by key in PostgreSQL, from its undo log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.extensions.postgres.keyed_sql import row_as_json, tombstones_of
from airflow_provider.extensions.postgres.table import commas, listed
from airflow_provider.runtime.api.errors import RevertError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.bookkeeping import Books, Epoch
    from airflow_provider.extensions.postgres.table import TableInfo


class KeyedRevert:
    """The revert of one epoch, in an open transaction: rows and tombstones as they were before."""

    def __init__(self, books: Books, table: TableInfo, epoch: Epoch) -> None:
        from psycopg import sql

        self._books, self._table, self._epoch = books, table, epoch
        self._keys, self._logged = self._logged_columns()
        self._kept = [column.name for column in table.writable if column.name in self._logged]
        self._gone = [name for name in self._logged if name not in self._kept]
        name = tombstones_of(books.to)
        self._has_beside = books.has_table(name)
        self._parts: dict[str, Any] = {
            "target": books.to.table.identifier,
            "beside": sql.Identifier(books.schema, name),
            "same": self._equal("t"),
            "same_beside": self._equal("b"),
        }

    def restore(self) -> None:
        """Restore the keys that only this epoch has changed; the others stay as they are."""
        if self._has_later():
            self._relink_later()
        self._forget_touched()
        self._run(
            "DELETE FROM {target} t USING {schema}.undo u"
            " WHERE u.epoch_id = %(id)s AND u.before IS NULL AND {same}"
        )
        if sets := [name for name in self._kept if name not in self._keys]:
            self._run(
                "UPDATE {target} t SET {sets} FROM {schema}.undo u"
                " WHERE u.epoch_id = %(id)s AND u.before IS NOT NULL AND {same}",
                sets=commas(self._assigned(sets)),
            )
        if self._kept:
            self._run(
                "INSERT INTO {target} ({columns}) SELECT {restored} FROM {schema}.undo u"
                " WHERE u.epoch_id = %(id)s AND u.before IS NOT NULL AND u.after IS NULL",
                columns=listed(self._kept),
                restored=commas(self._value("before", name) for name in self._kept),
            )
        if self._has_beside:
            self._restore_tombstones()
        # An older epoch of the same revert then finds no later one.
        self._run("DELETE FROM {schema}.undo WHERE epoch_id = %(id)s")

    def _has_later(self) -> bool:
        """Whether the undo log has a later epoch of the target that is not reverted."""
        found = self._books.run(
            "SELECT FROM {schema}.epochs e WHERE e.id > %(id)s AND e.has_undo"
            " AND e.target = (SELECT target FROM {schema}.epochs WHERE id = %(id)s)"
            " AND EXISTS (SELECT FROM {schema}.undo o WHERE o.epoch_id = e.id) LIMIT 1",
            {"id": self._epoch.id},
        )
        return found.rowcount > 0

    def _relink_later(self) -> None:
        # Without figures the planner takes the log for small, and compares each row with each.
        self._run("ANALYZE {schema}.undo")
        # A later upsert of another query has logged our rows: without them it replaced these.
        self._run(
            "UPDATE {schema}.undo o SET before = u.before, buried_before = u.buried_before"
            " FROM {schema}.undo u, {schema}.epochs e"
            " WHERE u.epoch_id = %(id)s AND o.epoch_id > %(id)s AND e.id = o.epoch_id"
            " AND e.target = (SELECT target FROM {schema}.epochs WHERE id = %(id)s)"
            " AND o.key = u.key AND o.before IS NOT DISTINCT FROM u.after"
            " AND o.buried_before IS NOT DISTINCT FROM u.buried_after"
        )

    def _forget_touched(self) -> None:
        """Remove from the undo log the keys that are not as the epoch has left them."""
        from psycopg import sql

        buried = sql.SQL("u.buried_after IS NOT NULL").format()
        if self._has_beside:
            sequence = row_as_json("b", self._books.to.keyed.sequence_by)
            buried = sql.SQL(
                "(SELECT {} FROM {} b WHERE {}) IS DISTINCT FROM u.buried_after"
            ).format(sequence, self._parts["beside"], self._parts["same_beside"])
        self._run(
            "DELETE FROM {schema}.undo u WHERE u.epoch_id = %(id)s AND ("
            " (SELECT {row} FROM {target} t WHERE {same})"
            " IS DISTINCT FROM u.after - %(gone)s::text[] OR {buried})",
            row=row_as_json("t", self._kept),
            buried=buried,
        )

    def _restore_tombstones(self) -> None:
        columns = self._books.to.keyed.sequence_by
        self._run(
            "DELETE FROM {beside} b USING {schema}.undo u"
            " WHERE u.epoch_id = %(id)s AND {same_beside}"
        )
        self._run(
            "INSERT INTO {beside} ({names}) SELECT {restored} FROM {schema}.undo u"
            " WHERE u.epoch_id = %(id)s AND u.buried_before IS NOT NULL",
            names=listed([*self._keys, *columns]),
            restored=commas(
                [
                    *(self._value("key", name) for name in self._keys),
                    *(self._value("buried_before", name) for name in columns),
                ]
            ),
        )

    def _run(self, text: str, **parts: Any) -> None:
        values = {"id": self._epoch.id, "gone": self._gone}
        self._books.run(text, values, **{**self._parts, **parts})

    def _value(self, member: str, name: str) -> Composed:
        from psycopg import sql

        column = self._table.column(name)
        return sql.SQL("(u.{} ->> {})::{}").format(
            sql.Identifier(member),
            sql.Literal(name),
            sql.SQL(column.type if column else "text"),
        )

    def _equal(self, alias: str) -> Composed:
        from psycopg import sql

        return sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(sql.Identifier(alias, key), self._value("key", key))
            for key in self._keys
        )

    def _assigned(self, names: Sequence[str]) -> list[Composed]:
        from psycopg import sql

        return [
            sql.SQL("{} = {}").format(sql.Identifier(name), self._value("before", name))
            for name in names
        ]

    def _logged_columns(self) -> tuple[list[str], list[str]]:
        row = self._books.run(
            "SELECT ARRAY(SELECT jsonb_object_keys(key)),"
            " ARRAY(SELECT jsonb_object_keys(coalesce(after, before, '{{}}')))"
            " FROM {schema}.undo WHERE epoch_id = %s"
            " ORDER BY coalesce(after, before) IS NULL LIMIT 1",
            (self._epoch.id,),
        ).fetchone()
        keys, logged = row if row is not None else (list(self._books.to.keys), [])
        if not keys or any(self._table.column(key) is None for key in keys):
            raise RevertError(
                f"{self._books.target}: a key column was renamed or removed since epoch id "
                f"{self._epoch.id}; rename it back"
            )
        return keys, logged
