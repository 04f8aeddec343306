"""The ``postgres`` sink: the order of its steps, and their retries."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.extensions.postgres import publish
from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.connection import (
    end_older_sessions,
    is_outage,
    server_of,
    session_name,
)
from airflow_provider.extensions.postgres.copy import CopyTask, columns_for, line_of, run_copy
from airflow_provider.extensions.postgres.table import (
    Destination,
    TableName,
    check_database,
    commas,
    definition,
    listed,
)
from airflow_provider.runtime.api.errors import ConfigError, OutageError, SinkError
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.lineage import table_dataset
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
    lost_commit_error,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg import Connection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.kit.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")

MODES: Final = ("append", "upsert")
_AWAY: Final = RetryPolicy(first_s=0.5, for_s=30.0)
"""The retries while the database does not answer, or another transaction holds a lock."""


def postgres(
    url: str,
    table: str,
    *,
    mode: str = "append",
    keys: Sequence[str] | str = (),
    epoch_column: str | None = "spark_epoch",
    bookkeeping_schema: str = "spark_stream",
    undo_epochs: int = 1000,
    idle_timeout_s: float = 20.0,
) -> PostgresSink:
    """Write a query's rows into a table of PostgreSQL, each epoch in one transaction.

    Args:
        url: ``postgresql://user@host:port/database``, as libpq reads it. The password may be in it,
            in ``PGPASSWORD``, a password file or a service file of the driver's machine.
        table: ``table`` or ``schema.table``, spelled as PostgreSQL stores it; the first epoch makes
            it if it is missing.
        mode: ``append`` inserts every row; ``upsert`` replaces the row with the same *keys*.
        keys: the columns that tell rows apart in ``upsert``; the table needs a unique constraint
            on them, and no epoch may have two rows with the same keys.
        epoch_column: the ``bigint`` column of the table that says which epoch wrote a row, so that
            appended rows can be reverted; None for none. Your own table may omit it.
        bookkeeping_schema: the schema of the sink's own tables and of staged rows.
        undo_epochs: the number of the table's last epochs for which the sink keeps the rows that an
            upsert replaced, for a revert; 0 for none, which is faster and lets other writers in.
        idle_timeout_s: the server ends a transaction of a driver that has been silent for so long.

    Raises:
        ConfigError: the address or the table's name cannot be read, or the extra is missing.
    """
    columns = (keys,) if isinstance(keys, str) else tuple(keys)
    to = Destination(TableName(table), mode, columns, epoch_column, undo_epochs)
    return PostgresSink(
        url, to, bookkeeping_schema=bookkeeping_schema, idle_timeout_s=idle_timeout_s
    )


class PostgresSink:
    """See :func:`postgres`, which makes one."""

    api_version = 1

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
        self._schema = bookkeeping_schema
        self._idle_timeout_s = idle_timeout_s
        self._clock = clock or SystemClock()
        self._confirmed: dict[str, int] = {}  # the last epoch of each query id, in this process

    def __repr__(self) -> str:
        return f"<{self.name}>"

    @property
    def name(self) -> str:
        return f"postgres:{self._server.host}/{self._server.database}/{self._to.table.text}"

    def datasets(self) -> tuple[Dataset, ...]:
        """Return the table; one without a schema is taken for ``public``."""
        server, table = self._server, self._to.table
        names = (server.database, table.schema or "public", table.parts[-1])
        return (table_dataset(server.host, server.parameters.get("port"), *names),)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._to.keys

    # --- before anything is written -------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the table, the database or the output mode does not allow."""
        import psycopg

        self.check_shape(df, output_mode)
        try:
            with self._naming(), self._server.connect("spark-stream check") as connection:
                check_database(connection, self._schema, self._to, columns_for(df.schema))
        except psycopg.Error as error:
            raise (OutageError if is_outage(error) else ConfigError)(
                f"{self.name}: {self._server.masked(str(error)).strip()}"
            ) from None

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        with self._naming():
            _check_modes(self._to, output_mode)
            _check_names(self._to, df.columns)
            columns_for(df.schema)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            raise ConfigError(f"{self.name}: {error}") from None

    # --- first phase ----------------------------------------------------------------------------

    def recover(self, query_id: str, is_garbage: IsGarbage, fence: Fence) -> None:
        """Shut older drivers out at the database and drop staging tables that are garbage."""

        def work(books: Books) -> None:
            books.make()
            with books.connection.transaction():
                books.raise_fence(query_id, fence.token)
                books.check_kept(query_id, self._confirmed.get(query_id, -1))
            for staged_id, epoch, token in books.staged_of(query_id):
                known = books.epoch_of(EpochId("", query_id, epoch, token))
                if known is None and not is_garbage(epoch, token):
                    continue
                with books.connection.transaction():
                    books.raise_fence(query_id, fence.token)
                    if not books.drop_staged(staged_id):
                        end_older_sessions(books.connection, query_id, fence.token)
                        books.drop_staged(staged_id)

        self._run(work, query_id, fence.token, fence)

    def stage(self, df: DataFrame, epoch: EpochId) -> Staged:
        """Copy the rows from Spark's executors into a table that belongs to this epoch alone."""
        task, data = self.begin_staging(df.schema, epoch)
        run_copy(df.select(line_of(df).alias("line")), task)
        return self.end_staging(data, epoch)

    def begin_staging(self, schema: StructType, epoch: EpochId) -> tuple[CopyTask, dict[str, Any]]:
        """Make the epoch's staging table.

        Crash safety: :meth:`recover` drops the table.
        """
        wanted = columns_for(schema)

        def work(books: Books) -> tuple[CopyTask, dict[str, Any]]:
            books.make()
            for staged_id, of_epoch, token in books.staged_of(epoch.query_id):
                # The same driver staged the epoch before, and its batch failed.
                if (of_epoch, token) == (epoch.epoch, epoch.token):
                    books.drop_staged(staged_id)
            table = self._to.table.look(books.connection)
            columns = [(table and table.column(column.name)) or column for column in wanted]
            with books.connection.transaction():
                staged_id = books.register_staged(epoch)
                # Logged, unlike a temporary or unlogged table: it must survive a server's crash.
                books.run(
                    "CREATE TABLE {schema}.{table} ({columns})",
                    table=staged_name(staged_id),
                    columns=commas(map(definition, columns)),
                )
            data = {"staged_id": staged_id, "columns": [[c.name, c.type] for c in columns]}
            return self._copy_task(books, staged_id, [c.name for c in columns], epoch), data

        return self._run(work, epoch.query_id, epoch.token)

    def _copy_task(
        self, books: Books, staged_id: int, columns: Sequence[str], epoch: EpochId
    ) -> CopyTask:
        copy = books.statement(
            "COPY {schema}.{table} ({columns}) FROM STDIN",
            table=staged_name(staged_id),
            columns=listed(columns),
        )
        claim = books.statement(
            "INSERT INTO {schema}.staged_partitions (staged_id, partition, rows)"
            " VALUES ({id}, %s, %s) ON CONFLICT DO NOTHING",
            id=staged_id,
        )
        return CopyTask(
            self._server.resolved(books.connection),
            session_name(epoch.query_id, epoch.token),
            copy.as_string(books.connection),
            claim.as_string(books.connection),
        )

    def end_staging(self, data: dict[str, Any], epoch: EpochId) -> Staged:
        """Count the rows that all tasks have staged; in ``upsert``, refuse a repeated key."""

        def work(books: Books) -> int:
            if self._to.mode == "upsert":
                self._check_keys(books, int(data["staged_id"]))
            return books.staged_rows(int(data["staged_id"]))

        rows = self._run(work, epoch.query_id, epoch.token)
        return Staged({**data, "rows": rows}, rows)

    def _check_keys(self, books: Books, staged_id: int) -> None:
        import psycopg

        try:
            with books.connection.transaction():
                books.run(
                    "ALTER TABLE {schema}.{table} ADD PRIMARY KEY ({keys})",
                    table=staged_name(staged_id),
                    keys=listed(self._to.keys),
                )
        except psycopg.errors.InvalidTableDefinition:
            return  # it has one: this was done, and its answer lost
        except (psycopg.errors.UniqueViolation, psycopg.errors.NotNullViolation) as error:
            raise SinkError(
                f"{self.name}: an upsert takes one row per key and epoch, and no null in a key: "
                f"{error.diag.message_detail or error.diag.message_primary}; aggregate by "
                f"{', '.join(self._to.keys)} first"
            ) from error

    def abort(self, committable: Committable) -> None:
        def work(books: Books) -> None:
            if books.exists():
                books.drop_staged(books.staged_for(committable))

        self._run(work, committable.epoch.query_id, committable.epoch.token)

    # --- second phase ---------------------------------------------------------------------------

    def commit(self, committable: Committable, fence: Fence) -> None:
        """Move the staged rows into the table and record the epoch, in one transaction."""
        query_id = committable.epoch.query_id

        def work(books: Books) -> None:
            confirmed = self._confirmed.get(query_id, -1)
            publish.publish(books, committable, fence, confirmed=confirmed)

        self._run(work, query_id, fence.token, fence)
        self._confirm(committable.epoch)

    def _confirm(self, epoch: EpochId) -> None:
        before = self._confirmed.get(epoch.query_id, -1)
        self._confirmed[epoch.query_id] = max(before, epoch.epoch)

    def writers(self, job_dir: str) -> list[str]:
        def work(books: Books) -> list[str]:
            is_there = books.exists() and self._to.table.look(books.connection) is not None
            return books.writers(job_dir) if is_there else []

        return self._run(work)

    def last_epoch(self, query_id: str) -> int:
        return self._run(lambda books: books.last_epoch(query_id) if books.exists() else -1)

    def check_published(self, committable: Committable) -> None:
        """Refuse a database that has lost the epoch, as a failover to a standby may."""
        epoch = committable.epoch

        def work(books: Books) -> None:
            if not books.exists():
                raise lost_commit_error(self.name, epoch.query_id, epoch.epoch)
            books.check_kept(epoch.query_id, epoch.epoch)

        self._run(work, epoch.query_id, epoch.token)
        self._confirm(epoch)

    def prune(self, query_id: str, epochs: Sequence[tuple[int, int]]) -> None:
        """Remove records of epochs, and what they had replaced; the newest of the query stays."""

        def work(books: Books) -> None:
            with books.connection.transaction():
                books.prune(query_id, epochs)

        if epochs:
            self._run(work, query_id)

    def check_revert(self, committables: Sequence[Committable]) -> None:
        """Refuse epochs whose rows the table does not identify, or whose undo log was removed."""
        if committables:
            epoch = committables[0].epoch
            self._run(
                lambda books: publish.plan_revert(books, committables), epoch.query_id, epoch.token
            )

    def revert(self, committables: Sequence[Committable], fence: Fence) -> None:
        """Delete the appended rows and restore the replaced ones, in one transaction."""

        def work(books: Books) -> None:
            books.make()
            publish.revert(books, committables, fence)

        if committables:
            self._run(work, committables[0].epoch.query_id, fence.token, fence)

    # --- sessions -------------------------------------------------------------------------------

    def books_in(self, connection: Connection[Any]) -> Books:
        return Books(connection, self._schema, self._to)

    def _run(
        self,
        work: Callable[[Books], T],
        query_id: str = "",
        token: int = 0,
        fence: Fence | None = None,
    ) -> T:
        """Run the idempotent *work*; retry it if the session was lost, even during a commit."""
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
                    return work(self.books_in(connection))
            except psycopg.Error as error:
                text = self._server.masked(str(error)).strip()
                may_pass = isinstance(
                    error,
                    psycopg.OperationalError | psycopg.errors.IdleInTransactionSessionTimeout,
                )
                if not may_pass or not retries.failed():
                    raise SinkError(f"{self.name}: {text}") from error
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
        raise ConfigError(f"there is no column {missing[0]!r}, which keys= names")
    if destination.epoch_column in columns:
        raise ConfigError(
            f"the rows have a column {destination.epoch_column!r}, which is where epochs' ids go; "
            "choose another name by epoch_column="
        )
