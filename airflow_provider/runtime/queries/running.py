"""Queries that a driver runs: what it needs of a stream and of a batch job alike.

:class:`~.streaming.StreamQuery` reads batch after batch; :class:`~.batch.BatchQuery` reads all
input in one Spark job. The driver asks for protocols only, never for a class. A member that is
missing has a consequence:

======================  ============================================================================
missing                 consequence
======================  ============================================================================
:class:`Stream`         the query runs once: it keeps no state, no source idles or ends before the
                        others, a stop with a savepoint is refused, and its failure ends the attempt
``Query.committer``     Spark alone publishes: no epoch is recorded, and none can be reverted
======================  ============================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.checkpoint.drain_step import StartMode
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.epoch_documents import LateRows
    from airflow_provider.runtime.queries.batch_reports import BatchReport, Reading
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sinks.committer import EpochCommitter


class RowTotals(Protocol):
    """The counted rows of a query; None stands for a number that is unknown.

    They count the run. If Spark alone publishes, they count the driver's attempt only.
    """

    def rows_read(self) -> int | None: ...

    def late_rows(self) -> LateRows | None: ...

    def late_is_minimum(self) -> bool:
        """Whether more rows than :meth:`late_rows` may have come late."""

    def lost_rows(self) -> int | None:
        """Return the messages that had expired before they were read."""

    def run_rows(self, sink_name: str) -> int | None:
        """Return the rows in one sink."""

    def totals(self) -> Mapping[str, Any]:
        """Return all counts by the fields of :class:`~.epoch_documents.EpochRecord`."""


class Query(Protocol):
    """A query of one attempt.

    Thread safety: the driver's thread calls it; what Spark calls back is the query's own business.
    """

    @property
    def name(self) -> str: ...

    @property
    def definition(self) -> QueryDefinition: ...

    @property
    def logs(self) -> CommitLog:
        """The log that decides whether a batch is committed."""

    @property
    def counts(self) -> RowTotals: ...

    @property
    def committer(self) -> EpochCommitter | None:
        """Publishes the query's epochs; None if Spark alone publishes."""

    def start(self, how: StartMode) -> None:
        """Start the query, which does not run; a batch job reads all input, whatever *how* is.

        Raises:
            SparkStreamError: it cannot start; nothing runs.

        Crash safety: what a batch leaves is staged; the next attempt publishes or replaces it.
        """

    def has_ended(self) -> bool:
        """Whether the query has ended since its start, by itself or with an error."""

    def error(self) -> BaseException | None:
        """Return why an ended query failed; None if it ended by itself or as it was asked."""

    def stop(self) -> None:
        """End the query, in the middle of a batch if there is one. Idempotent.

        Raises:
            TimeoutError: a sink's code cannot be interrupted.
        """

    def settle(self) -> None:
        """Keep the last report of an ended query, and let go of its Spark query. Idempotent."""

    def reading(self) -> Reading:
        """Return how far it has read; after :meth:`settle`, how far it had read when it ended."""

    def new_batches(self) -> list[BatchReport]:
        """Return the finished batches that this method has not returned yet."""


@runtime_checkable
class Stream(Query, Protocol):
    """A query that reads batch after batch, and that its driver starts again after it has ended."""

    def has_more(self) -> bool:
        """Whether another start may read input that the ended one has not requested."""

    def has_tasks(self) -> bool:
        """Whether Spark still runs tasks of the last batch, beside which no other may start."""

    def halt(self, timeout_s: float | None) -> None:
        """Request that the query end after the batch in flight.

        A batch that takes longer than *timeout_s* is stopped, and runs again with the same offsets.
        """

    def halt_in_time(self) -> None:
        """End the query if it was requested to halt, and its batch is committed or overdue."""

    def move_idle_sources(self) -> None:
        """Let the watermark pass the sources that have delivered nothing for their idle timeout."""

    def reached(self) -> dict[str, int]:
        """Return the latest event times that sources have reached, in milliseconds by source."""

    def replace_definition(self, definition: QueryDefinition) -> None:
        """Continue with *definition*, of which some sources have ended, from the next start on."""


def publish(query: Query) -> None:
    """Publish what the query has committed, and Spark has not published by itself. Idempotent.

    Raises:
        LeaseLostError: another driver has taken over, and publishes the rest.
        SinkError: a sink failed; the next start continues.
    """
    if query.committer is not None:
        query.committer.commit_through(query.logs.position().last_commit)


def give_up_open(query: Query) -> None:
    """Count up to the last commit of a query that has stopped in the middle of a batch."""
    if query.committer is not None:
        query.committer.give_up_open()
