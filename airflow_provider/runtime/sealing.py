"""The final checkpoint of an attempt, from what its queries have come to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.clock import to_iso
from airflow_provider.runtime.final import describe_query
from airflow_provider.runtime.jobdir.late_rows import describe_late_rows, total_of
from airflow_provider.runtime.jobdir.run_records import FINISHED, SUSPENDED, FinalCheckpoint
from airflow_provider.runtime.lifecycle.words import AtEnd, QueryPhase
from airflow_provider.runtime.progress import marks_now
from airflow_provider.runtime.queries.state_metrics import (
    StateOperator,
    read_state_operators,
    reported_state,
)
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, RunRecord
    from airflow_provider.runtime.lifecycle.machine import Lifecycle
    from airflow_provider.runtime.preparing import DeclaredJob
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.streaming import RunningQuery

log = logging.getLogger(__name__)


def final_of(
    job: DeclaredJob,
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
    counts = [query.epochs.rows_read() for query in queries.values()]
    known = [count for count in counts if count is not None]
    final = FinalCheckpoint(
        job=directory.name() or job.name,
        run_id=run.run_id,
        outcome=FINISHED if at_end is AtEnd.DRAIN else SUSPENDED,
        mode=job.plan.mode,
        attempts=attempt.attempt,
        started=run.started,
        committed=to_iso(now),
        rows_read=sum(known) if len(known) == len(counts) else None,
        savepoint=savepoint,
        queries={
            name: describe_query(
                query.definition,
                logs=query.logs,
                epochs=query.epochs,
                operators=_state_operators(job, directory, query),
                marks=marks_now(query.definition, life.queries[name]),
                finished=life.queries[name] is QueryPhase.DRAINED,
            )
            for name, query in queries.items()
        },
        late_rows=total_of({name: query.epochs.late_rows() for name, query in queries.items()}),
    )
    told = describe_late_rows(final.to_dict())
    if told is not None:
        log.warning("run=%s: %s", run.run_id, told)
    return final


def _state_operators(
    job: DeclaredJob, directory: JobDirectory, query: RunningQuery | BatchQuery
) -> list[StateOperator]:
    if not query.logs.is_stateful():
        return []
    reported = reported_state(query.last_progress(), query.logs.position().last_commit)
    place = directory.checkpoint(query.name).url
    return reported or read_state_operators(job.spark, spark_url(place))
