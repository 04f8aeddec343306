"""The published output that a restore is about to revert, by run and query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.revised_runs import RevisedQuery, RevisedRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory


def revised_runs(directory: JobDirectory, batches: Mapping[str, int]) -> list[RevisedRun]:
    """Return the output after a batch of each query that is published, or visible; oldest first.

    Only reads. What an earlier operation has reverted is not in it.
    """
    found: dict[str, dict[str, RevisedQuery]] = {}
    for name, batch in batches.items():
        complete_ms = _complete_ms(directory, name)
        for record in _standing_after(directory, name, batch):
            queries = found.setdefault(record.run_id, {})
            before = queries.get(name) or RevisedQuery(0, 0, complete_ms=complete_ms)
            queries[name] = before.with_epoch(record.rows_written, record.event_times)
    runs = {run_id: directory.run(run_id).record() for run_id in found}
    return [
        RevisedRun(run_id, run.interval if run is not None else None, found[run_id])
        for run_id, run in sorted(runs.items(), key=lambda each: each[1].token if each[1] else 0)
    ]


def _standing_after(directory: JobDirectory, name: str, batch: int) -> Iterator[EpochRecord]:
    storage = directory.committables(name)
    committed = CheckpointLogs(directory.checkpoint(name)).position().last_commit
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        found = records.find()
        if found.is_abandoned:
            continue
        before = found.reverted_from
        for record in _counting(records.all(), committed):
            if record.epoch > batch and (before is None or record.epoch < before):
                yield record


def _counting(records: Iterable[EpochRecord], committed: int) -> list[EpochRecord]:
    """Return of each epoch the record that counts; a pre-commit only if Spark has committed it."""
    found: dict[int, EpochRecord] = {}
    for record in records:  # published ones come first, then pre-commits by their tokens
        known = found.get(record.epoch)
        is_open = record.committed is None
        if not is_open or (record.epoch <= committed and (known is None or not known.committed)):
            found[record.epoch] = record
    return [found[epoch] for epoch in sorted(found)]


def _complete_ms(directory: JobDirectory, name: str) -> int | None:
    logs = CheckpointLogs(directory.checkpoint(name))
    committed = logs.position().last_commit
    return logs.complete_ms(committed) if committed >= 0 else None
