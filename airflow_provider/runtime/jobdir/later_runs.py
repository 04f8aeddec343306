"""Runs of a job that came after one of its runs, and those of them that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import UnknownJobError
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.runs import runs_newest_first

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord


def runs_since(directory: JobDirectory, run_id: str) -> list[str]:
    """Return the runs that have begun after this one, oldest first; rewound ones, too."""
    since: list[str] = []
    for record in runs_newest_first(directory):
        if record.run_id == run_id:
            return since[::-1]
        since.append(record.run_id)
    raise UnknownJobError(f"{directory.url}: no run {run_id!r}, so there is nothing to rewind")


def later_runs(directory: JobDirectory, run_id: str) -> list[str]:
    """Return the runs that have built on a run, oldest first."""
    return [other for other in runs_since(directory, run_id) if is_current(directory, other)]


def is_current(directory: JobDirectory, run_id: str) -> bool:
    """Whether a run has written, and was not rewound."""
    run = directory.run(run_id)
    record = run.record()
    return record is not None and run.rewound() is None and has_written(directory, record)


def has_written(directory: JobDirectory, record: RunRecord) -> bool:
    """Whether a run has pre-committed or published an epoch, or Spark has run a batch of it."""
    for name, before in record.starting.items():
        location = directory.committables(name)
        if _has_epochs(location, record.run_id):
            return True
        if _has_batches(location, CheckpointLogs(directory.checkpoint(name)), before):
            return True
    return False


def _has_batches(storage: Storage, logs: CheckpointLogs, before: int) -> bool:
    """Whether Spark has run batches for its own sinks; what a restore copies is of no run."""
    query_id = logs.query_id()
    if query_id is None:
        return False
    records = EpochRecords(storage, query_id)
    return logs.position().last_commit > max(before, records.copied()) and not records.has_own()


def _has_epochs(storage: Storage, run_id: str) -> bool:
    """Whether a run has an epoch of a query, under any of its ids."""
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        if any(run == run_id for *_, run in records.history().ranges):
            return True
        if any(record.run_id == run_id for record in records.all()):
            return True
    return False
