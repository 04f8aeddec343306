"""Bookkeeping of the ``sql`` sink in the database: its own tables, and the queries on them.

========================  ======================================================================
``fences``                for each query id the highest token that has committed or taken over
``epochs``                every published epoch; its ``id`` is what the target's epoch column holds
``undo``                  for each row that an upsert changed what it was, and what it became; it
                          belongs to :class:`UndoLog`
``staged``                every staging table that exists, and whose it is
``staged_partitions``     which of Spark's partitions a staging table holds, each once
``staged_<id>``           the rows of one epoch, until they are published
``writers``               for each address of a job directory the identity of the directory that
                          has published last
========================  ======================================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.postgres.statements import Epoch, in_schema, lock_name
from airflow_provider.runtime.api.sinks import lost_commit_error, reading, tampered_record_error
from airflow_provider.runtime.errors import LeaseLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.sql import Composed

    from airflow_provider.extensions.postgres.undo import UndoLog
    from airflow_provider.runtime.api.sinks import Committable, EpochId, Writer


_OWN_LOCK_WAIT_S: Final = 1
"""How long our own locks may be held by others before something is done about it."""
_TABLE_LOCK_WAIT_S: Final = 60
"""How long other writers may keep an epoch out of the table before it fails."""

log = logging.getLogger(__name__)

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS {schema}.fences (
  query_id text PRIMARY KEY,
  token bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.epochs (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  query_id text NOT NULL,
  target text NOT NULL,
  epoch bigint NOT NULL,
  token bigint NOT NULL,
  query text NOT NULL,
  mode text NOT NULL,
  rows bigint NOT NULL,
  has_ids boolean NOT NULL,
  has_undo boolean NOT NULL,
  committed_at timestamptz NOT NULL DEFAULT now(),
  reverted_at timestamptz,
  UNIQUE (query_id, target, epoch)
);
CREATE TABLE IF NOT EXISTS {schema}.staged (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  query_id text NOT NULL,
  target text NOT NULL,
  epoch bigint NOT NULL,
  token bigint NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {schema}.staged_partitions (
  staged_id bigint NOT NULL REFERENCES {schema}.staged (id) ON DELETE CASCADE,
  partition integer NOT NULL,
  rows bigint NOT NULL,
  PRIMARY KEY (staged_id, partition)
);
CREATE TABLE IF NOT EXISTS {schema}.writers (
  target text NOT NULL,
  job_dir text NOT NULL,
  identity text NOT NULL,
  PRIMARY KEY (target, job_dir)
);
"""
_LAST_MADE: Final = "writers"


