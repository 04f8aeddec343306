"""Stop requests, the driver's side: which ones it accepts, promises, and answers.

==============================  ====================================================================
a crash                         afterwards
==============================  ====================================================================
before ``stop.json``            as if there were no request; the caller sees the driver gone
after it (stop with drain)      the run's next attempt drains: a drain is not reverted
before the savepoint is whole   its folder is garbage; the next attempt takes it again
after ``savepoint.json``        the next attempt of a drain finds it by the request's id
==============================  ====================================================================

A stop without drain promises nothing: its next attempt continues to read.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.driver.lifecycle.events import (
    AtEnd,
    CancelRequested,
    JobPhase,
    Stop,
    StopRequested,
)
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_RETRY,
    EXIT_USAGE,
    ConfigError,
    LeaseLostError,
    RunFailedError,
    SparkStreamError,
    UnknownJobError,
)
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.requests import (
    CANCEL,
    STOP,
    STOP_REQUEST,
    Inbox,
    pending_requests,
    reply,
    savepoint_is_complete,
)
from airflow_provider.runtime.jobdir.run_records import RequestRecord, StopRecord
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.record import MANIFEST
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint

log = logging.getLogger(__name__)


class StopRequestHandler:
    """Polls for requests to stop one driver, and answers each of them."""

    def __init__(
        self,
        directory: JobDirectory,
        run: RunDirectory,
        driver_id: str,
        clock: Clock,
        *,
        is_batch: bool = False,
    ) -> None:
        self._directory = directory
        self._run = run
        self._driver_id = driver_id
        self._clock = clock
        self._is_batch = is_batch
        self._accepted: StopRecord | None = None
        self._inbox = Inbox(directory.storage, driver_id)
        self._refusal: Failure | None = None  # why there is no savepoint, though one was requested
        self.savepoint: str | None = None
        self.aligned_timeout_s: float | None = None

    def accepted(self) -> Stop | None:
        self._accepted = self._run.stop()
        if self._accepted is None:
            return None
        return Stop(AtEnd.DRAIN, savepoint=self._accepted.savepoint is not None)

    def poll(self, phase: JobPhase) -> list[CancelRequested | StopRequested]:
        events: list[CancelRequested | StopRequested] = []
        try:
            for request in self._inbox.pending():
                if request.kind == CANCEL or (request.keeps_run and self._is_batch):
                    events.append(CancelRequested())
                    self._answer(request.id, ok=True, message="cancelling")
                elif request.kind == STOP and (stop := self.decide(request, phase)) is not None:
                    events.append(StopRequested(stop))
                    break  # the others are heard when this one is under way
        except OSError:
            if not events:  # what was accepted may not be requested again
                raise
        return events

    def decide(self, request: RequestRecord, phase: JobPhase) -> Stop | None:
        """Accept a request, refuse it, or let it wait for the end that is near."""
        if phase is JobPhase.OPENED:
            return None  # heard again when there is something to stop
        if self._accepted is not None and self._accepted.request_id == request.id:
            return None
        if self._accepted is not None:
            self._answer(request.id, ok=False, message="the job is being stopped already")
            return None
        if self._is_batch:
            message = (
                f"run {self._run.run_id!r} is in BATCH: it keeps no state to continue from and "
                "ends by itself; wait for it, or cancel it"
            )
            self._answer(request.id, ok=False, message=message, exit_code=EXIT_USAGE)
            return None
        if phase is not JobPhase.READING:
            self._decide_at_the_end(request)
            return None
        return self._accept(request)

    def _decide_at_the_end(self, request: RequestRecord) -> None:
        if not request.drain or request.savepoint is not None:
            message = (
                f"run {self._run.run_id!r} has read its last row and is ending by itself; "
                "wait for its final checkpoint"
            )
            self._answer(request.id, ok=False, message=message)

    def _accept(self, request: RequestRecord) -> Stop | None:
        try:
            self._check_savepoint(request)
        except SparkStreamError as error:
            message = f"{error}; the job keeps running"
            self._answer(request.id, ok=False, message=message, exit_code=error.exit_code)
            return None
        record = StopRecord(
            request_id=request.id, savepoint=request.savepoint, at=to_iso(self._clock.now())
        )
        if request.drain:
            self._run.put_stop(record)
            failpoints.hit("stop.promised")
        self._accepted = record
        self.aligned_timeout_s = request.aligned_timeout_s
        log.info("run=%s is stopped (%s)", self._run.run_id, "drain" if request.drain else "keep")
        return Stop(
            AtEnd.DRAIN if request.drain else AtEnd.SUSPEND,
            savepoint=request.savepoint is not None,
            keeps_run=request.keeps_run,
        )

    def _check_savepoint(self, request: RequestRecord) -> None:
        if request.savepoint is None:
            return
        location = open_storage(request.savepoint)
        if location.exists(MANIFEST) or location.list(""):
            raise ConfigError(
                f"{location.url}: the folder is not empty; choose another name for the savepoint"
            )

    def take_savepoint(self) -> bool:
        """Take the savepoint of the queries, which have stopped; return whether it exists.

        If it does not, the caller has got the reason, and nothing is left of it.
        """
        accepted = self._accepted
        if accepted is None or accepted.savepoint is None:
            return False
        try:
            self.savepoint = self._take(accepted.savepoint, accepted.request_id).url
        except LeaseLostError:
            raise
        except Exception as error:
            log.warning("run=%s no savepoint", self._run.run_id, exc_info=True)
            refusal = classify(error)
            self._refusal = dataclasses.replace(refusal, reason=f"no savepoint: {error}")
            return False
        failpoints.hit("stop.saved")
        return True

    def _take(self, url: str, request_id: str) -> Savepoint:
        try:
            there = open_savepoint(url)
        except UnknownJobError:
            there = None
        if there is not None and there.record.labels.get(STOP_REQUEST) == request_id:
            return there
        return take_savepoint(
            job_source(self._directory.url, self._clock),
            url,
            origin="stop",
            labels={STOP_REQUEST: request_id},
            aligned_timeout_s=0,
            clock=self._clock,
        )

    def resume(self) -> None:
        if self._accepted is not None:
            refusal = self._refusal
            reason = refusal.reason if refusal is not None else "no savepoint"
            self._answer(
                self._accepted.request_id,
                ok=False,
                message=f"{reason}; the job keeps running",
                exit_code=RunFailedError(refusal).exit_code if refusal is not None else None,
            )
        self._accepted, self._refusal = None, None

    def final_failure(self, failure: Failure) -> Failure:
        """Return a failure that no retry resumes, if the savepoint of the stop was taken."""
        if self.savepoint is None:
            return failure
        return dataclasses.replace(
            failure,
            failure_class=FailureClass.NON_RECOVERABLE,
            reason=_stopping_failed(self.savepoint, failure.reason),
        )

    def close(self, outcome: str | None, reason: str) -> None:
        """Answer all callers that have no answer yet; the driver answers nothing after that."""
        try:
            self._answer_all(outcome, reason)
        except OSError as error:
            log.warning("run=%s stop requests could not be answered: %s", self._run.run_id, error)

    def _answer_all(self, outcome: str | None, reason: str) -> None:
        if self._accepted is not None:
            self._answer_accepted(self._accepted, outcome, reason)
        for request in pending_requests(self._directory.storage, self._driver_id):
            if request.kind != STOP:
                continue
            met = request.is_met(outcome) and request.savepoint is None
            ended = f"the run had ended already: {outcome or reason}"
            self._answer(request.id, ok=met, message=ended, outcome=outcome)

    def _answer_accepted(self, accepted: StopRecord, outcome: str | None, reason: str) -> None:
        code = None
        if outcome is None:
            message = _stopping_failed(self.savepoint, reason)
            code = EXIT_RETRY if self.savepoint is None else EXIT_FATAL
        elif self._refusal is not None:
            message = f"{outcome}, but {self._refusal.reason}"
        else:
            message = outcome
        ok = outcome is not None and self._refusal is None
        self._answer(accepted.request_id, ok=ok, message=message, outcome=outcome, exit_code=code)

    def _answer(
        self,
        request_id: str,
        *,
        ok: bool,
        message: str,
        outcome: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        reply(
            self._directory.storage,
            request_id,
            ok=ok,
            message=message,
            clock=self._clock,
            exit_code=exit_code,
            outcome=outcome,
            savepoint=self.savepoint if ok or outcome is None else None,
        )
        self._inbox.answered(request_id)


def _stopping_failed(savepoint: str | None, reason: str) -> str:
    if savepoint is None:
        return f"stopping failed: {reason}"
    return f"stopping failed: {reason}. {savepoint_is_complete(savepoint)}"
