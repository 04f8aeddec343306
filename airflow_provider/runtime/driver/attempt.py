"""An attempt at a run, until the run has its final checkpoint."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, Due, to_iso
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.driver import records
from airflow_provider.runtime.driver.failures import ErrorLog, Restarter
from airflow_provider.runtime.driver.lifecycle import Lifecycle, events
from airflow_provider.runtime.driver.open_queries import (
    QueryOpener,
    check_early,
    check_under_lease,
    close_quietly,
    save_start,
)
from airflow_provider.runtime.driver.progress import ProgressMeter, shown_phase
from airflow_provider.runtime.driver.stop_requests import StopRequestHandler
from airflow_provider.runtime.driver.take_over import starting_point
from airflow_provider.runtime.errors import (
    LeaseLostError,
    RunCancelledError,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.jobdir.end_of_input import drain_intent
from airflow_provider.runtime.jobdir.identity import begin_identity
from airflow_provider.runtime.jobdir.lease import LeaseObserver, acquire_lease
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import (
    BATCH,
    CANCELLED,
    FAILED,
    FinalCheckpoint,
    JobRecord,
    ProgressRecord,
    RunRecord,
)
from airflow_provider.runtime.jobdir.runs import check_same_spec
from airflow_provider.runtime.queries.flush import next_step_of
from airflow_provider.runtime.queries.query import bind, ending_alone
from airflow_provider.runtime.queries.running import Query, Stream, give_up_open, publish
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.rewind import replayable_runs
from airflow_provider.runtime.spark.session import check_spark, jvm_pid
from airflow_provider.runtime.spark.spark_log import SparkLog
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    import threading

    from airflow_provider.runtime.checkpoint.drain_step import DrainStep
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.errors.explanation import Failure
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
_FIRST_POLL_S: Final = 0.005
_LATE: Final = 0.05  # of the time since the last event: so much later the next one is noticed
_REQUEST_POLL_S: Final = 0.5  # costs one read
_SLOW_POLL_S: Final = 1.0  # lease and progress: each costs a look at the storage
OnProgress = Callable[[ProgressRecord], None]


class Attempt:
    """One driver's work on one run, from the lease to its release."""

    def __init__(
        self,
        spec: RunSpec,
        directory: JobDirectory,
        run_id: str,
        job: LoadedJob,
        *,
        observer: LeaseObserver,
        clock: Clock,
        stop: threading.Event,
        on_progress: OnProgress | None,
    ) -> None:
        self._spec = spec
        self._directory = directory
        self._run: RunDirectory = directory.run(run_id)
        self._job = job
        self._observer = observer
        self._clock = clock
        self._stop = stop
        self._on_progress = on_progress
        self._life = Lifecycle.of(
            tuple(query.name for query in job.queries),
            job.plan.at_end,
            upstream=job.upstream,
            continuous=job.plan.until == "stopped",
            bounded=() if spec.bootstrap else ending_alone(job.queries),
        )
        self._events: deque[events.Event] = deque()
        self._queries: dict[str, Query] = {}
        self._streams: dict[str, Stream] = {}  # those of them that run more than once
        self._driver_id = spec.driver_id or uuid.uuid4().hex
        self._errors = ErrorLog(self._run.storage, self._driver_id, spec.failure_overrides)
        self._final: FinalCheckpoint | None = None
        self._starting_point = starting_point(spec, directory, job, clock)
        self._is_batch = job.plan.mode == BATCH
        self._stop_requests = StopRequestHandler(
            directory, self._run, self._driver_id, clock, is_batch=self._is_batch
        )
        self._requests_due = Due(clock, _REQUEST_POLL_S)
        self._is_slow_poll_due = Due(clock, _SLOW_POLL_S)
        self._replayable: list[str] = []
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type, Callable[..., None]]:
        # Each act takes the instruction it is paired with, which a type checker cannot see.
        return {
            events.StartQuery: self._start_query,
            events.RestartQuery: self._restart_query,
            events.StopQuery: self._stop_query,
            events.HaltQuery: self._halt_query,
            events.EndSources: self._end_sources,
            events.PublishEpochs: self._publish_epochs,
            events.StoreDrainIntent: self._store_drain_intent,
            events.PlanDrain: self._plan_drain,
            events.CallFinish: self._call_finish,
            events.CommitEpochs: self._commit_epochs,
            events.TakeSavepoint: self._take_savepoint,
            events.PutFinal: self._put_final,
            events.Close: self._close,
        }

    def run(self) -> FinalCheckpoint:
        with self._job.refusals.collecting():
            check_same_spec(self._run_record(), self._run.record())
        check_early(self._spec, self._directory, self._job, self._starting_point, self._clock)
        begin_identity(self._directory.storage, self._clock, self._spec.replaces_job)
        self._lease = acquire_lease(
            self._directory.storage,
            run_id=self._run.run_id,
            driver_id=self._driver_id,
            owner=identify_this(jvm_pid(self._job.spark)),
            clock=self._clock,
            observer=self._observer,
        )
        with self._lease:
            return self._run_with_lease()

    def _run_with_lease(self) -> FinalCheckpoint:
        names = [query.name for query in self._job.queries]
        relocate(self._directory, self._lease, self._clock, names)
        done = self._run.final()  # of another driver that has come and gone while Spark started
        if done is not None:
            return verify_final(self._directory, done)
        check_under_lease(
            self._spec,
            self._directory,
            self._run.run_id,
            self._job,
            lease=self._lease,
            clock=self._clock,
        )
        self._starting_point.check()
        self._pins = records.pin_rows(
            self._directory, self._run.run_id, self._job, self._lease, self._clock
        )
        self._starting_point.restore(self._lease, self._clock)
        requested = self._run_record()
        self._directory.put_job(JobRecord(name=self._job.name, created=to_iso(self._clock.now())))
        stored = records.put_run_record(self._run, requested, self._lease)
        check_same_spec(requested, stored)
        failpoints.hit("run.recorded")
        self._attempt = records.begin_attempt(
            self._run, self._spec, self._lease.record, self._job, self._clock.now()
        )
        failpoints.hit("attempt.recorded")
        self._keep_spark_log()
        self._restarter = Restarter(self._spec, self._job, self._run, self._attempt, self._clock)
        self._meter = ProgressMeter(self._clock, self._attempt.attempt)
        self._replayable = replayable_runs(
            self._directory, self._run.run_id, self._spec.replayable_runs
        )
        try:
            self._run_loop(stored)
        except SparkStreamError as error:
            self._end_attempt(FAILED, self._errors.failure_of(error))
            raise
        return self._conclude()

    def _keep_spark_log(self) -> None:
        spark_log = SparkLog.of(self._job.spark)
        folder = local_path_of(self._run.storage.url)
        if spark_log is not None and folder is not None:
            spark_log.move(Path(folder) / "logs" / f"{self._driver_id}.spark.log")

    def _run_loop(self, run: RunRecord) -> None:
        self._record, since = run, self._clock.monotonic()
        if self._try(self._open_queries) and self._try(self._save_start, run):
            self._try(self._begin)
        while self._life.phase is not events.JobPhase.ENDED:
            if not self._events:
                self._try(self._observe)
            if self._events:
                self._handle(self._events.popleft())
                since = self._clock.monotonic()
            else:
                quiet_s = self._clock.monotonic() - since
                self._clock.sleep(min(POLL_S, max(_FIRST_POLL_S, _LATE * quiet_s)))

    def _handle(self, event: events.Event) -> None:
        before = shown_phase(self._life)
        self._life, instructions = self._life.handle(event)
        after = shown_phase(self._life)
        if after != before:
            log.info("run=%s %s -> %s", self._run.run_id, before, after)
        for instruction in instructions:
            if not self._try(self._handlers[type(instruction)], instruction):
                return

    def _try(self, act: Callable[..., None], *args: events.Instruction | RunRecord) -> bool:
        try:
            act(*args)
        except LeaseLostError:
            close_quietly(self._queries.values(), self._job.context, self._lease)
            raise
        except Exception as error:  # noqa: BLE001 - the error log has it whole
            self._events.clear()
            failure = self._errors.failure_of(error, at_work=self._queries.values())
            self._events.append(events.Failed(failure))
            return False
        return True

    # --- observe --------------------------------------------------------------------------------

    def _observe(self) -> None:
        if self._stop.is_set():  # first: a signal to the process group has ended Spark, too
            self._stop.clear()
            self._events.append(events.CancelRequested())
            return
        for stream in self._streams.values():
            stream.halt_in_time()
        if any(map(self._observe_query, self._queries.values())):
            return
        if self._restarter.is_due(self._streams[name] for name in self._life.restarting):
            self._events.append(events.RestartDue(self._steps_of(self._life.restarting)))
            return
        is_due = self._is_slow_poll_due()
        with self._lease.tolerating_outages():
            self._poll_stop_requests()
            if is_due:
                self._lease.check()
        if is_due:
            self._poll_queries()

    def _observe_query(self, query: Query) -> bool:
        """Publish what a query has committed; return whether it has caused an event."""
        if query.has_ended():
            self._events.append(self._exit_reason(query))
            return True
        return self._life.publishes and not self._publish_ready(query)

    def _poll_queries(self) -> None:
        if self._life.restarting:  # a query that runs would tell
            check_spark(self._job.spark)
        for stream in self._streams.values():
            stream.move_idle_sources()
        self._job.context.poll()
        self._report_progress()

    def _publish_ready(self, query: Query) -> bool:
        if query.committer is None or query.name in self._life.restarting:
            return True  # Spark publishes, or its start publishes first
        try:
            query.committer.commit_ready()
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            log.info("query=%s cannot publish", query.name)
            query.stop()
            query.settle()
            self._events.append(self._failed(error, query))
            return False
        return True

    def _exit_reason(self, query: Query) -> events.Event:
        error, stream = query.error(), self._streams.get(query.name)
        has_more = error is None and stream is not None and stream.has_more()
        self._report_progress()
        query.settle()
        if isinstance(error, LeaseLostError):
            raise error
        if error is not None:
            return self._failed(error, query)
        if stream is not None:  # the only epoch of a batch job waits for the run's commit
            give_up_open(query)
        return events.QueryEnded(query.name, self._next_step(query), has_more)

    def _failed(self, error: BaseException, query: Query) -> events.Event:
        failure = self._errors.failure_of(error, query)
        if self._is_batch:  # it runs once; the run is what is tried again
            return events.Failed(failure)
        return self._restarter.after(failure, self._life)

    def _next_step(self, query: Query) -> DrainStep:
        return next_step_of(query, self._directory.checkpoint(query.name))

    def _steps_of(self, names: Iterable[str]) -> dict[str, DrainStep]:
        return {name: self._next_step(self._queries[name]) for name in names}

    def _poll_stop_requests(self) -> None:
        if self._requests_due():
            self._events.extend(self._stop_requests.poll(self._life.phase))

    def _report_progress(self) -> None:
        record = self._meter.report(self._run.storage, self._life, self._queries.values())
        if self._on_progress is not None:
            self._on_progress(record)

    # --- act ------------------------------------------------------------------------------------

    def _open_queries(self) -> None:
        self._intents = {
            query.name: drain_intent(self._directory, query.name) for query in self._job.queries
        }
        opener = QueryOpener(
            self._spec,
            self._directory,
            self._run,
            self._job,
            lease=self._lease,
            replayable=self._replayable,
            clock=self._clock,
        )
        self._queries = opener.open(self._intents)
        self._streams = {n: each for n, each in self._queries.items() if isinstance(each, Stream)}

    def _save_start(self, run: RunRecord) -> None:
        kept = self._replayable if self._spec.replayable_runs else None
        save_start(self._directory, run, kept, token=self._lease.token, clock=self._clock)

    def _begin(self) -> None:
        committed = self._run.batch_commit() is not None
        begun = [n for n, intent in self._intents.items() if committed or intent is not None]
        left = {name: query.definition.yet_to_end for name, query in self._queries.items()}
        mixed = [name for name in left if left[name] and not self._spec.bootstrap]
        self._events.append(
            events.Started(self._steps_of(begun), self._stop_requests.accepted(), mixed)
        )

    def _start_query(self, instruction: events.StartQuery) -> None:
        self._lease.check()
        self._check_rows()
        records.start_query(self._directory, self._queries[instruction.query], instruction.how)

    def _check_rows(self) -> None:
        """Refuse to start a query in a session that the job has set otherwise meanwhile."""
        rows = self._job.rows
        self._pins.check(rows.now(), rows.given, rows.usual)

    def _restart_query(self, instruction: events.RestartQuery) -> None:
        query = self._queries[instruction.query]
        try:
            self._lease.check()
            self._check_rows()
            if query.committer is not None:
                query.committer.begin_again()
            if self._life.publishes:
                publish(query)
            records.restart_query(self._directory, query, instruction.how)
        except LeaseLostError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            log.info("query=%s cannot be started again", query.name)
            self._events.append(self._failed(error, query))

    def _stop_query(self, instruction: events.StopQuery) -> None:
        query = self._queries[instruction.query]
        query.stop()
        query.settle()
        give_up_open(query)

    def _halt_query(self, instruction: events.HaltQuery) -> None:
        self._streams[instruction.query].halt(self._stop_requests.aligned_timeout_s)

    def _end_sources(self, instruction: events.EndSources) -> None:
        self._lease.check()
        query = self._streams[instruction.query]
        ended = records.record_end_of_sources(
            self._directory, self._run.run_id, query, self._clock.now()
        )
        query.replace_definition(bind(query.definition, self._directory, ended, self._job.declare))
        log.info("query=%s sources=%s ended", query.name, ",".join(ended.sources))

    def _publish_epochs(self, instruction: events.PublishEpochs) -> None:
        publish(self._queries[instruction.query])

    def _store_drain_intent(self, instruction: events.StoreDrainIntent) -> None:
        self._lease.check()
        query = self._queries[instruction.query]
        if not self._is_batch:  # which has no state to drain, and a commit of its own
            now = self._clock.now()
            records.record_end_of_data(
                self._directory, self._run.run_id, query, token=self._lease.token, now=now
            )
        self._events.append(events.IntentStored(query.name, self._next_step(query)))

    def _plan_drain(self, instruction: events.PlanDrain) -> None:
        self._lease.check()
        records.plan_drain(self._directory, instruction.query)

    def _take_savepoint(self, _: events.TakeSavepoint) -> None:
        if self._stop_requests.take_savepoint():
            self._events.append(events.SavepointTaken())
            return
        if self._life.ending is events.AtEnd.SUSPEND:
            self._stop_requests.resume()
        self._events.append(events.SavepointFailed())

    def _call_finish(self, _: events.CallFinish) -> None:
        if self._is_batch:
            self._lease.check()  # from here on no attempt runs the queries again
            records.record_batch_commit(self._run, self._lease.token, self._clock.now())
        else:
            failpoints.hit("drain.ended")
        self._job.context.finish()
        failpoints.hit("final.finished")
        self._events.append(events.FinishDone())

    def _commit_epochs(self, _: events.CommitEpochs) -> None:
        for query in self._queries.values():
            publish(query)
        self._job.context.published(by_itself=self._life.stop is None)
        self._events.append(events.EpochsCommitted())

    def _put_final(self, instruction: events.PutFinal) -> None:
        committers = [found for query in self._queries.values() if (found := query.committer)]
        for committer in committers:
            committer.repair_logs()
        final = records.final_of(
            self._job,
            self._directory,
            self._queries,
            life=self._life,
            run=self._record,
            attempt=self._attempt,
            at_end=instruction.at_end,
            savepoint=self._stop_requests.savepoint,
            now=self._clock.now(),
        )
        verify_final(self._directory, final)
        if final.savepoint is not None:
            records.check_agrees(final, open_savepoint(final.savepoint).record)
        for committer in committers:
            committer.remove_leftovers()
        self._lease.seal(final)
        self._final = self._run.put_final(final)
        self._events.append(events.FinalPut())

    def _close(self, _: events.Close) -> None:
        close_quietly(self._queries.values(), self._job.context, self._lease)
        self._meter.end(self._run.storage, self._queries.values())
        self._events.clear()
        self._events.append(events.Closed())

    # --- records --------------------------------------------------------------------------------

    def _run_record(self) -> RunRecord:
        return records.run_record(
            self._spec, self._directory, self._run.run_id, self._job, self._clock
        )

    def _end_attempt(self, outcome: str, failure: Failure | None = None) -> Failure | None:
        return records.end_attempt(
            self._run, self._restarter.attempt, self._clock.now(), outcome, failure
        )

    def _conclude(self) -> FinalCheckpoint:
        if self._final is not None:
            self._stop_requests.close(self._final.outcome, "")
            self._end_attempt(self._final.outcome)
            return self._final
        failure = self._life.failure
        if failure is not None:
            self._stop_requests.close(None, failure.describe())
            failure = self._stop_requests.final_failure(failure)
            raise RunFailedError(self._end_attempt(FAILED, failure) or failure)
        outcome = CANCELLED if self._life.keeps_run else None
        self._stop_requests.close(outcome, "the attempt was cancelled")
        self._end_attempt(CANCELLED)
        raise RunCancelledError(
            f"run {self._run.run_id!r} was cancelled; the same command resumes it"
        )
