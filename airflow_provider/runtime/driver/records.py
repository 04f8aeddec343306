"""Records of the driver: it writes its run, attempt and final checkpoint."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.offsets import plan_drain_batch
from airflow_provider.runtime.driver.identified_sources import identified
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.driver.query_reports import QueryReporter
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.dropped_rows import describe_dropped_rows
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    EndedSources,
    put_drain_intent,
    put_ended_sources,
)
from airflow_provider.runtime.jobdir.epoch_documents import total_of
from airflow_provider.runtime.jobdir.pinned_settings import pin_settings, read_pins
from airflow_provider.runtime.jobdir.query_records import keep_topology
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.jobdir.run_options import RunOptions
from airflow_provider.runtime.jobdir.run_records import (
    BATCH,
    FINISHED,
    SUSPENDED,
    AttemptRecord,
    BatchCommit,
    FinalCheckpoint,
    RunRecord,
)
from airflow_provider.runtime.queries.batch_reports import reported_state
from airflow_provider.runtime.queries.flush import ignored_timers
from airflow_provider.runtime.queries.running import Query, Stream
from airflow_provider.runtime.queries.spark_state import (
    OperatorRows,
    read_state_operators,
)
from airflow_provider.runtime.spark.session import effective_settings
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.drain_step import StartMode
    from airflow_provider.runtime.driver.lifecycle import Lifecycle
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.errors.explanation import Failure
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.pinned_settings import Pins
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.savepoints.record import SavepointRecord

log = logging.getLogger(__name__)


def start_query(directory: JobDirectory, query: Query, how: StartMode) -> None:
    """Start a query, and record its topology and what its sources read.

    Crash safety: the record precedes the start, and counts when the query has committed a batch;
    the record of a query without an id, which has no state, follows the start. Idempotent: by query
    id.
    """
    if not isinstance(query, Stream):
        query.start(how)  # a batch job keeps no state
        return
    definition, before = query.definition, query.logs.position()
    keep = functools.partial(
        keep_topology,
        directory,
        query.name,
        definition.topology,
        definition.fingerprint,
        before=before,
    )
    is_first = query.logs.query_id() is None
    with identified(directory, query):
        if not is_first:
            keep()
        query.start(how)
        if is_first:
            keep()


def restart_query(directory: JobDirectory, query: Query, how: StartMode) -> None:
    """Start a query again that has failed in this attempt, if it can read on."""
    if not isinstance(query, Stream):
        query.start(how)
        return
    with identified(directory, query):
        query.start(how)


def run_record(
    spec: RunSpec, directory: JobDirectory, run_id: str, job: LoadedJob, clock: Clock
) -> RunRecord:
    """Return the record of the run: its options, and the batch from which each query starts."""
    logs = {q.name: CheckpointLogs(directory.checkpoint(q.name)) for q in job.queries}
    return RunRecord(
        run_id=run_id,
        entry=spec.entry,
        params=dict(spec.params),
        secret_params=dict(spec.secret_params),
        options=_settled(spec, job),
        interval=spec.stored_interval,
        starting={name: log.position().last_commit for name, log in logs.items()},
        started=to_iso(clock.now()),
        from_savepoint=spec.from_savepoint,
        replayable=spec.replayable_runs > 0,
        query_ids={name: str(uuid.uuid4()) for name in logs} if job.plan.mode == BATCH else None,
        settings=effective_settings(job.spark),
    )


def _settled(spec: RunSpec, job: LoadedJob) -> RunOptions:
    plan = job.plan
    return RunOptions.of(spec).settled(mode=plan.mode, until=plan.until, at_end=plan.at_end.value)


def pin_rows(
    directory: JobDirectory, run_id: str, job: LoadedJob, lease: Fence, clock: Clock
) -> Pins:
    """Pin what the job's rows mean, or refuse a session that a driver before has not pinned so.

    Crash safety: the next start has the same settings, or pins its own. Idempotent.
    """
    rows, pins = job.rows.now(), read_pins(directory.storage)
    pins.check(rows, job.rows.given, job.rows.usual)
    if job.rows.applied:
        log.info("run=%s settings as the job began: %s", run_id, job.rows.describe_applied())
    return pin_settings(directory.storage, pins, rows, lease, clock, run_id=run_id)


def put_run_record(run: RunDirectory, record: RunRecord, lease: Fence) -> RunRecord:
    """Store the record of a run that begins now, or return the one that is there.

    Raises:
        LeaseLostError: another driver has taken over, and may have replaced the checkpoints before
            the record's batches were read from them.
    """
    lease.check()
    return run.put_record(dataclasses.replace(record, token=lease.token))


def record_end_of_sources(
    directory: JobDirectory, run_id: str, query: Stream, now: dt.datetime
) -> EndedSources:
    """Record that those sources of the query that end have ended. Idempotent."""
    ended = EndedSources(
        query_id=str(query.logs.query_id()),
        run_id=run_id,
        sources=list(query.definition.ending),
        batch=query.logs.position().last_commit,
        at=to_iso(now),
        reached=query.reached(),
    )
    put_ended_sources(directory, query.name, ended)
    failpoints.hit("sources.ended")
    return ended


def record_end_of_data(
    directory: JobDirectory,
    run_id: str,
    query: Query,
    *,
    token: int,
    now: dt.datetime,
) -> None:
    """Record that the query has read its last row, under the lease *token*. Idempotent."""
    intent = DrainIntent(
        query_id=str(query.logs.query_id()),
        run_id=run_id,
        batch=query.logs.position().last_commit,
        at=to_iso(now),
        token=token,
    )
    put_drain_intent(directory, query.name, intent)
    failpoints.hit("drain.intended")


def plan_drain(directory: JobDirectory, query: str) -> None:
    """Plan the query's drain batch, or the one after it, if rows wait for a later watermark."""
    logs = CheckpointLogs(directory.checkpoint(query))
    batch = plan_drain_batch(logs, further=True)
    log.info("query=%s batch=%s planned to drain", query, batch)
    failpoints.hit("drain.planned")


