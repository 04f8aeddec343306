"""Bookkeeping of the ``postgres`` sink in the database: its own tables, and the queries on them.

========================  ======================================================================
``fences``                for each query id the highest token that has committed or taken over
``epochs``                every published epoch; its ``id`` is what the target's epoch column holds
``undo``                  for each key that an epoch changed: its row or delete, before and after;
                          the rows of a slice that an epoch replaced
``staged``                every staging table that exists, and its owner
``staged_partitions``     the partitions of Spark that a staging table holds, each once
``staged_<id>``           the rows of one epoch, until they are published
``tombstones_<hash>``     the deleted keys of a target, and their sequences
``writers``               for each address of a job directory the identity of the directory that
                          has published last
========================  ======================================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.table import lock_name
from airflow_provider.runtime.api.errors import LeaseLostError
from airflow_provider.runtime.api.sink_errors import (
    lost_commit_error,
    reading,
    tampered_record_error,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection, Cursor
    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.table import Destination
    from airflow_provider.runtime.api.sinks import Committable, EpochId, Writer


_OWN_LOCK_WAIT_S: Final = 1
"""How long others may hold the sink's own locks before something is done about it."""
_TABLE_LOCK_WAIT_S: Final = 60
"""How long other writers may keep an epoch out of the table before it fails."""

