"""The end of a run: the commit of a BATCH run, and the check of a final checkpoint.

Each query of a BATCH run stages one epoch, 0, and ``runs/<run id>/batch.json``, put once, commits
all of them. A driver that dies before that runs every query again; one that dies after it only
publishes again, which changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.drain_step import LogPosition
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.journal import Journal
from airflow_provider.runtime.jobdir.run_records import BATCH, FINISHED, FinalCheckpoint
from airflow_provider.runtime.jobdir.runs import recent_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.query_reports import FinalQuery


BATCH_EPOCH: Final = 0


class BatchLog:
    """Says of one query of a BATCH run what Spark's logs say of a stream."""

    def __init__(self, run: RunDirectory, query_id: str) -> None:
        self.url = f"{run.storage.url}/batch.json"
        self._run = run
        self._query_id = query_id

    @property
    def checkpoint(self) -> None:
        """Return None: Spark keeps no checkpoint of a batch job."""

    def commit_digest(self, batch: int) -> None:
        """Return None, for the same reason."""

    def query_id(self) -> str:
        """Return the id under which the query's epoch is recorded."""
        return self._query_id

    def position(self) -> LogPosition:
        last = BATCH_EPOCH if self._run.batch_commit() is not None else -1
        return LogPosition(last, last, None)

    def is_committed(self, batch: int) -> bool:
        return batch <= self.position().last_commit

    def is_stateful(self) -> bool:
        return False

    def complete_ms(self, batch: int) -> None:
        """Return None: a batch job has no watermark."""

    def offsets(self, batch: int) -> OffsetEntry:
        """Return an entry without sources: a batch job has read them to their end."""
        del batch
        return OffsetEntry(version="v1", metadata={}, sources=())


def committed_batch_run(directory: JobDirectory) -> str | None:
    """Return the BATCH run that has committed the job, finished or not; None if none has."""
    for record in recent_runs(directory):  # no other run begins after one that has
        run = directory.run(record.run_id)
        is_batch = record.mode == BATCH
        if is_batch and run.batch_commit() is not None and run.rewound() is None:
            return run.run_id
    return None


def commit_log_of(
    directory: JobDirectory, run: RunDirectory, query: str, *, mode: str
) -> CommitLog:
    """Return the log that decides whether a query's batches are committed."""
    if mode != BATCH:
        return CheckpointLogs(directory.checkpoint(query))
    record = run.record()
    ids = (record.query_ids if record is not None else None) or {}
    if query not in ids:
        known = ", ".join(sorted(ids)) or "none"
        raise CheckpointError(
            f"{run.storage.url}: this run is in BATCH and has no query {query!r} (it has: {known});"
            " a run's queries cannot change between its attempts: use another run id"
        )
    return BatchLog(run, ids[query])


def verify_final(directory: JobDirectory, final: FinalCheckpoint) -> FinalCheckpoint:
    """Return *final* if it is correct.

    Raises:
        CheckpointError: it is another job's, or omits a query; a batch is not in Spark's commit
            log; or an epoch is not published.
    """
    run = directory.run(final.run_id).record()
    starting = run.starting if run is not None else {}
    name = directory.name()
    if run is None or final.job != name or set(final.queries) != set(starting):
        raise CheckpointError(
            f"{directory.url}: the final checkpoint of run {final.run_id!r} is of job "
            f"{final.job!r} and its queries {_named(final.queries)}, but there that run is of job "
            f"{name!r} and has {_named(starting)}; it was changed by hand, or copied from elsewhere"
        )
    for name, query in final.queries.items():
        _verify_batches(directory, final, name, query)
        first = 0 if final.mode == BATCH else starting[name] + 1
        _verify_epochs(directory, final, name, query, first=first)
    return final


def contradiction(directory: JobDirectory, final: FinalCheckpoint) -> str | None:
    """Return what speaks against *final*; None when it holds, or its run was rewound."""
    if directory.run(final.run_id).rewound() is not None:
        return None
    try:
        verify_final(directory, final)
    except CheckpointError as error:
        return str(error)
    return None


def _verify_batches(
    directory: JobDirectory, final: FinalCheckpoint, name: str, query: FinalQuery
) -> None:
    logs = commit_log_of(directory, directory.run(final.run_id), name, mode=final.mode)
    if _has_gone_on(directory, name, str(query.query_id), logs):
        return
    position, batch = logs.position(), query.last_batch
    # A suspended job may have run on since; a finished one may not.
    is_last = position.last_commit == batch and position.open_batch is None
    committed = is_last if final.outcome == FINISHED else position.last_commit >= batch
    if not committed:
        end = f"{position.last_commit}, and {position.last_offsets} is the last that was planned"
        raise CheckpointError(
            f"{directory.url}: the final checkpoint of run {final.run_id!r} says that query "
            f"{name!r} committed batch {batch}, but Spark's commit log ends with {end}; "
            "the checkpoint was changed by hand or by another program"
        )


def _has_gone_on(directory: JobDirectory, name: str, query_id: str, logs: CommitLog) -> bool:
    """Whether the query was reset since, or restored: it has another log then."""
    committables, now = directory.committables(name), logs.query_id()
    if EpochRecords(committables, query_id).find().is_abandoned:
        return True
    if now is None:  # it may just be restored, into a location where nothing is yet
        last = Journal(directory.storage).last_restore()
        plan = last.restore if last is not None and last.is_open else None
        return plan is not None and plan.queries.get(name, {}).get("replaces") == query_id
    return now != query_id and EpochRecords(committables, now).copied() >= 0


def _verify_epochs(
    directory: JobDirectory,
    final: FinalCheckpoint,
    name: str,
    query: FinalQuery,
    *,
    first: int,
) -> None:
    """Look whether every epoch of the run is published; one listing, however many there are."""
    batch = query.last_batch
    sinks = [sink for sink in query.sinks if sink.epoch is not None]
    if not sinks:  # no epoch, or a sink that records none
        return
    records = EpochRecords(directory.committables(name), str(query.query_id))
    claim = (
        f"{directory.url}: the final checkpoint of run {final.run_id!r} says that query {name!r}"
    )
    for sink in sinks:
        if sink.epoch != batch:
            raise CheckpointError(
                f"{claim} published epoch {sink.epoch} to {sink.name} and committed batch "
                f"{batch}; Spark's commit log was changed by hand or by another program"
            )
    missing = records.find().unpublished(first, batch)
    if missing:  # or a driver of a later run has folded them while they were listed
        missing = records.find().unpublished(first, batch)
    if missing:
        raise CheckpointError(
            f"{claim} published epoch {batch} to {sinks[0].name}, but its record says otherwise:"
            f" of epochs {first} to {batch}, {missing[0]} is not published"
        )


def _named(queries: Iterable[str]) -> str:
    return ", ".join(sorted(queries)) or "none"