def record_batch_commit(run: RunDirectory, token: int, now: dt.datetime) -> None:
    """Record the commit of what all queries of a BATCH run have staged. Idempotent."""
    run.put_batch_commit(BatchCommit(run_id=run.run_id, token=token, at=to_iso(now)))
    failpoints.hit("batch.committed")


def begin_attempt(
    run: RunDirectory, spec: RunSpec, lease: LeaseRecord, job: LoadedJob, now: dt.datetime
) -> AttemptRecord:
    """Record the run's next attempt: this process, under the lease, with its Spark and its job."""
    context = job.spark.sparkContext
    attempt = AttemptRecord(
        attempt=run.attempt_count() + 1,
        driver_id=lease.driver_id,
        token=lease.token,
        host=socket.gethostname(),
        pid=os.getpid(),
        entry=spec.entry,
        started=to_iso(now),
        options=_settled(spec, job),
        application_id=context.applicationId,
        ui_url=context.uiWebUrl,
        datasets={query.name: query.datasets() for query in job.queries},
    )
    run.put_attempt(attempt)
    return attempt


def end_attempt(
    run: RunDirectory,
    attempt: AttemptRecord,
    now: dt.datetime,
    outcome: str,
    failure: Failure | None = None,
) -> Failure | None:
    """Record how the attempt ended, which has no other effect."""
    raw = failure.to_dict() if failure else None
    ended = dataclasses.replace(attempt, ended=to_iso(now), outcome=outcome, failure=raw)
    try:
        run.put_attempt(ended)
    except OSError as error:
        log.warning(
            "run=%s attempt=%s: no record of its end", run.run_id, attempt.attempt, exc_info=True
        )
        if failure is None:
            return None
        reason = f"{failure.reason} (this could not be recorded: {error})"
        return dataclasses.replace(failure, reason=reason)
    return failure


def check_agrees(final: FinalCheckpoint, saved: SavepointRecord) -> None:
    """Refuse a final checkpoint that is not of the batches that its savepoint has."""
    for name, query in final.queries.items():
        batch = query.last_batch
        if name in saved.queries and saved.queries[name].batch != batch:
            raise CheckpointError(
                f"query {name!r}: Spark's commit log ends with batch {batch}, but the savepoint "
                f"{final.savepoint}, which was taken to end the run, with "
                f"{saved.queries[name].batch}; the log was changed meanwhile"
            )


def final_of(
    job: LoadedJob,
    directory: JobDirectory,
    queries: Mapping[str, Query],
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
        rows_read=sum_of([query.counts.rows_read() for query in queries.values()]),
        savepoint=savepoint,
        queries={
            name: QueryReporter(query, life.queries[name]).final(
                _state_operators(job, directory, query), ignored[name]
            )
            for name, query in queries.items()
        },
        late_rows=total_of({name: query.counts.late_rows() for name, query in queries.items()}),
        late_minimum=any(query.counts.late_is_minimum() for query in queries.values()),
        rows_minimum=any(query.definition.native is not None for query in queries.values()),
        lost_rows=sum_of([query.counts.lost_rows() for query in queries.values()]),
        ignored_timers=sum_of(n for each in ignored.values() for n in each.values()),
    )
    for dropped in describe_dropped_rows(final):
        log.warning("run=%s: %s", run.run_id, dropped)
    return final


def _state_operators(job: LoadedJob, directory: JobDirectory, query: Query) -> list[OperatorRows]:
    if not query.logs.is_stateful():
        return []
    last_commit = query.logs.position().last_commit
    reported = reported_state(query.reading(), last_commit)
    location = directory.checkpoint(query.name).url
    planned = query.definition.topology.operators
    return reported or read_state_operators(job.spark, spark_url(location), planned)
