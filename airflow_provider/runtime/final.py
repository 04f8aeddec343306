"""The final checkpoint: built when all is committed, and verified before anybody is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.batchlog import commit_log_of
from airflow_provider.runtime.checkpoint import Mark
from airflow_provider.runtime.clock import millis_to_iso
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir import FINISHED, FinalCheckpoint, JobDirectory
from airflow_provider.runtime.markers import is_marker
from airflow_provider.runtime.sinks.records import EpochRecords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.checkpoint import CommitLog, LogPosition, Marks
    from airflow_provider.runtime.queries import QueryDefinition, StateOperator
    from airflow_provider.runtime.sinks import EpochCommitter, NativeEpochs


def describe_query(
    query: QueryDefinition,
    *,
    logs: CommitLog,
    epochs: EpochCommitter | NativeEpochs,
    operators: Sequence[StateOperator],
    marks: Marks,
    finished: bool,
) -> dict[str, Any]:
    """Return a query's part of the final checkpoint.

    Args:
        query: the query as the job wrote it.
        logs: what says which of its batches are committed.
        epochs: what it has published.
        operators: its stateful operators and the rows they hold.
        marks: how far its sources and operators have come to their end.
        finished: whether it was drained.
    """
    position = logs.position()
    last = epochs.last_record()
    return {
        "query_id": logs.query_id(),
        "batch_id": position.last_commit if position.last_commit >= 0 else None,
        "watermark": _watermark(position),
        "finished": finished,
        "sources": _sources(query, logs, position, marks),
        "operators": [
            {
                "id": op.id,
                "name": operator_name(query.operators, index),
                "kind": op.kind,
                "state_rows": op.state_rows,
                "finished": marks.of_operator(op.id) is Mark.FINISHED,
                "mark": marks.of_operator(op.id).value,
            }
            for index, op in enumerate(operators)
        ],
        "sinks": [
            {
                "name": name,
                "epoch": last.epoch if last else None,
                "rows": epochs.run_rows(name),
            }
            for name in query.sink_names
        ],
    }


def verify_final(directory: JobDirectory, final: FinalCheckpoint) -> FinalCheckpoint:
    """Return *final* if what it says is so.

    Raises:
        CheckpointError: a batch is not in Spark's commit log, or a sink's epoch is not published.
    """
    for name, query in final.queries.items():
        _verify_batches(directory, final, name, query)
        _verify_sinks(directory, final, name, query)
    return final


def _verify_batches(
    directory: JobDirectory, final: FinalCheckpoint, name: str, query: Mapping[str, Any]
) -> None:
    records = EpochRecords(directory.committables(name), str(query.get("query_id")))
    if records.is_left():
        return  # it has begun anew since, and has another log
    logs = commit_log_of(directory, directory.run(final.run_id), name, mode=final.mode)
    position = logs.position()
    batch = -1 if query["batch_id"] is None else int(query["batch_id"])
    # A suspended job may have run on since; a finished one may not.
    committed = position.last_commit == batch or (
        final.outcome != FINISHED and position.last_commit > batch
    )
    if not committed:
        msg = (
            f"{directory.url}: the final checkpoint of run {final.run_id!r} says that query "
            f"{name!r} committed batch {batch}, but Spark's commit log ends with "
            f"{position.last_commit}; the checkpoint was changed by hand or by another program"
        )
        raise CheckpointError(msg)


def _verify_sinks(
    directory: JobDirectory, final: FinalCheckpoint, name: str, query: Mapping[str, Any]
) -> None:
    for sink in query["sinks"]:
        if sink["epoch"] is None:  # no epoch, or a sink that records none
            continue
        records = EpochRecords(directory.committables(name), query["query_id"])
        if not records.is_published(sink["epoch"]):
            msg = (
                f"{directory.url}: the final checkpoint of run {final.run_id!r} says that query "
                f"{name!r} published epoch {sink['epoch']} to {sink['name']}, but its record says "
                "otherwise"
            )
            raise CheckpointError(msg)


def _watermark(position: LogPosition) -> str | None:
    return millis_to_iso(position.watermark_ms) if position.watermark_ms else None


def _sources(
    query: QueryDefinition, logs: CommitLog, position: LogPosition, marks: Marks
) -> list[dict[str, Any]]:
    offsets: list[Any] = []
    if position.last_commit >= 0:
        offsets = logs.offsets(position.last_commit).source_offsets()
    return [
        {
            "name": source.name,
            "bounded": source.bounded,
            "finished": mark is Mark.FINISHED,
            "mark": mark.value,
            "end_offset": offsets[index] if index < len(offsets) else None,
        }
        for index, (source, (_, mark)) in enumerate(zip(query.sources, marks.sources, strict=True))
        if not is_marker(source.name)
    ]


def operator_name(names: Sequence[str], index: int) -> str:
    """Return what the job calls a query's stateful operator, by its place in the plan."""
    return names[index] if index < len(names) else str(index)
