"""The final checkpoint: built when all is committed, and verified before it is reported."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.finished import Mark
from airflow_provider.runtime.clock import millis_to_iso, to_iso
from airflow_provider.runtime.driver.lifecycle.events import AtEnd, QueryPhase
from airflow_provider.runtime.driver.progress import marks_now, operator_name
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.late_rows import (
    describe_dropped_rows,
    late_rows_of,
    sum_of,
    total_of,
)
from airflow_provider.runtime.jobdir.run_records import (
    FINISHED,
    SUSPENDED,
    FinalCheckpoint,
)
from airflow_provider.runtime.jobdir.verify_final import _batch_of
from airflow_provider.runtime.jobdir.watermark_markers import is_marker
from airflow_provider.runtime.queries.flush import ignored_timers
from airflow_provider.runtime.queries.spark_state import (
    OperatorRows,
    read_state_operators,
    reported_state,
)
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.checkpoint.drain_step import LogPosition
    from airflow_provider.runtime.checkpoint.finished import Marks
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.driver.lifecycle.machine import Lifecycle
    from airflow_provider.runtime.driver.prepare import LoadedJob
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import (
        AttemptRecord,
        RunRecord,
    )
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.spark_state import OperatorRows
    from airflow_provider.runtime.queries.streaming import RunningQuery
    from airflow_provider.runtime.savepoints.record import SavepointRecord
    from airflow_provider.runtime.sinks.committer import EpochCommitter
    from airflow_provider.runtime.sinks.spark_sink import SparkSinkEpochs


def describe_query(
    query: QueryDefinition,
    *,
    logs: CommitLog,
    epochs: EpochCommitter | SparkSinkEpochs,
    operators: Sequence[OperatorRows],
    marks: Marks,
    finished: bool,
    ignored: Mapping[int, int | None],
) -> dict[str, Any]:
    """Return a query's part of the final checkpoint.

    Args:
        query: the query as the job wrote it.
        logs: what says which of its batches are committed.
        epochs: what it has published.
        operators: its stateful operators and the rows they hold.
        marks: how close its sources and operators are to their end.
        finished: whether it was drained.
        ignored: the timers that its drain ignored, by operator.
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
                "ignored_timers": ignored.get(op.id, 0),
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


log = logging.getLogger(__name__)


def final_of(
    job: LoadedJob,
    directory: JobDirectory,
    queries: Mapping[str, RunningQuery | BatchQuery],
    *,
    life: Lifecycle,
    run: RunRecord,
    attempt: AttemptRecord,
    at_end: AtEnd,
    savepoint: str | None,
    now: dt.datetime,
) -> FinalCheckpoint:
    """Return the final checkpoint of a run whose last epochs are published; nothing is written."""
    ignored = {
        name: ignored_timers(query, directory.checkpoint(name)) for name, query in queries.items()
    }
    final = FinalCheckpoint(
        job=directory.name() or job.name,
        run_id=run.run_id,
        outcome=FINISHED if at_end is AtEnd.DRAIN else SUSPENDED,
        mode=job.plan.mode,
        attempts=attempt.attempt,
        started=run.started,
        committed=to_iso(now),
        rows_read=sum_of([query.epochs.rows_read() for query in queries.values()]),
        savepoint=savepoint,
        queries={
            name: describe_query(
                query.definition,
                logs=query.logs,
                epochs=query.epochs,
                operators=_state_operators(job, directory, query),
                marks=marks_now(query.definition, life.queries[name]),
                finished=life.queries[name] is QueryPhase.DRAINED,
                ignored=ignored[name],
            )
            for name, query in queries.items()
        },
        late_rows=total_of({name: query.epochs.late_rows() for name, query in queries.items()}),
        late_minimum=any(query.epochs.late_is_minimum() for query in queries.values()),
        rows_minimum=any(query.definition.native is not None for query in queries.values()),
        lost_rows=sum_of([query.epochs.lost_rows() for query in queries.values()]),
        ignored_timers=sum_of(n for each in ignored.values() for n in each.values()),
    )
    for dropped in describe_dropped_rows(final.to_dict()):
        log.warning("run=%s: %s", run.run_id, dropped)
    return final


def _state_operators(
    job: LoadedJob, directory: JobDirectory, query: RunningQuery | BatchQuery
) -> list[OperatorRows]:
    if not query.logs.is_stateful():
        return []
    reported = reported_state(query.last_progress(), query.logs.position().last_commit)
    place = directory.checkpoint(query.name).url
    planned = query.definition.topology.operators
    return reported or read_state_operators(job.spark, spark_url(place), planned)
