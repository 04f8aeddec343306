"""The final checkpoint: built when all is committed, and verified before anybody is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.finished import Mark
from airflow_provider.runtime.clock import millis_to_iso
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.late_rows import late_rows_of
from airflow_provider.runtime.jobdir.verify_final import _batch_of
from airflow_provider.runtime.jobdir.watermark_markers import is_marker
from airflow_provider.runtime.progress import operator_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.checkpoint.drain_step import LogPosition
    from airflow_provider.runtime.checkpoint.finished import Marks
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.state_metrics import StateOperator
    from airflow_provider.runtime.savepoints.record import SavepointRecord
    from airflow_provider.runtime.sinks.committer import EpochCommitter
    from airflow_provider.runtime.sinks.native import NativeEpochs


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
                "late_rows": late_rows_of(epochs.late_rows(), op.id),
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


def check_agrees(final: FinalCheckpoint, saved: SavepointRecord) -> None:
    """Refuse a final checkpoint that is not of the batches that its savepoint has.

    Raises:
        CheckpointError: Spark's commit log has changed since the savepoint was taken.
    """
    for name, query in final.queries.items():
        batch = _batch_of(query)
        if name in saved.queries and saved.queries[name].batch != batch:
            msg = (
                f"query {name!r}: Spark's commit log ends with batch {batch}, but the savepoint "
                f"{final.savepoint}, which was taken to end the run, with "
                f"{saved.queries[name].batch}; the log was changed meanwhile"
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
