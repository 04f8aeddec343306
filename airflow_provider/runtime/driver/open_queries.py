"""The queries of an attempt, opened: their epochs recovered, Spark not yet started."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.initial_state import StartingPoint
from airflow_provider.runtime.driver.job_checks import writer_of
from airflow_provider.runtime.driver.lifecycle import AtEnd
from airflow_provider.runtime.driver.take_over import TakeOver, checkpoints_to_take_over
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.batch_commit import commit_log_of
from airflow_provider.runtime.jobdir.end_of_input import sources_end
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.expiry import retire_old
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.queries.batch import BatchQuery
from airflow_provider.runtime.queries.fixed_ends import FixedEnds
from airflow_provider.runtime.queries.late_input import LatePolicy
from airflow_provider.runtime.queries.query import bind
from airflow_provider.runtime.queries.read_limits import batch_sizer_for
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.queries.streaming import RunningQuery
from airflow_provider.runtime.queries.watermarks import event_times_of
from airflow_provider.runtime.savepoints.rewind import begin_rewindable, forget_older
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.recovery import check_none_left
from airflow_provider.runtime.sinks.spark_sink import SparkSinkEpochs
from airflow_provider.runtime.spark.defaults import PARTITIONS, PROVIDER, partition_advice
from airflow_provider.runtime.spark.session import effective_settings
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.driver.prepare import LoadedJob
    from airflow_provider.runtime.jobdir.end_of_input import DrainIntent
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.context import JobContext
    from airflow_provider.runtime.queries.query import QueryDefinition


log = logging.getLogger(__name__)


def starting_point(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, clock: Clock
) -> StartingPoint:
    """Return where an attempt begins: a savepoint, the job's own state, or one to take over."""
    begins = spec.from_savepoint is None and spec.replays is None
    if begins and (found := checkpoints_to_take_over(directory, job.queries)):
        return TakeOver(
            directory,
            job.queries,
            found,
            allow_non_restored=spec.allow_non_restored_state,
            upstream=job.upstream,
            clock=clock,
        )
    return StartingPoint(
        directory,
        spec.from_savepoint,
        job.queries,
        allow_non_restored=spec.allow_non_restored_state,
        allow_mixed_results=spec.allow_mixed_results,
        partitions=spec.state_partitions,
        make_repartition=lambda: spark_repartition(job.spark),
        upstream=job.upstream,
    )


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
    if replayable is not None:
        begin_rewindable(directory, run, clock)
        forget_older(directory, replayable, clock)


@dataclasses.dataclass(frozen=True)
class QueryOpener:
    """Opens the queries of one attempt.

    Attributes:
        spec: what is wanted.
        directory: the job directory.
        run: the run.
        job: what the job's function has declared.
        lease: the right to commit.
        replayable: the runs that stay replayable.
        clock: time.
    """

    spec: RunSpec
    directory: JobDirectory
    run: RunDirectory
    job: LoadedJob
    lease: Lease
    replayable: Sequence[str]
    clock: Clock

    def open(
        self, intents: Mapping[str, DrainIntent | None]
    ) -> dict[str, RunningQuery | BatchQuery]:
        """Publish what Spark has committed, remove what it has not, and return the queries.

        *intents* has per query how it drains; None while it reads.

        Raises:
            CheckpointError: Spark's log and the records contradict each other.

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

    def _open_stream(self, query: QueryDefinition, held_back: DrainIntent | None) -> RunningQuery:
        # What the job was declared with may have been restored or rewound since.
        ended = sources_end(self.directory, query.name)
        query = bind(query, self.directory, ended, self.job.declare)
        place = self.directory.checkpoint(query.name)
        logs = CheckpointLogs(place)
        self._advise(query, logs)
        epochs = self._epochs_of(query, logs)
        epochs.recover(held_back.batch if held_back is not None else None)
        target_s = self.spec.pacing_s(self.job.plan.until)
        return RunningQuery(
            query,
            checkpoint=spark_url(place.url),
            logs=logs,
            epochs=epochs,
            trigger=self.job.plan.trigger(self.spec.trigger_s),
            clock=self.clock,
            batch_sizer=batch_sizer_for(query, target_s, self.clock),
            event_times=event_times_of(query, self.clock, ended.reached if ended else {}),
            is_drained=self.job.plan.until == "end" and self.job.plan.at_end is AtEnd.DRAIN,
            ends=self._ends_of(query, place, logs),
            late=LatePolicy(query, self.spec.late, self.spec.accepted_late_rows),
        )

    def _ends_of(
        self, query: QueryDefinition, place: Storage, logs: CheckpointLogs
    ) -> FixedEnds | None:
        """Return what keeps the query's first ends; None for Spark's own sinks."""
        if query.native is not None:
            return None
        return FixedEnds(
            query, checkpoint=place, logs=logs, run=self.run, lease=self.lease, clock=self.clock
        )

    def _advise(self, query: QueryDefinition, logs: CheckpointLogs) -> None:
        """Warn when a checkpoint's state has far too many or too few partitions."""
        last = logs.position().last_offsets
        if last < 0 or not query.topology.operators:
            return
        chosen = int(effective_settings(self.job.spark)[PARTITIONS])
        kept = logs.offsets(last)
        advice = partition_advice(kept.partitions, chosen, kept.conf.get(PROVIDER, ""))
        if advice is not None:
            log.warning("query=%s %s", query.name, advice)

    def _open_batch(self, query: QueryDefinition) -> BatchQuery:
        logs = commit_log_of(self.directory, self.run, query.name, mode=BATCH)
        epochs = self._epochs_of(query, logs)
        epochs.recover(through=-1)  # what a batch job has produced follows finish()
        return BatchQuery(query, logs=logs, epochs=epochs, clock=self.clock)

    def _epochs_of(
        self, query: QueryDefinition, logs: CommitLog
    ) -> EpochCommitter | SparkSinkEpochs:
        if query.native is not None:
            sink = query.native
            sink.check_not_ahead(logs.position().last_offsets)
            if (query_id := logs.query_id()) is not None:
                records = EpochRecords(self.directory.committables(query.name), query_id)
                last = logs.position().last_commit
                check_none_left(records.find(), last, where=records.url, sink=sink.name)
            log.info("query=%s sink=%s guarantees: %s", query.name, sink.name, sink.guarantee)
            return SparkSinkEpochs(sink)
        return EpochCommitter(
            query.name,
            storage=self.directory.committables(query.name),
            logs=logs,
            sinks=query.sinks,
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


def close_quietly(
    queries: Iterable[RunningQuery | BatchQuery], context: JobContext, lease: Lease
) -> None:
    """Stop the queries and call the job's ``close()`` callbacks, whatever they raise.

    A query that could not be stopped may still commit a batch, so the release of the lease will not
    say that this driver has certainly ended.
    """
    for query in queries:
        try:
            query.stop()
        except Exception as reason:  # noqa: BLE001 - the JVM may be gone
            lease.doubt()
            why = classify(reason).reason  # one line; the JVM's own text is pages of its stack
            log.warning("query=%s could not be stopped: %s", query.name, why)
    for error in context.close():
        log.warning("run=%s an on_close callback failed", context.run_id, exc_info=error)