class Bookkeeping:
    """The tables, in a schema of their own.

    Args:
        schema: the schema's name.
        target: the table that is written to, as the epochs name it.
        undo: what upserts of it have replaced; its table is beside the others.
    """

    def __init__(self, schema: str, target: str, undo: UndoLog) -> None:
        self.schema = schema
        self.target = target
        self.undo = undo

    def statement(self, text: str, **parts: Any) -> Composed:
        """Return *text* with ``{schema}`` and *parts* filled in as identifiers or as given."""
        return in_schema(self.schema, text, **parts)

    def exists(self, connection: Connection[Any]) -> bool:
        """Whether the tables have been made."""
        return self._has_table(connection, _LAST_MADE)

    def make(self, connection: Connection[Any]) -> None:
        """Make the schema and the tables. Idempotent."""
        if self.exists(connection):
            return
        with connection.transaction():
            lock_name(connection, f"spark-stream bookkeeping {self.schema}")
            # IF NOT EXISTS would ask for the permission to make one also where there is one.
            found = connection.execute(
                "SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,)
            )
            if found.rowcount == 0:
                connection.execute(self.statement("CREATE SCHEMA {schema}"))
            connection.execute(self.statement(_TABLES))
            self.undo.make(connection)

    # --- fence ----------------------------------------------------------------------------------

    def raise_fence(self, connection: Connection[Any], query_id: str, token: int) -> None:
        """Shut out drivers with a lower token, and hold the fence until the transaction ends.

        Raises:
            LeaseLostError: a driver with a higher token was here.
            psycopg.errors.LockNotAvailable: another transaction holds it.
        """
        set_lock_wait(connection, _OWN_LOCK_WAIT_S)
        raised = connection.execute(
            self.statement(
                "INSERT INTO {schema}.fences AS f (query_id, token) VALUES (%s, %s)"
                " ON CONFLICT (query_id) DO UPDATE SET token = excluded.token"
                " WHERE f.token <= excluded.token"
            ),
            (query_id, token),
        )
        set_lock_wait(connection, _TABLE_LOCK_WAIT_S)
        if raised.rowcount == 0:
            msg = (
                f"{self.target}: a driver with a higher fencing token than {token} writes for "
                f"query id {query_id}; this one has committed nothing since"
            )
            raise LeaseLostError(msg)

    # --- epochs ---------------------------------------------------------------------------------

    def epoch_of(self, connection: Connection[Any], epoch: EpochId) -> Epoch | None:
        """Return the record of an epoch that was published or reverted, else None."""
        row = connection.execute(
            self.statement(
                "SELECT id, mode, rows, has_ids, has_undo, reverted_at IS NOT NULL"
                " FROM {schema}.epochs WHERE query_id = %s AND target = %s AND epoch = %s"
            ),
            (epoch.query_id, self.target, epoch.epoch),
        ).fetchone()
        return None if row is None else Epoch(*row)

    def last_epoch(self, connection: Connection[Any], query_id: str) -> int:
        """Return the last epoch that was published or reverted; -1 when there is none."""
        found = _scalar(
            connection,
            self.statement(
                "SELECT max(epoch) FROM {schema}.epochs WHERE query_id = %s AND target = %s"
            ),
            (query_id, self.target),
        )
        return -1 if found is None else int(found)

    def record_writer(self, connection: Connection[Any], writer: Writer) -> None:
        """Record which job directory publishes. Idempotent."""
        connection.execute(
            self.statement(
                "INSERT INTO {schema}.writers AS w (target, job_dir, identity) VALUES (%s, %s, %s)"
                " ON CONFLICT (target, job_dir) DO UPDATE SET identity = excluded.identity"
                " WHERE w.identity <> excluded.identity"
            ),
            (self.target, writer.job_dir, writer.identity),
        )

    def writers(self, connection: Connection[Any], job_dir: str) -> list[str]:
        """Return the identity that has published last for a job directory's address."""
        rows = connection.execute(
            self.statement(
                "SELECT identity FROM {schema}.writers WHERE target = %s AND job_dir = %s"
            ),
            (self.target, job_dir),
        ).fetchall()
        return [str(row[0]) for row in rows]

    def check_kept(self, connection: Connection[Any], query_id: str, epoch: int) -> None:
        """Refuse a database that does not know an epoch any more, nor a later one of the query.

        Raises:
            CheckpointError: so it is.
        """
        if self.last_epoch(connection, query_id) < epoch:
            raise lost_commit_error(self.target, query_id, epoch)

    def record_epoch(
        self,
        connection: Connection[Any],
        epoch: EpochId,
        *,
        mode: str,
        rows: int,
        has_ids: bool = False,
        has_undo: bool = False,
        is_reverted: bool = False,
    ) -> int:
        """Record an epoch and return its id."""
        found = _scalar(
            connection,
            self.statement(
                "INSERT INTO {schema}.epochs (query_id, target, epoch, token, query, mode, rows,"
                " has_ids, has_undo, reverted_at)"
                " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, CASE WHEN %s THEN now() END)"
                " RETURNING id"
            ),
            (
                *(epoch.query_id, self.target, epoch.epoch, epoch.token, epoch.query),
                *(mode, rows, has_ids, has_undo, is_reverted),
            ),
        )
        return int(found)

    def mark_reverted(self, connection: Connection[Any], ids: Sequence[int]) -> None:
        """Record that epochs count no longer; they stay known, so that nobody publishes them."""
        reverted = self.statement(
            "UPDATE {schema}.epochs SET reverted_at = now(), has_undo = false"
            " WHERE id = ANY(%(ids)s) RETURNING id"
        )
        self.undo.forget(connection, reverted, {"ids": list(ids)})

    def forget(
        self, connection: Connection[Any], query_id: str, epochs: Sequence[tuple[int, int]]
    ) -> None:
        """Remove epochs of a query, but for the newest, with what they had replaced."""
        old = self.statement(
            "DELETE FROM {schema}.epochs WHERE query_id = %(query)s"
            " AND target = %(target)s AND epoch BETWEEN %(first)s AND %(last)s"
            " AND epoch < (SELECT max(epoch) FROM {schema}.epochs"
            " WHERE query_id = %(query)s AND target = %(target)s) RETURNING id"
        )
        for first, last in epochs:
            values = {"query": query_id, "target": self.target, "first": first, "last": last}
            self.undo.forget(connection, old, values)

    # --- staging --------------------------------------------------------------------------------

    def register_staged(self, connection: Connection[Any], epoch: EpochId) -> int:
        """Record that a staging table is about to be there, and return its id."""
        found = _scalar(
            connection,
            self.statement(
                "INSERT INTO {schema}.staged (query_id, target, epoch, token)"
                " VALUES (%s, %s, %s, %s) RETURNING id"
            ),
            (epoch.query_id, self.target, epoch.epoch, epoch.token),
        )
        return int(found)

    def staged_of(self, connection: Connection[Any], query_id: str) -> list[tuple[int, int, int]]:
        """Return id, epoch and token of each staging table of a query for this target."""
        return connection.execute(
            self.statement(
                "SELECT id, epoch, token FROM {schema}.staged"
                " WHERE query_id = %s AND target = %s ORDER BY id"
            ),
            (query_id, self.target),
        ).fetchall()

    def staged_rows(self, connection: Connection[Any], staged_id: int) -> int:
        """Count the rows of a staging table by the partitions that are in it."""
        return int(
            _scalar(
                connection,
                self.statement(
                    "SELECT coalesce(sum(rows), 0) FROM {schema}.staged_partitions"
                    " WHERE staged_id = %s"
                ),
                (staged_id,),
            )
        )

    def staged_for(self, connection: Connection[Any], committable: Committable) -> int:
        """Return the id of the epoch's staging table, which may be gone.

        Raises:
            CorruptDocumentError: the committable names none, or one that is not the epoch's.
        """
        epoch = committable.epoch
        with reading(self.target, committable):
            staged_id = int(committable.data["staged_id"])
        found = connection.execute(
            self.statement(
                "SELECT query_id, target, epoch, token FROM {schema}.staged WHERE id = %s"
            ),
            (staged_id,),
        ).fetchone()
        if found not in (None, (epoch.query_id, self.target, epoch.epoch, epoch.token)):
            raise tampered_record_error(self.target, epoch, staged_name(staged_id))
        return staged_id

    def has_staged(self, connection: Connection[Any], staged_id: int) -> bool:
        """Whether a staging table is there."""
        return self._has_table(connection, staged_name(staged_id))

    def drop_staged(self, connection: Connection[Any], staged_id: int) -> bool:
        """Remove a staging table and what is known of it; leave it if a task still copies into it.

        Returns:
            Whether it is gone.

        Idempotent.
        """
        import psycopg

        drop = self.statement("DROP TABLE IF EXISTS {schema}.{table}", table=staged_name(staged_id))
        forget = self.statement("DELETE FROM {schema}.staged WHERE id = %s")
        try:
            with connection.transaction():
                set_lock_wait(connection, _OWN_LOCK_WAIT_S)
                connection.execute(drop)
                connection.execute(forget, (staged_id,))
        except psycopg.errors.LockNotAvailable:
            log.warning("%s.%s is still written to", self.schema, staged_name(staged_id))
            return False
        return True

    def _has_table(self, connection: Connection[Any], name: str) -> bool:
        found = connection.execute(
            "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = %s", (self.schema, name)
        )
        return found.rowcount > 0


def staged_name(staged_id: int) -> str:
    """Return the name of a staging table."""
    return f"staged_{staged_id}"


def set_lock_wait(connection: Connection[Any], seconds: int) -> None:
    """Wait for locks at most *seconds*, until the transaction or savepoint ends."""
    connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{seconds}s",))


def _scalar(connection: Connection[Any], query: Any, parameters: Sequence[Any]) -> Any:
    row = connection.execute(query, parameters).fetchone()
    return None if row is None else row[0]
