"""Records of the driver: writes its run, attempt and progress."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.checkpoint.drain import plan_drain_batch
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.clock import to_iso
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    EndedSources,
    put_drain_intent,
    put_ended_sources,
)
from airflow_provider.runtime.jobdir.fingerprint_record import keep_fingerprint
from airflow_provider.runtime.jobdir.resolve_run import attempt_options
from airflow_provider.runtime.jobdir.run_records import BATCH, AttemptRecord, BatchCommit, RunRecord
from airflow_provider.runtime.jobdir.topology_record import keep_topology
from airflow_provider.runtime.queries.streaming import RunningQuery
from airflow_provider.runtime.spark.session import effective_settings

if TYPE_CHECKING:
    import datetime as dt

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.driver.prepare import LoadedJob
    from airflow_provider.runtime.errors.failure import Failure
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.start_mode import StartMode

log = logging.getLogger(__name__)


def start_query(directory: JobDirectory, query: RunningQuery | BatchQuery, how: StartMode) -> None:
    """Start a query, and keep what it consists of.

    Crash safety: what it will be is put before it starts, and counts when it has committed a batch;
    of a query without an id, which has no state, afterwards.
    Idempotent: by query id.
    """
    if not isinstance(query, RunningQuery):
        query.start(how)  # a batch job keeps no state
        return
    definition, position = query.definition, query.logs.position()
    name, since = definition.name, position.last_commit + 1
    keep_fingerprint(directory, name, definition.fingerprint, since=since)
    query.start(how)
    keep_topology(directory, name, definition.topology, replace=position.last_offsets < 0)
    keep_fingerprint(directory, name, definition.fingerprint, since=since)


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
        mode=job.plan.mode,
        until=job.plan.until,
        at_end=job.plan.at_end.value,
        trigger_s=spec.trigger_s,
        interval=spec.stored_interval,
        starting={name: log.position().last_commit for name, log in logs.items()},
        started=to_iso(clock.now()),
        from_savepoint=spec.from_savepoint,
        replayable=spec.replayable_runs > 0,
        query_ids={name: str(uuid.uuid4()) for name in logs} if job.plan.mode == BATCH else None,
        settings=effective_settings(job.spark),
        late=spec.late,
    )


def record_end_of_sources(
    directory: JobDirectory, run_id: str, query: RunningQuery | BatchQuery, now: dt.datetime
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
    query: RunningQuery | BatchQuery,
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
    """Record that what all queries of a BATCH run have staged is committed. Idempotent."""
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
        options=attempt_options(spec),
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
    """Record how the attempt ended, which has no other effect.

    Returns:
        The failure; when it could not be recorded, its reason says so, and why.
    """
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
