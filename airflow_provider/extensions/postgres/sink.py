"""The ``sql`` sink itself: when what is done, and again after a failure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.extensions.postgres import publish, table_revert
from airflow_provider.extensions.postgres.bookkeeping import Bookkeeping, staged_name
from airflow_provider.extensions.postgres.columns import columns_for, line_of
from airflow_provider.extensions.postgres.connection import (
    end_older_sessions,
    is_outage,
    server_of,
    session_name,
)
from airflow_provider.extensions.postgres.copy import CopyTask, run_copy
from airflow_provider.extensions.postgres.privileges import check_database
from airflow_provider.extensions.postgres.statements import commas, listed
from airflow_provider.extensions.postgres.table import Destination, TableName, definition
from airflow_provider.extensions.postgres.undo import UndoLog
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
    lost_commit_error,
)
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.retry import Retries, RetryPolicy
from airflow_provider.runtime.errors import ConfigError, OutageError, SinkError
from airflow_provider.runtime.jobdir.datasets import table_dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from psycopg import Connection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.extensions.postgres.columns import TargetColumn
    from airflow_provider.runtime.base.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")

MODES: Final = ("append", "upsert")
_AWAY: Final = RetryPolicy(first_s=0.5, for_s=30.0)
"""The retries while the database does not answer, or another transaction holds a lock."""


def sql(
    url: str,
    table: str,
    *,
    mode: str = "append",
    keys: Sequence[str] | str = (),
    epoch_column: str | None = "spark_epoch",
    bookkeeping_schema: str = "spark_stream",
    undo_epochs: int = 1000,
    idle_timeout_s: float = 20.0,
) -> SqlSink:
    """Write a query's rows into a table of PostgreSQL, each epoch in one transaction.

    Args:
        url: ``postgresql://user@host:port/database``, as libpq reads it. The password may be in it,
            in ``PGPASSWORD``, a password file or a service file of the driver's machine.
        table: ``table`` or ``schema.table``, spelled as PostgreSQL stores it; made by the first
            epoch when it is missing.
        mode: ``append`` inserts every row; ``upsert`` replaces the row with the same *keys*.
        keys: the columns that tell rows apart in ``upsert``; the table needs a unique constraint
            on them, and no epoch may have two rows with the same.
        epoch_column: the ``bigint`` column of the table that tells of each row which epoch wrote
            it, for taking appended rows back; None for none. A table of yours may be without.
        bookkeeping_schema: where the sink keeps what it remembers and what it has staged.
        undo_epochs: for how many of the table's last epochs it is kept what an upsert replaced, so
            that it can be reverted; 0 for none, which is faster and lets other writers in.
        idle_timeout_s: after so long without a sign from a driver that holds locks, the server ends
            its transaction.

    Raises:
        ConfigError: the address or the table's name cannot be read, or the extra is missing.
    """
    return SqlSink(
        url,
        Destination(
            TableName(table),
            mode,
            (keys,) if isinstance(keys, str) else tuple(keys),
            epoch_column,
            undo_epochs,
        ),
        bookkeeping_schema=bookkeeping_schema,
        idle_timeout_s=idle_timeout_s,
    )


class SqlSink:
    """See :func:`sql`, which makes one.

    Thread safety: every call has a session of its own.
    """

    def __init__(
        self,
        url: str,
        destination: Destination,
        *,
        bookkeeping_schema: str,
        idle_timeout_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._server = server_of(url)
        self._to = destination
        undo = UndoLog(bookkeeping_schema, destination)
        self._books = Bookkeeping(bookkeeping_schema, destination.table.text, undo)
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock or SystemClock()
        self._confirmed: dict[str, int] = {}  # the last epoch of each query id, in this process

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        """Return the sink's name: its kind, host, database and table."""
        return f"sql:{self._server.host}/{self._server.database}/{self._to.table.text}"

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the dataset that it writes; a table without a schema is taken for ``public``."""
        server, table = self._server, self._to.table
        names = (server.database, table.schema or "public", table.parts[-1])
        return (table_dataset(server.host, server.parameters.get("port"), *names),)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the columns that tell rows apart; empty where none replaces another."""
        return self._to.keys

    # --- before anything is written -------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the table, the database or the output mode does not allow."""
        import psycopg

        self.check_shape(df, output_mode)
        try:
            with self._server.connect("spark-stream check") as connection:
                check_database(connection, self._books, self._to, columns_for(df.schema))
        except ConfigError as error:
            msg = f"{self.name}: {error}"
            raise ConfigError(msg) from None
        except psycopg.Error as error:
            msg = f"{self.name}: {self._server.masked(str(error)).strip()}"
            raise (OutageError if is_outage(error) else ConfigError)(msg) from None

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what no table could take."""
        try:
            _check_modes(self._to, output_mode)
            _check_names(self._to, df.columns)
            columns_for(df.schema)
        except ConfigError as error:
            msg = f"{self.name}: {error}"
            raise ConfigError(msg) from None

    # --- first phase ----------------------------------------------------------------------------

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Shut older drivers out at the database and drop staging tables that are garbage."""

        def work(connection: Connection[Any]) -> None:
            self._books.make(connection)
            with connection.transaction():
                self._books.raise_fence(connection, query_id, fence.token)
                confirmed = self._confirmed.get(query_id, -1)
                self._books.check_kept(connection, query_id, confirmed)
            for staged_id, epoch, token in self._books.staged_of(connection, query_id):
                known = self._books.epoch_of(connection, EpochId("", query_id, epoch, token))
                if known is None and not is_garbage(epoch, token):
                    continue
                with connection.transaction():
                    self._books.raise_fence(connection, query_id, fence.token)
                    if not self._books.drop_staged(connection, staged_id):
                        end_older_sessions(connection, query_id, fence.token)
                        self._books.drop_staged(connection, staged_id)

        self._run(work, query_id=query_id, token=fence.token, fence=fence)

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Copy the rows from Spark's executors into a table that belongs to this epoch alone."""
        task, data = self.begin_staging(df.schema, epoch)
        run_copy(df.select(line_of(df).alias("line")), task)
        return self.end_staging(data, epoch)

    def begin_staging(self, schema: StructType, epoch: EpochId) -> tuple[CopyTask, dict[str, Any]]:
        """Make the epoch's staging table.

        Returns:
            What each of Spark's tasks runs, and the committable without its rows.

        Crash safety: :meth:`recover` drops the table.
        """
        wanted = columns_for(schema)

        def work(connection: Connection[Any]) -> tuple[CopyTask, dict[str, Any]]:
            self._books.make(connection)
            self._drop_staged_by(connection, epoch)
            columns = self._staged_columns(connection, wanted)
            with connection.transaction():
                staged_id = self._books.register_staged(connection, epoch)
                # Logged, unlike a temporary or unlogged table: it must survive a server's crash.
                connection.execute(
                    self._books.statement(
                        "CREATE TABLE {schema}.{table} ({columns})",
                        table=staged_name(staged_id),
                        columns=commas(map(definition, columns)),
                    )
                )
            data = {"staged_id": staged_id, "columns": [[c.name, c.type] for c in columns]}
            return self._copy_task(connection, staged_id, columns, epoch), data

        return self._run(work, query_id=epoch.query_id, token=epoch.token)

    def end_staging(self, data: dict[str, Any], epoch: EpochId) -> Staged:
        """Count what all of Spark's tasks have staged, and see that keys tell rows apart.

        Raises:
            SinkError: in ``upsert``, two rows have the same keys, or a key is null.
        """

        def work(connection: Connection[Any]) -> int:
            if self._to.mode == "upsert":
                self._check_keys(connection, int(data["staged_id"]))
            return self._books.staged_rows(connection, int(data["staged_id"]))

        rows = self._run(work, query_id=epoch.query_id, token=epoch.token)
        return Staged({**data, "rows": rows}, rows)

    def abort(self, committable: Committable) -> None:
        """Drop the epoch's staging table."""

        def work(connection: Connection[Any]) -> None:
            if self._books.exists(connection):
                staged_id = self._books.staged_for(connection, committable)
                self._books.drop_staged(connection, staged_id)

        epoch = committable.epoch
        self._run(work, query_id=epoch.query_id, token=epoch.token)

    # --- second phase ---------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Move the staged rows into the table and record the epoch, in one transaction."""

        def work(connection: Connection[Any]) -> None:
            publish.publish(
                connection,
                self._books,
                self._to,
                committable,
                fence,
                confirmed=self._confirmed.get(epoch.query_id, -1),
            )

        epoch = committable.epoch
        self._run(work, query_id=epoch.query_id, token=fence.token, fence=fence)
        self._confirm(epoch)

    def _confirm(self, epoch: EpochId) -> None:
        before = self._confirmed.get(epoch.query_id, -1)
        self._confirmed[epoch.query_id] = max(before, epoch.epoch)

    def writers(self, job_dir: str) -> list[str]:
        """Return the identity that has published last for a job directory's address."""

        def work(connection: Connection[Any]) -> list[str]:
            has_books = self._books.exists(connection) and self._to.table.look(connection)
            return self._books.writers(connection, job_dir) if has_books else []

        return self._run(work, query_id="", token=0)

    def last_epoch(self, query_id: str) -> int:
        """Return the last epoch of a query that was published or reverted; -1 for none."""

        def work(connection: Connection[Any]) -> int:
            has_books = self._books.exists(connection)
            return self._books.last_epoch(connection, query_id) if has_books else -1

        return self._run(work, query_id=query_id, token=0)

    def check_published(self, committable: Committable) -> None:
        """Refuse a database that has lost the epoch, as a failover to a standby may."""

        def work(connection: Connection[Any]) -> None:
            if not self._books.exists(connection):
                raise lost_commit_error(self.name, epoch.query_id, epoch.epoch)
            self._books.check_kept(connection, epoch.query_id, epoch.epoch)

        epoch = committable.epoch
        self._run(work, query_id=epoch.query_id, token=epoch.token)
        self._confirm(epoch)

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove records of epochs, and what they had replaced; the newest of the query stays."""

        def work(connection: Connection[Any]) -> None:
            with connection.transaction():
                self._books.forget(connection, query_id, epochs)

        if epochs:
            self._run(work, query_id=query_id, token=0)

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse epochs whose rows the table cannot tell, or whose undo log is gone."""

        def work(connection: Connection[Any]) -> None:
            table_revert.plan_revert(connection, self._books, self._to, committables)

        if committables:
            epoch = committables[0].epoch
            self._run(work, query_id=epoch.query_id, token=epoch.token)

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Delete what was appended and restore what was replaced, in one transaction."""

        def work(connection: Connection[Any]) -> None:
            self._books.make(connection)
            table_revert.revert(connection, self._books, self._to, committables, fence)

        if committables:
            query_id = committables[0].epoch.query_id
            self._run(work, query_id=query_id, token=fence.token, fence=fence)

    # --- sessions -------------------------------------------------------------------------------

    def _run(
        self,
        work: Callable[[Connection[Any]], T],
        *,
        query_id: str,
        token: int,
        fence: Fence | None = None,
    ) -> T:
        """Do *work*, which is idempotent, in a session; again when the session was lost.

        Also when it was lost while it committed: whether that happened, the next try finds out.
        """
        import psycopg

        session = session_name(query_id, token)
        retries = Retries(_AWAY, self._clock)
        while True:
            if fence is not None:
                fence.check()
            try:
                with self._server.connect(
                    session, idle_timeout_s=self._idle_timeout_s
                ) as connection:
                    return work(connection)
            except psycopg.Error as error:
                text = self._server.masked(str(error)).strip()
                if not _may_pass(error) or not retries.failed():
                    msg = f"{self.name}: {text}"
                    raise SinkError(msg) from error
                log.warning("%s: %s; trying again", self.name, text)
                if isinstance(error, psycopg.errors.LockNotAvailable):
                    self._end_older(session, query_id, token)
            retries.pause()

    def _end_older(self, session: str, query_id: str, token: int) -> None:
        import psycopg

        try:
            with self._server.connect(session) as connection:
                ended = end_older_sessions(connection, query_id, token)
        except psycopg.OperationalError as error:
            log.warning("%s: older sessions were not ended: %s", self.name, error)
            return
        log.warning("%s: ended %s sessions of older drivers, which held locks", self.name, ended)

    # --- staging --------------------------------------------------------------------------------

    def _drop_staged_by(self, connection: Connection[Any], epoch: EpochId) -> None:
        """Drop what the same driver staged for the same epoch before its batch failed."""
        for staged_id, of_epoch, token in self._books.staged_of(connection, epoch.query_id):
            if (of_epoch, token) == (epoch.epoch, epoch.token):
                self._books.drop_staged(connection, staged_id)

    def _staged_columns(
        self, connection: Connection[Any], wanted: Sequence[TargetColumn]
    ) -> list[TargetColumn]:
        """Return the rows' columns with the types of the table, where there is one.

        So what the table cannot take fails before Spark commits the batch.
        """
        table = self._to.table.look(connection)
        if table is None:
            return list(wanted)
        return [table.column(column.name) or column for column in wanted]

    def _copy_task(
        self,
        connection: Connection[Any],
        staged_id: int,
        columns: Sequence[TargetColumn],
        epoch: EpochId,
    ) -> CopyTask:
        copy = self._books.statement(
            "COPY {schema}.{table} ({columns}) FROM STDIN",
            table=staged_name(staged_id),
            columns=listed(column.name for column in columns),
        )
        claim = self._books.statement(
            "INSERT INTO {schema}.staged_partitions (staged_id, partition, rows)"
            " VALUES ({id}, %s, %s) ON CONFLICT DO NOTHING",
            id=_literal(staged_id),
        )
        return CopyTask(
            self._server.resolved(connection),
            session_name(epoch.query_id, epoch.token),
            copy.as_string(connection),
            claim.as_string(connection),
        )

    def _check_keys(self, connection: Connection[Any], staged_id: int) -> None:
        import psycopg

        unique = self._books.statement(
            "ALTER TABLE {schema}.{table} ADD PRIMARY KEY ({keys})",
            table=staged_name(staged_id),
            keys=listed(self._to.keys),
        )
        try:
            with connection.transaction():
                connection.execute(unique)
        except psycopg.errors.InvalidTableDefinition:
            return  # it has one: this was done, and its answer lost
        except (psycopg.errors.UniqueViolation, psycopg.errors.NotNullViolation) as error:
            msg = (
                f"{self.name}: an upsert takes one row per key and epoch, and no null in a key: "
                f"{error.diag.message_detail or error.diag.message_primary}; aggregate by "
                f"{', '.join(self._to.keys)} first"
            )
            raise SinkError(msg) from error


def _check_modes(destination: Destination, output_mode: str) -> None:
    if destination.mode not in MODES:
        msg = f"unknown mode {destination.mode!r}; use one of {', '.join(MODES)}"
    elif destination.undo_epochs < 0:
        msg = f"undo_epochs={destination.undo_epochs} must be 0 or more"
    elif destination.mode == "upsert" and not destination.keys:
        msg = "mode 'upsert' needs keys=, the columns that tell rows apart"
    elif destination.mode == "append" and destination.keys:
        msg = "keys= are of use in mode 'upsert' only; mode 'append' inserts every row"
    elif output_mode == "complete":
        msg = "output_mode 'complete' would replace the whole table every epoch; use 'update'"
    elif output_mode == "update" and destination.mode != "upsert":
        msg = "output_mode 'update' gives a row again when it changes, which needs mode='upsert'"
    else:
        return
    raise ConfigError(msg)


def _check_names(destination: Destination, columns: Sequence[str]) -> None:
    missing = [key for key in destination.keys if key not in columns]
    if missing:
        msg = f"there is no column {missing[0]!r}, which keys= names"
        raise ConfigError(msg)
    if destination.epoch_column in columns:
        msg = (
            f"the rows have a column {destination.epoch_column!r}, which is where epochs' ids go; "
            "choose another name by epoch_column="
        )
        raise ConfigError(msg)


def _may_pass(error: Exception) -> bool:
    """Whether the same may succeed later: the session, the server or a lock was lost."""
    import psycopg

    return isinstance(
        error, psycopg.OperationalError | psycopg.errors.IdleInTransactionSessionTimeout
    )


def _literal(value: int) -> Any:
    from psycopg import sql as psycopg_sql

    return psycopg_sql.Literal(value)
