"""One attempt: observe, decide, act, until the run has its final checkpoint.

Deciding is :mod:`lifecycle`'s; this module carries its instructions out and feeds it what happens.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime import failpoints, lifecycle
from airflow_provider.runtime.asking import (
    Ask,
    check_not_drained,
    check_same_ask,
)
from airflow_provider.runtime.batchlog import commit_log_of
from airflow_provider.runtime.checkpoint import (
    CheckpointLogs,
    CommitLog,
    next_drain_step,
    plan_drain_batch,
)
from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.errors import (
    LeaseLostError,
    RunCancelledError,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.failures import Failure, classify
from airflow_provider.runtime.final import describe_query, verify_final
from airflow_provider.runtime.jobdir import (
    CANCELLED,
    FAILED,
    FINISHED,
    SUSPENDED,
    AttemptRecord,
    BatchCommit,
    DrainIntent,
    FinalCheckpoint,
    JobDirectory,
    JobRecord,
    ProgressRecord,
    RunDirectory,
    RunRecord,
)
from airflow_provider.runtime.lease import LeaseObserver, acquire_lease
from airflow_provider.runtime.modes import BATCH
from airflow_provider.runtime.process import identify_this
from airflow_provider.runtime.progress import ProgressMeter
from airflow_provider.runtime.queries import (
    BatchQuery,
    QueryDefinition,
    RunningQuery,
    StateOperator,
    read_state_operators,
)
from airflow_provider.runtime.requests import pending_cancels, reply
from airflow_provider.runtime.rewinding import Rewind, begin_rewindable
from airflow_provider.runtime.savepoint import StartingPoint
from airflow_provider.runtime.session import jvm_pid
from airflow_provider.runtime.sinks import EpochCommitter, NativeEpochs
from airflow_provider.runtime.sinks.protocol import Fence, OpenFence
from airflow_provider.runtime.storage import spark_url

if TYPE_CHECKING:
    import threading

    from airflow_provider.runtime.preparing import DeclaredJob


log = logging.getLogger(__name__)

POLL_S: Final = 0.05  # a drained job is noticed this late, twice
_SLOW_POLL_S: Final = 1.0  # lease, requests and progress: each costs a look at the storage
OnProgress = Callable[[ProgressRecord], None]


class Attempt:
    """One driver's work on one run, from the lease to its release.

    Args:
        ask: what is wanted.
        directory: the job directory.
        run_id: the run.
        job: what the job's function has declared.
        observer: what has watched the lease so far.
        clock: time.
        stop: set by the caller to cancel the attempt.
        on_progress: called about once a second.
    """

    def __init__(
        self,
        ask: Ask,
        directory: JobDirectory,
        run_id: str,
        job: DeclaredJob,
        *,
        observer: LeaseObserver,
        clock: Clock,
        stop: threading.Event,
        on_progress: OnProgress | None,
    ) -> None:
        self._ask = ask
        self._directory = directory
        self._run: RunDirectory = directory.run(run_id)
        self._job = job
        self._observer = observer
        self._clock = clock
        self._stop = stop
        self._on_progress = on_progress
        self._life = lifecycle.Lifecycle.of(
            tuple(query.name for query in job.queries), job.plan.at_end
        )
        self._events: deque[lifecycle.Event] = deque()
        self._queries: dict[str, RunningQuery | BatchQuery] = {}
        self._driver_id = ask.driver_id or uuid.uuid4().hex
        self._final: FinalCheckpoint | None = None
        self._starting_point = StartingPoint(
            directory,
            ask.from_savepoint,
            job.queries,
            allow_non_restored=ask.allow_non_restored_state,
        )
        self._next_slow_look = 0.0
        # Each act takes the instruction it is paired with, which a type checker cannot see.
        self._acts: dict[type, Callable[..., None]] = {
            lifecycle.StartQuery: self._start_query,
            lifecycle.StoreDrainIntent: self._store_drain_intent,
            lifecycle.PlanDrain: self._plan_drain,
            lifecycle.CallFinish: self._call_finish,
            lifecycle.CommitEpochs: self._commit_epochs,
            lifecycle.PutFinal: self._put_final,
            lifecycle.Close: self._close,
        }

    def run(self) -> FinalCheckpoint:
        """Live until the run has its final checkpoint; see :func:`driver.run_job`."""
        check_same_ask(self._asked_record(), self._run.record())
        self._check_start()
        self._lease = acquire_lease(
            self._directory.storage,
            run_id=self._run.run_id,
            driver_id=self._driver_id,
            owner=identify_this(jvm_pid(self._job.spark)),
            clock=self._clock,
            observer=self._observer,
        )
        try:
            return self._run_with_lease()
        finally:
            self._lease.release()

    def _run_with_lease(self) -> FinalCheckpoint:
        # Looked at again: another driver may have come and gone while Spark started.
        done = self._run.final()
        if done is not None:
            return verify_final(self._directory, done)
        if self._ask.replays is not None:
            self._rewind(self._ask.replays, self._lease).rewind()
        check_not_drained(self._directory, self._run.run_id)
        self._starting_point.check()
        self._starting_point.restore(self._lease, self._clock)
        asked = self._asked_record()
        self._directory.put_job(JobRecord(name=self._job.name, created=to_iso(self._clock.now())))
        stored = self._run.put_record(asked)
        check_same_ask(asked, stored)
        failpoints.hit("run.recorded")
        self._attempt = self._record_attempt()
        failpoints.hit("attempt.recorded")
        self._meter = ProgressMeter(self._clock, self._attempt.attempt)
        try:
            self._live(stored)
        except SparkStreamError as error:
            self._end_attempt(FAILED, classify(error))
            raise
        return self._conclude()

    def _check_start(self) -> None:
        """Refuse a start that cannot be had; nothing is written."""
        if self._ask.replays is not None:
            self._rewind(self._ask.replays, OpenFence()).check()
        else:
            self._starting_point.check()

    def _rewind(self, run_id: str, fence: Fence) -> Rewind:
        return Rewind(self._directory, run_id, self._job.queries, fence, self._clock)

    def _live(self, run: RunRecord) -> None:
        """Feed the lifecycle until it has ended; errors become its events."""
        self._started = run.started
        if self._try(self._open_queries) and self._try(self._save_start, run):
            intent = self._run.drain_intent() or self._run.batch_commit()
            self._events.append(lifecycle.Started(intended=intent is not None))
        while self._life.phase is not lifecycle.JobPhase.ENDED:
            if not self._events:
                self._try(self._observe)
            if self._events:
                self._handle(self._events.popleft())
            else:
                self._clock.sleep(POLL_S)

    def _handle(self, event: lifecycle.Event) -> None:
        before = self._life.phase
        self._life, instructions = self._life.handle(event)
        if self._life.phase is not before:
            log.info("run=%s %s -> %s", self._run.run_id, before.value, self._life.phase.value)
        for instruction in instructions:
            if not self._try(self._acts[type(instruction)], instruction):
                return

    def _try(self, act: Callable[..., None], *args: lifecycle.Instruction | RunRecord) -> bool:
        """Call *act*; turn any error but a lost lease into the end of the attempt."""
        try:
            act(*args)
        except LeaseLostError:
            self._close_quietly()
            raise
        except Exception as error:
            log.info("run=%s fails", self._run.run_id, exc_info=True)
            self._events.clear()
            self._events.append(lifecycle.Failed(classify(error)))
            return False
        return True

    # --- observe --------------------------------------------------------------------------------

    def _observe(self) -> None:
        for query in self._queries.values():
            if query.has_ended():
                self._events.append(self._how_it_ended(query))
                return
            if self._life.publishes:
                query.epochs.commit_ready()
        if self._stop.is_set():
            self._stop.clear()
            self._events.append(lifecycle.CancelRequested())
        elif self._clock.monotonic() >= self._next_slow_look:
            self._next_slow_look = self._clock.monotonic() + _SLOW_POLL_S
            self._look_around()

    def _how_it_ended(self, query: RunningQuery | BatchQuery) -> lifecycle.Event:
        error = query.error()
        self._report_progress()
        query.settle()
        if isinstance(error, LeaseLostError):
            raise error
        if error is not None:
            return lifecycle.Failed(classify(error, query=query.name))
        step = next_drain_step(query.logs.position(), stateful=query.logs.is_stateful())
        return lifecycle.QueryEnded(query.name, step)

    def _look_around(self) -> None:
        self._lease.check()
        for request in pending_cancels(self._directory.storage, self._driver_id):
            reply(
                self._directory.storage, request, ok=True, message="cancelling", clock=self._clock
            )
            self._events.append(lifecycle.CancelRequested())
        self._report_progress()

    def _report_progress(self) -> None:
        record = self._meter.read(self._life, self._queries.values())
        record.put(self._run.storage, "progress.json")
        if self._on_progress is not None:
            self._on_progress(record)

    # --- act ------------------------------------------------------------------------------------

    def _open_queries(self) -> None:
        intent = self._run.drain_intent()
        for definition in self._job.queries:
            if self._is_batch:
                self._queries[definition.name] = self._open_batch(definition)
                continue
            place = self._directory.checkpoint(definition.name)
            logs = CheckpointLogs(place)
            epochs = self._epochs_of(definition, logs)
            epochs.recover(intent.batches.get(definition.name) if intent is not None else None)
            self._queries[definition.name] = RunningQuery(
                definition,
                checkpoint=spark_url(place.url),
                logs=logs,
                epochs=epochs,
                trigger=self._job.plan.trigger(self._ask.trigger_s),
            )

    @property
    def _is_batch(self) -> bool:
        return self._job.plan.mode == BATCH

    def _open_batch(self, definition: QueryDefinition) -> BatchQuery:
        logs = commit_log_of(self._directory, self._run, definition.name, mode=BATCH)
        epochs = self._epochs_of(definition, logs)
        epochs.recover(through=-1)  # what a batch job has produced waits for finish()
        return BatchQuery(definition, logs=logs, epochs=epochs)

    def _save_start(self, run: RunRecord) -> None:
        if self._ask.rewindable:
            begin_rewindable(self._directory, run, self._clock)

    def _epochs_of(
        self, definition: QueryDefinition, logs: CommitLog
    ) -> EpochCommitter | NativeEpochs:
        if definition.native is not None:
            log.info(
                "query=%s sink=%s guarantees: %s",
                definition.name,
                definition.native.name,
                definition.native.guarantee,
            )
            return NativeEpochs(definition.native)
        return EpochCommitter(
            definition.name,
            storage=self._directory.committables(definition.name),
            logs=logs,
            sinks=definition.sinks,
            lease=self._lease,
            run_id=self._run.run_id,
            clock=self._clock,
            keep_run=definition.bounded,
        )

    def _start_query(self, instruction: lifecycle.StartQuery) -> None:
        self._lease.check()
        self._queries[instruction.query].start(instruction.how)

    def _store_drain_intent(self, _: lifecycle.StoreDrainIntent) -> None:
        self._lease.check()
        positions = {name: query.logs.position() for name, query in self._queries.items()}
        if not self._is_batch:  # which has no state to drain, and a commit of its own
            self._run.put_drain_intent(
                DrainIntent(
                    run_id=self._run.run_id,
                    batches={name: position.last_commit for name, position in positions.items()},
                    at=to_iso(self._clock.now()),
                )
            )
            failpoints.hit("drain.intended")
        steps = {
            name: next_drain_step(position, stateful=self._queries[name].logs.is_stateful())
            for name, position in positions.items()
        }
        self._events.append(lifecycle.IntentStored(steps))

    def _plan_drain(self, instruction: lifecycle.PlanDrain) -> None:
        self._lease.check()
        batch = plan_drain_batch(CheckpointLogs(self._directory.checkpoint(instruction.query)))
        log.info("query=%s batch=%s planned to drain", instruction.query, batch)
        failpoints.hit("drain.planned")

    def _call_finish(self, _: lifecycle.CallFinish) -> None:
        if self._is_batch:
            self._commit_batch()
        else:
            failpoints.hit("drain.ended")
        self._job.context.finish()
        failpoints.hit("final.finished")
        self._events.append(lifecycle.FinishDone())

    def _commit_batch(self) -> None:
        """Let what all queries have staged count; from here no attempt runs them again."""
        self._lease.check()
        at = to_iso(self._clock.now())
        commit = BatchCommit(run_id=self._run.run_id, token=self._lease.token, at=at)
        self._run.put_batch_commit(commit)
        failpoints.hit("batch.committed")

    def _commit_epochs(self, _: lifecycle.CommitEpochs) -> None:
        for query in self._queries.values():
            query.epochs.commit_through(query.logs.position().last_commit)
        self._events.append(lifecycle.EpochsCommitted())

    def _put_final(self, instruction: lifecycle.PutFinal) -> None:
        drained = instruction.at_end is lifecycle.AtEnd.DRAIN
        counts = [query.epochs.rows_read() for query in self._queries.values()]
        known = [count for count in counts if count is not None]
        final = FinalCheckpoint(
            job=self._job.name,
            run_id=self._run.run_id,
            outcome=FINISHED if drained else SUSPENDED,
            mode=self._job.plan.mode,
            attempts=self._attempt.attempt,
            started=self._started,
            committed=to_iso(self._clock.now()),
            rows_read=sum(known) if len(known) == len(counts) else None,
            savepoint=None,
            queries={
                name: describe_query(
                    query.definition,
                    logs=query.logs,
                    epochs=query.epochs,
                    operators=self._state_operators(query),
                    finished=drained,
                )
                for name, query in self._queries.items()
            },
        )
        verify_final(self._directory, final)
        for query in self._queries.values():
            query.epochs.remove_leftovers()
        self._lease.check()
        self._final = self._run.put_final(final)
        failpoints.hit("final.put")
        self._events.append(lifecycle.FinalPut())

    def _state_operators(self, query: RunningQuery | BatchQuery) -> list[StateOperator]:
        """Return the operators from the last batch's own report, or by reading the state."""
        if not query.logs.is_stateful():
            return []
        progress = query.last_progress()
        if progress and progress["batchId"] == query.logs.position().last_commit:
            return [
                StateOperator(index, operator["operatorName"], operator["numRowsTotal"])
                for index, operator in enumerate(progress["stateOperators"])
            ]
        place = self._directory.checkpoint(query.name).url
        return read_state_operators(self._job.spark, spark_url(place))

    def _close(self, _: lifecycle.Close) -> None:
        self._close_quietly()
        self._events.clear()
        self._events.append(lifecycle.Closed())

    def _close_quietly(self) -> None:
        for query in self._queries.values():
            try:
                query.stop()
            except Exception as reason:  # noqa: BLE001 - the JVM may be gone
                log.warning("query=%s could not be stopped: %s", query.name, reason)
        for error in self._job.context.close():
            log.warning("run=%s an on_close callback failed", self._run.run_id, exc_info=error)

    # --- records --------------------------------------------------------------------------------

    def _asked_record(self) -> RunRecord:
        logs = {
            q.name: CheckpointLogs(self._directory.checkpoint(q.name)) for q in self._job.queries
        }
        interval = self._ask.interval
        return RunRecord(
            run_id=self._run.run_id,
            entry=self._ask.entry,
            params=dict(self._ask.params),
            mode=self._job.plan.mode,
            until=self._job.plan.until,
            at_end=self._job.plan.at_end.value,
            trigger_s=self._ask.trigger_s,
            interval=[to_iso(moment) for moment in interval] if interval else None,
            starting={name: log.position().last_commit for name, log in logs.items()},
            started=to_iso(self._clock.now()),
            from_savepoint=self._ask.from_savepoint,
            query_ids={name: str(uuid.uuid4()) for name in logs} if self._is_batch else None,
        )

    def _record_attempt(self) -> AttemptRecord:
        attempt = AttemptRecord(
            attempt=self._run.attempt_count() + 1,
            driver_id=self._driver_id,
            token=self._lease.token,
            host=socket.gethostname(),
            pid=os.getpid(),
            entry=self._ask.entry,
            started=to_iso(self._clock.now()),
        )
        self._run.put_attempt(attempt)
        return attempt

    def _end_attempt(self, outcome: str, failure: Failure | None = None) -> None:
        ended = dataclasses.replace(
            self._attempt,
            ended=to_iso(self._clock.now()),
            outcome=outcome,
            failure=failure.to_dict() if failure else None,
        )
        self._run.put_attempt(ended)

    def _conclude(self) -> FinalCheckpoint:
        failure = self._life.failure
        if self._final is not None:
            self._end_attempt(self._final.outcome)
            return self._final
        if failure is not None:
            self._end_attempt(FAILED, failure)
            raise RunFailedError(failure)
        self._end_attempt(CANCELLED)
        msg = f"run {self._run.run_id!r} was cancelled; the same command resumes it"
        raise RunCancelledError(msg)