log = logging.getLogger(__name__)

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {schema}.fences (query_id text PRIMARY KEY, token bigint NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.epochs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  query_id text NOT NULL, target text NOT NULL, epoch bigint NOT NULL, token bigint NOT NULL,
  query text NOT NULL, mode text NOT NULL, rows bigint NOT NULL,
  has_ids boolean NOT NULL, has_undo boolean NOT NULL,
  committed_at timestamptz NOT NULL DEFAULT now(), reverted_at timestamptz,
  UNIQUE (query_id, target, epoch)
);
CREATE INDEX IF NOT EXISTS epochs_with_undo ON {schema}.epochs (target, id) WHERE has_undo;
CREATE TABLE IF NOT EXISTS {schema}.undo (
  epoch_id bigint NOT NULL, key jsonb NOT NULL, before jsonb, after jsonb,
  buried_before jsonb, buried_after jsonb
);
CREATE INDEX IF NOT EXISTS undo_epoch_id ON {schema}.undo (epoch_id);
CREATE TABLE IF NOT EXISTS {schema}.staged (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  query_id text NOT NULL, target text NOT NULL, epoch bigint NOT NULL, token bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {schema}.staged_partitions (
  staged_id bigint NOT NULL REFERENCES {schema}.staged (id) ON DELETE CASCADE,
  partition integer NOT NULL, rows bigint NOT NULL, PRIMARY KEY (staged_id, partition)
);
CREATE TABLE IF NOT EXISTS {schema}.writers (
  target text NOT NULL, job_dir text NOT NULL, identity text NOT NULL,
  PRIMARY KEY (target, job_dir)
);
"""
_LAST_MADE: Final = "writers"


@dataclasses.dataclass(frozen=True)
class Epoch:
    """A row of ``epochs``: its *id* is in the target's epoch column where the rows have ids."""

    id: int
    mode: str
    rows: int
    has_ids: bool
    has_undo: bool
    is_reverted: bool

    @property
    def has_effect(self) -> bool:
        """Whether it may have changed the table: an empty run empties its slice."""
        return self.rows > 0 or self.mode == "slice"


class Books:
    """The sink's own tables, in one session, and in its open transaction if there is one."""

    def __init__(self, connection: Connection[Any], schema: str, to: Destination) -> None:
        self.connection = connection
        self.schema = schema
        self.to = to
        self.target = to.table.text

    def statement(self, text: str, **parts: Any) -> Composed:
        """Fill in ``{schema}`` and *parts*: a text is an identifier, a number is a literal."""
        from psycopg import sql

        kinds = {str: sql.Identifier, int: sql.Literal}
        filled = {k: kinds[type(v)](v) if type(v) in kinds else v for k, v in parts.items()}
        return sql.SQL(text).format(schema=sql.Identifier(self.schema), **filled)

    def run(self, text: str, values: Any = None, **parts: Any) -> Cursor[Any]:
        return self.connection.execute(self.statement(text, **parts), values)

    def _value(self, text: str, values: Any) -> Any:
        row = self.run(text, values).fetchone()
        return None if row is None else row[0]

    def exists(self) -> bool:
        return self.has_table(_LAST_MADE)

    def make(self) -> None:
        """Make the schema and the tables. Idempotent."""
        if self.exists():
            return
        with self.connection.transaction():
            lock_name(self.connection, f"spark-stream bookkeeping {self.schema}")
            # IF NOT EXISTS would ask for the permission to make one also where there is one.
            found = self.run("SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,))
            if found.rowcount == 0:
                self.run("CREATE SCHEMA {schema}")
            self.run(_TABLES)

    # --- fence ----------------------------------------------------------------------------------

    def raise_fence(self, query_id: str, token: int) -> None:
        """Shut out drivers with a lower token, and hold the fence until the transaction ends."""
        self._set_lock_wait(_OWN_LOCK_WAIT_S)
        raised = self.run(
            "INSERT INTO {schema}.fences AS f (query_id, token) VALUES (%s, %s)"
            " ON CONFLICT (query_id) DO UPDATE SET token = excluded.token"
            " WHERE f.token <= excluded.token",
            (query_id, token),
        )
        self._set_lock_wait(_TABLE_LOCK_WAIT_S)
        if raised.rowcount == 0:
            raise LeaseLostError(
                f"{self.target}: a driver with a higher fencing token than {token} writes for "
                f"query id {query_id}; this one has committed nothing since"
            )

    # --- epochs ---------------------------------------------------------------------------------

    def epoch_of(self, epoch: EpochId) -> Epoch | None:
        row = self.run(
            "SELECT id, mode, rows, has_ids, has_undo, reverted_at IS NOT NULL"
            " FROM {schema}.epochs WHERE query_id = %s AND target = %s AND epoch = %s",
            (epoch.query_id, self.target, epoch.epoch),
        ).fetchone()
        return None if row is None else Epoch(*row)

    def last_epoch(self, query_id: str) -> int:
        query = "SELECT max(epoch) FROM {schema}.epochs WHERE query_id = %s AND target = %s"
        found = self._value(query, (query_id, self.target))
        return -1 if found is None else int(found)

    def check_kept(self, query_id: str, epoch: int) -> None:
        """Refuse a database that has lost an epoch and all later ones of the query."""
        if self.last_epoch(query_id) < epoch:
            raise lost_commit_error(self.target, query_id, epoch)

    def record_epoch(
        self,
        epoch: EpochId,
        *,
        rows: int,
        has_ids: bool = False,
        has_undo: bool = False,
        is_reverted: bool = False,
    ) -> int:
        found = self._value(
            "INSERT INTO {schema}.epochs (query_id, target, epoch, token, query, mode, rows,"
            " has_ids, has_undo, reverted_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, CASE WHEN %s THEN now() END)"
            " RETURNING id",
            (
                *(epoch.query_id, self.target, epoch.epoch, epoch.token, epoch.query),
                *(self.to.mode, rows, has_ids, has_undo, is_reverted),
            ),
        )
        return int(found)

    def mark_reverted(self, ids: Sequence[int]) -> None:
        """Record that epochs are reverted. They stay known, so that they are not published."""
        self._end_undo(
            "UPDATE {schema}.epochs SET reverted_at = now(), has_undo = false"
            " WHERE id = ANY(%(ids)s) RETURNING id",
            {"ids": list(ids)},
        )

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove epochs of a query, except the newest, with what they had replaced."""
        for first, last in epochs:
            values = {"query": query_id, "target": self.target, "first": first, "last": last}
            self._end_undo(
                "DELETE FROM {schema}.epochs WHERE query_id = %(query)s"
                " AND target = %(target)s AND epoch BETWEEN %(first)s AND %(last)s"
                " AND epoch < (SELECT max(epoch) FROM {schema}.epochs"
                " WHERE query_id = %(query)s AND target = %(target)s) RETURNING id",
                values,
            )

    def keep_undo_of_last(self, epochs: int) -> None:
        """Remove undo log rows older than the target's last *epochs*."""
        self._end_undo(
            "UPDATE {schema}.epochs SET has_undo = false"
            " WHERE target = %(target)s AND has_undo AND id <= (SELECT id FROM {schema}.epochs"
            " WHERE target = %(target)s AND has_undo ORDER BY id DESC OFFSET %(keep)s LIMIT 1)"
            " RETURNING id",
            {"target": self.target, "keep": epochs},
        )

    def _end_undo(self, change: str, values: Any) -> None:
        """Execute a change of ``epochs``; remove the undo log of the ids that it returns."""
        self.run(
            "WITH old AS ({change}) DELETE FROM {schema}.undo USING old WHERE epoch_id = old.id",
            values,
            change=self.statement(change),
        )

    # --- writers --------------------------------------------------------------------------------

    def record_writer(self, writer: Writer) -> None:
        """Record which job directory publishes. Idempotent."""
        self.run(
            "INSERT INTO {schema}.writers AS w (target, job_dir, identity) VALUES (%s, %s, %s)"
            " ON CONFLICT (target, job_dir) DO UPDATE SET identity = excluded.identity"
            " WHERE w.identity <> excluded.identity",
            (self.target, writer.job_dir, writer.identity),
        )

    def writers(self, job_dir: str) -> list[str]:
        query = "SELECT identity FROM {schema}.writers WHERE target = %s AND job_dir = %s"
        return [str(row[0]) for row in self.run(query, (self.target, job_dir))]

    # --- staging --------------------------------------------------------------------------------

    def register_staged(self, epoch: EpochId) -> int:
        """Record that a staging table is about to be made, and return its id."""
        found = self._value(
            "INSERT INTO {schema}.staged (query_id, target, epoch, token)"
            " VALUES (%s, %s, %s, %s) RETURNING id",
            (epoch.query_id, self.target, epoch.epoch, epoch.token),
        )
        return int(found)

    def staged_of(self, query_id: str) -> list[tuple[int, int, int]]:
        """Return id, epoch and token of each staging table of a query for this target."""
        return self.run(
            "SELECT id, epoch, token FROM {schema}.staged"
            " WHERE query_id = %s AND target = %s ORDER BY id",
            (query_id, self.target),
        ).fetchall()

    def staged_rows(self, staged_id: int) -> int:
        query = "SELECT coalesce(sum(rows), 0) FROM {schema}.staged_partitions WHERE staged_id = %s"
        return int(self._value(query, (staged_id,)))

    def staged_for(self, committable: Committable) -> int:
        """Return the id of the epoch's staging table, which may be gone; refuse any other one."""
        epoch = committable.epoch
        with reading(self.target, committable):
            staged_id = int(committable.data["staged_id"])
        found = self.run(
            "SELECT query_id, target, epoch, token FROM {schema}.staged WHERE id = %s",
            (staged_id,),
        ).fetchone()
        if found not in (None, (epoch.query_id, self.target, epoch.epoch, epoch.token)):
            raise tampered_record_error(self.target, epoch, staged_name(staged_id))
        return staged_id

    def has_staged(self, staged_id: int) -> bool:
        return self.has_table(staged_name(staged_id))

    def drop_staged(self, staged_id: int) -> bool:
        """Remove a staging table and return True; False if a task still copies into it."""
        import psycopg

        table = staged_name(staged_id)
        try:
            with self.connection.transaction():
                self._set_lock_wait(_OWN_LOCK_WAIT_S)
                self.run("DROP TABLE IF EXISTS {schema}.{table}", table=table)
                self.run("DELETE FROM {schema}.staged WHERE id = %s", (staged_id,))
        except psycopg.errors.LockNotAvailable:
            log.warning("%s.%s is still written to", self.schema, table)
            return False
        return True

    def has_table(self, name: str) -> bool:
        """Whether the bookkeeping schema has a table."""
        query = "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s"
        return self.run(query, (self.schema, name)).rowcount > 0

    def _set_lock_wait(self, seconds: int) -> None:
        self.run("SELECT set_config('lock_timeout', %s, true)", (f"{seconds}s",))


def staged_name(staged_id: int) -> str:
    """Return the name of a staging table."""
    return f"staged_{staged_id}"
