"""The ``postgres`` sink: the order of its steps, and their retries."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.extensions.postgres import publish, slices
from airflow_provider.extensions.postgres.bookkeeping import Books, staged_name
from airflow_provider.extensions.postgres.connection import (
    end_older_sessions,
    is_outage,
    server_of,
    session_name,
)
from airflow_provider.extensions.postgres.copy import (
    CopyTask,
    TargetColumn,
    columns_for,
    line_of,
    run_copy,
)
from airflow_provider.extensions.postgres.keyed import check_tombstones, reduce_staged
from airflow_provider.extensions.postgres.table import (
    Destination,
    TableName,
    check_database,
    commas,
    definition,
    listed,
)
from airflow_provider.runtime.api.errors import ConfigError, OutageError, SinkError
from airflow_provider.runtime.api.kit.added_columns import may_add_columns, missing_columns
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.keyed_rows import DELETED, KeyedRows, log_superseded
from airflow_provider.runtime.api.kit.lineage import table_dataset
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.slices import will_replace
from airflow_provider.runtime.api.sink_errors import lost_commit_error
from airflow_provider.runtime.api.sinks import (
    Committable,
    Dataset,
    EpochId,
    Fence,
    IsGarbage,
    Staged,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from psycopg import Connection
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from airflow_provider.runtime.api.kit.clock import Clock

log = logging.getLogger(__name__)
T = TypeVar("T")

_AWAY: Final = RetryPolicy(first_s=0.5, for_s=30.0)
"""The retries while the database does not answer, or another transaction holds a lock."""


def postgres(
    url: str,
    table: str,
    *,
    keys: Sequence[str] | str = (),
    sequence_by: Sequence[str] | str = (),
    delete_when: str | None = None,
    replace: str | None = None,
    epoch_column: str | None = "spark_epoch",
    bookkeeping_schema: str = "spark_stream",
    undo_epochs: int = 1000,
    idle_timeout_s: float = 20.0,
    schema_changes: str = "refuse",
) -> PostgresSink:
    """Write a query's rows into a table of PostgreSQL, each epoch in one transaction.

    Args:
        url: ``postgresql://user@host:port/database``, as libpq reads it. The password may be in it,
            in ``PGPASSWORD``, a password file or a service file of the driver's machine.
        table: ``table`` or ``schema.table``, spelled as PostgreSQL stores it; the first epoch makes
            it if it is missing.
        keys: the columns that tell rows apart: a row replaces the row with the same keys. The table
            needs a unique constraint on them. Without keys every row is inserted.
        sequence_by: the columns that order the changes of a key, compared one after another; a
            change that arrives late does not replace a newer one. Without them a later epoch's row
            counts.
        delete_when: a condition in Spark's SQL, such as ``op = 'd'``; a row for which it is true
            deletes its key.
        replace: a slice of the table that the rows replace, such as ``day = DATE '2026-01-02'``:
            the run's transaction removes the rows in it, and adds the new ones. It has comparisons
            of columns with literals, joined by AND. The run is then one in BATCH.
        epoch_column: the ``bigint`` column of the table that says which epoch wrote a row, so that
            appended rows can be reverted; None for none. Your own table may omit it.
        bookkeeping_schema: the schema of the sink's own tables and of staged rows.
        undo_epochs: the number of the table's last epochs for which the sink keeps the rows that
            they replaced, for a revert; 0 for none, which is faster.
        idle_timeout_s: the server ends a transaction of a driver that has been silent for so long.
        schema_changes: what happens to columns of the query that the table lacks: ``refuse``, or
            ``add``, which adds them in the transaction of the first epoch that has them; older rows
            have NULL there. Types are never changed. The user must own the table.

    Raises:
        ConfigError: the address or the table's name cannot be read, or the extra is missing.
    """
    keyed = KeyedRows.of(keys, sequence_by, delete_when)
    adds = may_add_columns(f"postgres:{table}", schema_changes)
    to = Destination(TableName(table), keyed, epoch_column, undo_epochs, replace, adds)
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

    @property
    def sequence_by(self) -> tuple[str, ...]:
        return self._to.keyed.sequence_by

    @property
    def delete_when(self) -> str | None:
        return self._to.keyed.delete_when

    @property
    def replaces(self) -> str | None:
        return self._to.replace

    # --- before anything is written -------------------------------------------------------------

    def check(self, df: DataFrame, output_mode: str) -> None:
        """Refuse what the table, the database or the output mode does not allow."""
        import psycopg

        self.check_shape(df, output_mode)
        try:
            with self._naming(), self._server.connect("spark-stream check") as connection:
                check_database(connection, self._schema, self._to, columns_for(df.schema))
                check_tombstones(self.books_in(connection))
        except psycopg.Error as error:
            raise (OutageError if is_outage(error) else ConfigError)(
                f"{self.name}: {self._server.masked(str(error)).strip()}"
            ) from None

    def check_shape(self, df: DataFrame, output_mode: str) -> None:
        with self._naming():
            _check_words(self._to, output_mode)
            _check_names(self._to, df.columns)
            columns_for(df.schema)
        if self._to.keys:
            self._to.keyed.check(self.name, df, output_mode)
        if self._to.replace is not None:
            slices.slice_of(self._to.replace, df.schema, self.name)

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
        keyed = self._to.keyed
        if not keyed.keys:
            run_copy(df.select(line_of(df).alias("line")), task)
            return self.end_staging(data, epoch)
        changes, count = keyed.newest(df)
        if keyed.delete_when is None:
            changes = changes.drop(DELETED)
        run_copy(changes.select(line_of(changes).alias("line")), task)
        total = count(self.name)
        staged = self.end_staging(data, epoch)
        log_superseded(self.name, epoch.epoch, total, staged.rows or 0)
        return staged

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
            known = None if table is None else [column.name for column in table.columns]
            adds = () if known is None else missing_columns((c.name for c in wanted), known)
            own = [] if self._to.keyed.delete_when is None else [TargetColumn(DELETED, "boolean")]
            with books.connection.transaction():
                staged_id = books.register_staged(epoch)
                # Logged, unlike a temporary or unlogged table: it must survive a server's crash.
                books.run(
                    "CREATE TABLE {schema}.{table} ({columns})",
                    table=staged_name(staged_id),
                    columns=commas(map(definition, [*columns, *own])),
                )
            data = {"staged_id": staged_id, "columns": [[c.name, c.type] for c in columns]}
            if adds and self._to.adds_columns:
                data["adds"] = list(adds)
            if self._to.replace is not None:
                part = slices.slice_of(self._to.replace, schema, self.name)
                data |= slices.staged_slice(part, schema)
            copied = [column.name for column in [*columns, *own]]
            return self._copy_task(books, staged_id, copied, epoch), data

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
        """Count the rows that all tasks have staged; by key, leave one change of each.

        Raises:
            RefusedRowsError: two changes of a key of which neither is newer, or a row outside of
                the slice.
        """
        staged_id = int(data["staged_id"])
        part = slices.slice_in(Committable(epoch, data), self.name)

        def work(books: Books) -> int:
            if self._to.keys:
                return reduce_staged(books, staged_id, self.name)
            if part is not None:
                slices.check_rows_inside(books, staged_id, part)
            return books.staged_rows(staged_id)

        rows = self._run(work, epoch.query_id, epoch.token)
        return Staged({**data, "rows": rows}, rows)

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

    def will_replace(self, committables: Sequence[Committable]) -> bool:
        return will_replace(self._to.replace, committables)

    def supersede(self, committables: Sequence[Committable], fence: Fence) -> None:
        def work(books: Books) -> None:
            books.make()
            publish.revert(books, committables, fence, removes=False)

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


def _check_words(destination: Destination, output_mode: str) -> None:
    destination.keyed.check_unused("postgres", destination.replace)
    if destination.undo_epochs < 0:
        msg = f"undo_epochs={destination.undo_epochs} must be 0 or more"
    elif output_mode == "complete":
        msg = "output_mode 'complete' would replace the whole table every epoch; use 'update'"
    elif output_mode == "update" and not destination.keys:
        msg = "output_mode 'update' gives a row again when it changes, which needs keys="
    else:
        return
    raise ConfigError(msg)


def _check_names(destination: Destination, columns: Sequence[str]) -> None:
    if destination.epoch_column in columns:
        raise ConfigError(
            f"the rows have a column {destination.epoch_column!r}, which is where epochs' ids go; "
            "choose another name by epoch_column="
        )
