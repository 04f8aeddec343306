"""The beginning of an attempt: its last checks, and its queries, recovered but not yet started."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.job_checks import (
    check_consumed,
    check_known_bugs,
    check_outputs,
    writer_of,
)
from airflow_provider.runtime.driver.lifecycle.events import AtEnd
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.end_of_input import SourceEnds, put_batch_ends, sources_end
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.expiry import retire_old
from airflow_provider.runtime.jobdir.folding import fold_operations
from airflow_provider.runtime.jobdir.identity import check_not_emptied
from airflow_provider.runtime.jobdir.lease_records import lease_path
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_commit import commit_log_of
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.queries.batch import BatchQuery
from airflow_provider.runtime.queries.batch_sizing import BatchSizer
from airflow_provider.runtime.queries.fixed_ends import FixedEnds
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.queries.query import bind
from airflow_provider.runtime.queries.row_policy import RowPolicy
from airflow_provider.runtime.queries.streaming import StreamQuery
from airflow_provider.runtime.queries.watermarks import EventTimes
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.restores import Restores, replayed_by
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    begin_rewindable,
    check_rewinds,
    forget_older,
    runs_to_rewind,
)
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.recovery import check_none_left
from airflow_provider.runtime.sinks.spark_sink import ReportedRows
from airflow_provider.runtime.spark.defaults import PARTITIONS, PROVIDER, partition_advice
from airflow_provider.runtime.spark.session import check_reaches, effective_settings
from airflow_provider.runtime.storage.open import is_in_bucket, spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence, OnePhaseSink
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.checkpoint.source_end import SourceEnd
    from airflow_provider.runtime.driver.initial_state import StartingPoint
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.end_of_input import DrainIntent
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.context import JobContext
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.running import Query


log = logging.getLogger(__name__)


def save_start(
    directory: JobDirectory,
    run: RunRecord,
    replayable: Sequence[str] | None,
    *,
    token: int,
    clock: Clock,
) -> None:
    """Keep where a run begins, if it can be replayed, and prune old records.

    The caller holds the lease with *token*, and has started no query. *replayable* are the runs
    that stay replayable; None for a run that is not.

    Crash safety: calling it again completes it.
    Idempotent: by run and lease.
    """
    retire_old(directory, token)
    fold_operations(directory.storage, Restores(directory).is_start)
    if replayable is not None:
        begin_rewindable(directory, run, clock)
        forget_older(directory, replayable, clock, token=token)


@dataclasses.dataclass(frozen=True)
class QueryOpener:
    """Opens the queries of one attempt."""

    spec: RunSpec
    directory: JobDirectory
    run: RunDirectory
    job: LoadedJob
    lease: Lease
    replayable: Sequence[str]
    clock: Clock

    def open(self, intents: Mapping[str, DrainIntent | None]) -> dict[str, Query]:
        """Publish what Spark has committed, remove what it has not, and return the queries.

        *intents* has per query how it drains; None while it reads.

        Crash safety: calling it again completes it.
        """
        if self.job.plan.mode == BATCH:
            return {query.name: self._open_batch(query) for query in self.job.queries}
        # What the last drains have produced follows finish().
        draining = all(intent is not None for intent in intents.values())
        return {
            query.name: self._open_stream(query, intents[query.name] if draining else None)
            for query in self.job.queries
        }

    def _open_stream(self, query: QueryDefinition, held_back: DrainIntent | None) -> StreamQuery:
        # What the job was declared with may have been restored or rewound since.
        ended = sources_end(self.directory, query.name)
        query = bind(query, self.directory, ended, self.job.declare)
        location = self.directory.checkpoint(query.name)
        logs = CheckpointLogs(location)
        self._advise(query, logs)
        epochs: EpochCommitter | ReportedRows
        if query.native is not None:
            epochs = self._reported_rows(query, query.native, logs)
        else:
            epochs = self._committer_of(query, logs)
            epochs.recover(held_back.batch if held_back is not None else None)
        target_s = self.spec.batch_sizing_s(self.job.plan.until)
        return StreamQuery(
            query,
            checkpoint=spark_url(location.url),
            logs=logs,
            epochs=epochs,
            trigger=self.job.plan.trigger(self.spec.trigger_s),
            clock=self.clock,
            batch_sizer=BatchSizer(query, target_s, self.clock) if target_s else None,
            event_times=(
                EventTimes(query, self.clock, ended.reached if ended else {})
                if query.marked
                else None
            ),
            is_drained=self.job.plan.until == "end" and self.job.plan.at_end is AtEnd.DRAIN,
            ends=self._ends_of(query, location, logs),
            policy=RowPolicy(query, self.spec.late, self.spec.accepted_late_rows),
        )

    def _ends_of(
        self, query: QueryDefinition, location: Storage, logs: CheckpointLogs
    ) -> FixedEnds | None:
        if query.native is not None:
            return None
        return FixedEnds(
            query, checkpoint=location, logs=logs, run=self.run, lease=self.lease, clock=self.clock
        )

    def _advise(self, query: QueryDefinition, logs: CheckpointLogs) -> None:
        last = logs.position().last_offsets
        if last < 0 or not query.topology.operators:
            return
        chosen = int(effective_settings(self.job.spark)[PARTITIONS])
        kept = logs.offsets(last)
        advice = partition_advice(kept.partitions, chosen, kept.conf.get(PROVIDER, ""))
        if advice is not None:
            log.warning("query=%s %s", query.name, advice)
        elif kept.partitions not in {None, chosen}:
            text = "query=%s keeps its state in the %s partitions of its checkpoint, not in %d"
            log.info(text, query.name, kept.partitions, chosen)

    def _open_batch(self, query: QueryDefinition) -> BatchQuery:
        logs = commit_log_of(self.directory, self.run, query.name, mode=BATCH)
        committer = self._committer_of(query, logs)
        committer.recover(through=-1)  # what a batch job has produced follows finish()
        return BatchQuery(
            query,
            logs=logs,
            committer=committer,
            clock=self.clock,
            record_input=functools.partial(self._record_input, query.name, str(logs.query_id())),
        )

    def _record_input(self, query: str, query_id: str, ends: Sequence[SourceEnd]) -> None:
        if not ends:
            return
        recorded = SourceEnds(
            query_id=query_id,
            query=query,
            run_id=self.run.run_id,
            token=self.lease.token,
            batch=0,
            at=to_iso(self.clock.now()),
            ends=list(ends),
        )
        put_batch_ends(self.run, recorded)

    def _reported_rows(
        self, query: QueryDefinition, sink: OnePhaseSink, logs: CheckpointLogs
    ) -> ReportedRows:
        sink.check_not_ahead(logs.position().last_offsets)
        if (query_id := logs.query_id()) is not None:
            records = EpochRecords(self.directory.committables(query.name), query_id)
            last = logs.position().last_commit
            check_none_left(records.find(), last, where=records.url, sink=sink.name)
        log.info("query=%s sink=%s guarantees: %s", query.name, sink.name, sink.guarantee)
        return ReportedRows(sink, query.taps, [source.name for source in query.sources])

    def _committer_of(self, query: QueryDefinition, logs: CommitLog) -> EpochCommitter:
        return EpochCommitter(
            query.name,
            storage=self.directory.committables(query.name),
            logs=logs,
            sinks=query.sinks,
            quarantine=query.quarantine,
            lease=self.lease,
            run_id=self.run.run_id,
            clock=self.clock,
            keep_runs=self._kept_runs(query),
            writer=writer_of(self.directory),
        )

    def _kept_runs(self, query: QueryDefinition) -> list[str]:
        """Return the runs whose epochs all keep their records."""
        if self.job.plan.until == "stopped":
            return []  # it has no end, so its records would be without number
        return [*self.replayable, *([self.run.run_id] if query.bounded else [])]


def close_quietly(queries: Iterable[Query], context: JobContext, lease: Lease) -> None:
    """Stop the queries and call the job's ``close()`` callbacks, whatever they raise."""
    for query in queries:
        try:
            query.stop()
        except Exception as reason:  # noqa: BLE001 - the JVM may be gone
            lease.doubt()
            why = classify(reason).reason  # one line; the JVM's own text is pages of its stack
            log.warning("query=%s could not be stopped: %s", query.name, why)
    for error in context.close():
        log.warning("run=%s an on_close callback failed", context.run_id, exc_info=error)


