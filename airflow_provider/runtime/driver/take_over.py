"""Begins a job from checkpoints of plain Spark's, of queries that ran without the runtime.

They are copied as a savepoint into the job's directory, by hard links where that is possible, and
restored from it; where they lie nothing is changed. That happens once, when the job begins: later
attempts and runs go on from what the job itself has.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import Source, SourceQuery
from airflow_provider.runtime.savepoints.restore_log import Restores
from airflow_provider.runtime.savepoints.take import describe_source, take_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.repartition import Repartition

log = logging.getLogger(__name__)

_FOLDER: Final = "taken-over-"


class TakeOver(StartingPoint):
    """The beginning of a job that takes over plain Spark's checkpoints of its queries.

    Args:
        directory: the job directory.
        queries: the job's queries.
        checkpoints: Spark's checkpoints of those that have begun, by name.
        allow_non_restored: see :class:`StartingPoint`.
        upstream: the same.
        clock: time.
    """

    def __init__(
        self,
        directory: JobDirectory,
        queries: Sequence[QueryDefinition],
        checkpoints: Mapping[str, Storage],
        *,
        allow_non_restored: bool,
        upstream: Mapping[str, Sequence[str]],
        clock: Clock,
    ) -> None:
        open_restore = Restores(directory).start()
        found = open_restore.savepoint if open_restore is not None else None
        super().__init__(
            directory,
            found or f"{directory.url}/savepoints/{_FOLDER}",
            queries,
            allow_non_restored=allow_non_restored,
            partitions=None,
            make_repartition=_repartition_nothing,
            upstream=upstream,
        )
        self._is_taken = found is not None
        self._clock = clock
        self._source = Source(
            url=next(iter(checkpoints.values())).url,
            job=None,
            run_id=None,
            queries=tuple(SourceQuery(name, at, None) for name, at in checkpoints.items()),
            is_driven=lambda: False,
        )

    def check(self) -> None:
        """Refuse checkpoints that do not fit the queries, or cannot be continued exactly.

        Raises:
            ConfigError: the message names the query, or the batch.
            RefusedCheckpointError: a checkpoint lacks files.
        """
        if not self._is_taken:
            for query in self._queries:
                self._check_in_flight(query)
        super().check()

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Copy the checkpoints, and set the queries to them.

        Crash safety: before the restore has begun, the next start copies again, under its own name.
        """
        if not self._is_taken:
            self._url = f"{self._directory.url}/savepoints/{_FOLDER}{fence.token}"
            take_savepoint(
                self._source, self._url, origin="upgrade", aligned_timeout_s=0.0, clock=clock
            )
            self._is_taken = True
        super().restore(fence, clock)
        for query in self._source.queries:
            log.info("query=%s goes on from %s, which is left alone", query.name, query.logs.url)

    def _open(self) -> Savepoint:
        if self._is_taken:
            return super()._open()
        return Savepoint(self._source.url, describe_source(self._source, self._clock))

    def _check_in_flight(self, query: QueryDefinition) -> None:
        """Refuse a batch that plain Spark may have written, if the sink ignores batch numbers.

        Spark's own sinks know a batch by its number, and so does an idempotent function.
        """
        theirs = next((each for each in self._source.queries if each.name == query.name), None)
        tells = all(isinstance(sink, VisibleSink) for sink in query.sinks)
        if theirs is None or tells or theirs.logs.position().open_batch is None:
            return
        msg = (
            f"query {query.name!r}: batch {theirs.logs.position().open_batch} of {theirs.logs.url} "
            "is planned and not committed, so plain Spark may have written its rows, and they "
            "would be written again: run the plain program until that batch has ended, or write to "
            "a new place and begin from a savepoint (spark-stream savepoint take --checkpoint)"
        )
        raise ConfigError(msg)


def checkpoints_to_take_over(
    directory: JobDirectory, queries: Sequence[QueryDefinition]
) -> dict[str, Storage]:
    """Return the checkpoints from which the queries begin; none where the job has begun.

    Raises:
        ConfigError: one lies where the runtime cannot read.
    """
    last = Restores(directory).start()
    is_open = last is not None and last.done is None and _is_ours(directory, last.savepoint)
    own = (CheckpointLogs(directory.checkpoint(name)) for name in directory.query_names())
    if not is_open and (last is not None or any(logs.exists() for logs in own)):
        return {}
    named = {q.name: open_storage(q.takes_over) for q in queries if q.takes_over is not None}
    return {name: place for name, place in named.items() if _has_committed(place)}


def _has_committed(place: Storage) -> bool:
    with refusing(place.url, "read"):
        return CheckpointLogs(place).position().last_commit >= 0


def _is_ours(directory: JobDirectory, savepoint: str | None) -> bool:
    return (savepoint or "").startswith(f"{directory.url}/savepoints/{_FOLDER}")


def _repartition_nothing() -> Repartition:
    raise AssertionError  # nobody asks a take-over for partitions
