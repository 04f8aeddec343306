"""The commit of a BATCH run, which has no checkpoint of Spark's to decide.

A BATCH run's queries each stage one epoch, 0. ``runs/<run id>/batch.json``, put once when all of
them have, commits all of them together; before it nothing is published, and a killed run starts
over. The ids that epochs are recorded under are drawn once for a run and are in
``run.json``: they end with the run, as Spark's end with a checkpoint.

==================================  ================================================================
the driver died                     the next attempt of the run
==================================  ================================================================
while a query runs                  runs every query again
with all queries staged             the same; what is staged last counts
with ``batch.json`` put             runs none; calls ``on_finish`` and publishes
while publishing                    the same; publishing again changes nothing
==================================  ================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.drain_step import LogPosition
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs, OffsetEntry
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.jobdir.runs import recent_runs

if TYPE_CHECKING:
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory

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
        """Return that the only batch is committed, or that there is none yet."""
        last = BATCH_EPOCH if self._run.batch_commit() is not None else -1
        return LogPosition(last, last, None)

    def is_committed(self, batch: int) -> bool:
        """Whether the run has committed."""
        return batch <= self.position().last_commit

    def is_stateful(self) -> bool:
        """False: a batch job keeps no state."""
        return False

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
    """Return what decides whether a query's batches are committed.

    Raises:
        CheckpointError: the run is in BATCH and does not know the query.
    """
    if mode != BATCH:
        return CheckpointLogs(directory.checkpoint(query))
    record = run.record()
    ids = (record.query_ids if record is not None else None) or {}
    if query not in ids:
        known = ", ".join(sorted(ids)) or "none"
        msg = (
            f"{run.storage.url}: this run is in BATCH and has no query {query!r} (it has: {known});"
            " a run's queries cannot change between its attempts: use another run id"
        )
        raise CheckpointError(msg)
    return BatchLog(run, ids[query])