def check_early(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, start: StartingPoint, clock: Clock
) -> None:
    """Refuse a start with all that is wrong with the loaded job and its state; nothing is written.

    What it finds of the state, :func:`check_under_lease` and the restore find again: only there it
    counts.

    Raises:
        ConfigError: what was found, also when the job was loaded.
    """
    with job.refusals.reporting():
        with job.refusals.collecting():
            check_not_emptied(directory.storage)
            check_consumed(spec, job.queries)
            check_outputs(spec, directory, job.queries)
        with job.refusals.collecting():
            check_known_bugs(spec, job.queries, job.spark.version)
        with job.refusals.collecting():
            _check_state(spec, directory, job, start, clock)
    job.refusals.check()


def _check_state(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, start: StartingPoint, clock: Clock
) -> None:
    if spec.replays is None:
        start.check()
        return
    rewinds = _rewinds(spec, directory, job, fence=OpenFence(), clock=clock)
    start.check_rewound(check_rewinds(rewinds))


def _rewinds(
    spec: RunSpec,
    directory: JobDirectory,
    job: LoadedJob,
    *,
    fence: Fence,
    clock: Clock,
    by: str = "rewind",
) -> list[Rewind]:
    listing, run_id = InputCheck(spark_listing(job.spark)), str(spec.replays)
    return [
        Rewind(directory, each, job.queries, fence, clock, by, listing, is_replay=True)
        for each in runs_to_rewind(directory, run_id, with_later=spec.with_later, is_replay=True)
    ]


def check_under_lease(
    spec: RunSpec,
    directory: JobDirectory,
    run_id: str,
    job: LoadedJob,
    *,
    lease: Lease,
    clock: Clock,
) -> None:
    """Evaluate the preconditions again under the lease, and rewind the run that is replayed."""
    # A batch job has no checkpoint, and needs no client of Hadoop's for a bucket.
    if job.plan.mode != BATCH or not is_in_bucket(directory.url):
        check_reaches(job.spark, directory.url, lease_path(lease.token))
    driver_id = spec.driver_id
    check_preconditions(directory, run_id, driver_id=driver_id, replays=spec.replays)
    if spec.replays is not None:
        by = replayed_by(run_id, spec.replays)
        rewinds = _rewinds(spec, directory, job, fence=lease, clock=clock, by=by)
        if len(rewinds) > 1:
            check_rewinds(rewinds)
        for rewind in rewinds:
            rewind.rewind()
        check_preconditions(directory, run_id, driver_id=driver_id)
