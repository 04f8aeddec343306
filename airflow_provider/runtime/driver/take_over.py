"""Take-over of plain Spark's checkpoints, and the choice of where an attempt begins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.identity import lineage_of
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.savepoints.catalog import Savepoint
from airflow_provider.runtime.savepoints.checkpoint_claim import (
    TakeOverRecord,
    check_claim,
    claim_checkpoint,
    is_claimed,
)
from airflow_provider.runtime.savepoints.checkpoint_source import Source, SourceQuery
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.take import describe_source, take_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition


log = logging.getLogger(__name__)

_FOLDER: Final = "taken-over-"


class TakeOver(StartingPoint):
    """The beginning of a job that adopts plain Spark's checkpoints of its queries.

    They are copied as a savepoint into the job's directory, by hard links where that is possible,
    and restored from it; the originals do not change. That happens once: later attempts and runs
    continue from the job's own state.
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
        replaces_job: str | None = None,
    ) -> None:
        begun = Restores(directory).start()
        found = begun.plan.savepoint if begun is not None else None
        super().__init__(
            directory,
            found or f"{directory.url}/savepoints/{_FOLDER}",
            queries,
            allow_non_restored=allow_non_restored,
            upstream=upstream,
        )
        self._is_taken = found is not None
        self._clock = clock
        self._follows = {replaces_job} if replaces_job is not None else set()
        self._source = Source(
            url=next(iter(checkpoints.values())).url,
            job=None,
            run_id=None,
            queries=tuple(SourceQuery(name, at, None) for name, at in checkpoints.items()),
            is_driven=lambda: False,
        )

    def check(self) -> None:
        if not self._is_taken:
            for query in self._queries:
                self._check_in_flight(query)
            for taken in self._source.queries:
                check_claim(taken.checkpoint, taken.name, self._lineage())
        super().check()

    def _lineage(self) -> set[str]:
        return {*lineage_of(self._directory.storage), *self._follows}

    def restore(self, fence: Fence, clock: Clock) -> None:
        """Claim the checkpoints, copy them, and set the queries to them.

        Crash safety: before the restore has begun, the next start copies again, under its own name.
        """
        if not self._is_taken:
            for taken in self._source.queries:
                self._claim(taken)
            self._url = f"{self._directory.url}/savepoints/{_FOLDER}{fence.token}"
            take_savepoint(
                self._source, self._url, origin="upgrade", aligned_timeout_s=0.0, clock=clock
            )
            self._is_taken = True
        super().restore(fence, clock)
        for query in self._source.queries:
            log.info("query=%s continues from %s, which is left alone", query.name, query.logs.url)

    def _claim(self, query: SourceQuery) -> None:
        lineage = lineage_of(self._directory.storage)
        claim = TakeOverRecord(
            identity=lineage[0],
            job_dir=self._directory.url,
            query=query.name,
            batch=query.logs.position().last_commit,
            at=to_iso(self._clock.now()),
        )
        claim_checkpoint(query.checkpoint, claim, lineage)

    def _check_input(self, savepoint: Savepoint, names: Mapping[str, str]) -> None:
        if self._is_taken:  # else it goes back to nowhere: the batch in flight runs again
            super()._check_input(savepoint, names)

    def _open(self) -> Savepoint:
        if self._is_taken:
            return super()._open()
        return Savepoint(self._source.url, describe_source(self._source, self._clock))

    def _check_in_flight(self, query: QueryDefinition) -> None:
        """Refuse a batch that plain Spark may have written, unless the sink knows its number."""
        theirs = next((each for each in self._source.queries if each.name == query.name), None)
        tells = all(isinstance(sink, VisibleSink) for sink in query.sinks)
        if theirs is None or tells or theirs.logs.position().open_batch is None:
            return
        raise ConfigError(
            f"query {query.name!r}: batch {theirs.logs.position().open_batch} of {theirs.logs.url} "
            "is planned and not committed, so plain Spark may have written its rows, and they "
            "would be written again: run the plain program until that batch has ended, or write to "
            "a new location and begin from a savepoint (spark-stream savepoint take --checkpoint)"
        )


def checkpoints_to_take_over(
    directory: JobDirectory, queries: Sequence[QueryDefinition]
) -> dict[str, Storage]:
    """Return the checkpoints from which the queries begin; none where the job has begun.

    Raises:
        ConfigError: a query that is new in a job which has begun has such a checkpoint.
    """
    last = Restores(directory).start()
    is_open = last is not None and last.is_open and _is_ours(directory, last.plan.savepoint)
    own = (CheckpointLogs(directory.checkpoint(name)) for name in directory.query_names())
    named = {q.name: open_storage(q.takes_over) for q in queries if q.takes_over is not None}
    if not is_open and (last is not None or any(logs.exists() for logs in own)):
        _check_none_new(directory, named)
        return {}
    return {name: location for name, location in named.items() if _has_committed(location)}


def _check_none_new(directory: JobDirectory, named: Mapping[str, Storage]) -> None:
    """Refuse a query that would read again what plain Spark has read: only jobs take over."""
    lineage = lineage_of(directory.storage)
    for name, location in named.items():
        has_begun = CheckpointLogs(directory.checkpoint(name)).exists()
        if has_begun or not _has_committed(location) or is_claimed(location, name, lineage):
            continue
        raise ConfigError(
            f"{directory.url}: query {name!r} is new in a job that has begun, and the checkpoint "
            f"{location.url} is taken over only when a job begins, so the query would write again "
            "what plain Spark has written; leave the checkpoint out, so that the query reads and "
            f"writes all of its input again, or {FROM_SCRATCH}"
        )


def _has_committed(location: Storage) -> bool:
    with refusing(location.url, "read"):
        return CheckpointLogs(location).position().last_commit >= 0


def _is_ours(directory: JobDirectory, savepoint: str | None) -> bool:
    return (savepoint or "").startswith(f"{directory.url}/savepoints/{_FOLDER}")


def starting_point(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, clock: Clock
) -> StartingPoint:
    """Return where an attempt begins: a savepoint, the job's own state, or checkpoints to adopt."""
    begins = spec.from_savepoint is None and spec.replays is None
    if begins and (found := checkpoints_to_take_over(directory, job.queries)):
        return TakeOver(
            directory,
            job.queries,
            found,
            allow_non_restored=spec.allow_non_restored_state,
            upstream=job.upstream,
            clock=clock,
            replaces_job=spec.replaces_job,
        )
    return StartingPoint(
        directory,
        spec.from_savepoint,
        job.queries,
        allow_non_restored=spec.allow_non_restored_state,
        allow_mixed_results=spec.allow_mixed_results,
        partitions=spec.state_partitions,
        make_repartition=lambda: spark_repartition(job.spark),
        upstream=job.upstream,
        input_check=InputCheck(spark_listing(job.spark)),
    )
