"""Stop requests, the caller's side: from any process that reaches the job directory."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.names import check_name
from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    EXIT_RETRY,
    EXIT_USAGE,
    ConfigError,
    StopError,
    StopNotYetError,
    StopRefusedError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at, known_job
from airflow_provider.runtime.jobdir.lease import TAKEABLE, LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.requests import (
    STOP,
    STOP_REQUEST,
    find_request,
    put_request,
    read_reply,
    savepoint_is_complete,
)
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import ReplyRecord
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.errors import SparkStreamError
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.jobdir.run_records import RequestRecord

_POLL_S = 0.1
_NO: Final = {EXIT_USAGE: StopRefusedError, EXIT_RETRY: StopNotYetError}


@dataclasses.dataclass(frozen=True)
class StopCall:
    """A stop that was requested; *token* is the lease of the driver that got the request."""

    job_dir: str
    request_id: str
    run_id: str
    token: int

    def poll(self, observer: LeaseObserver) -> ReplyRecord | None:
        """Return the driver's answer, as :meth:`answer_within`; None while it is at work."""
        held, liveness = observer.look()
        # Read after the lease: a driver answers before it gives the lease up.
        answer = read_reply(open_storage(self.job_dir), self.request_id)
        if answer is not None:
            return self._checked(answer)
        if _is_over(self.token, held, liveness):
            return self._checked(self._reply_of_end(held))
        return None

    def wait(self, clock: Clock, timeout_s: float) -> ReplyRecord:
        """Return the driver's answer, as :meth:`answer_within`."""
        answer = self.answer_within(timeout_s, clock)
        if answer is None:
            raise self.timed_out(timeout_s)
        return answer

    def answer_within(self, timeout_s: float, clock: Clock) -> ReplyRecord | None:
        """Return the driver's answer; None when there is none in *timeout_s* seconds.

        If the run has ended and its driver has said nothing, its end is the answer.

        Raises:
            StopRefusedError: the driver answered that this job cannot be stopped so.
            StopNotYetError: it refused, or ended without an answer; the request can be repeated.
            StopError: it refused permanently, or ended when the savepoint was taken.
        """
        observer = LeaseObserver(open_storage(self.job_dir), clock)
        deadline = clock.monotonic() + timeout_s
        while clock.monotonic() < deadline:
            answer = self.poll(observer)
            if answer is not None:
                return answer
            clock.sleep(_POLL_S)
        return None

    def timed_out(self, timeout_s: float) -> StopNotYetError:
        msg = (
            f"{self.job_dir}: run {self.run_id!r} has not stopped in {timeout_s:g} seconds; it "
            "still will when its batch ends. Give it more time, or 'spark-stream cancel' it: what "
            "is committed stays, and the run resumes"
        )
        return StopNotYetError(msg)

    def _reply_of_end(self, held: LeaseRecord | None) -> ReplyRecord:
        """Return what the end of the run says to a request that its driver has not answered."""
        directory = directory_at(self.job_dir)
        request = find_request(directory.storage, self.request_id)
        saved = _savepoint_of(request) if request is not None else None
        # A lease may be sealed by a driver that has died before it put the final checkpoint.
        sealed = held.final if held is not None and held.run_id == self.run_id else None
        final = directory.run(self.run_id).final() or sealed
        if final is None or request is None:
            raise self._unanswered(directory, saved)
        verify_final(directory, final)
        met = request.is_met(final.outcome) and (request.savepoint is None or saved is not None)
        return ReplyRecord(
            id=request.id,
            ok=met,
            message=f"the run had ended already: {final.outcome}",
            at=final.committed,
            exit_code=EXIT_OK if met else EXIT_FATAL,
            outcome=final.outcome,
            savepoint=saved,
        )

    def _unanswered(self, directory: JobDirectory, saved: str | None) -> SparkStreamError:
        ended = f"{self.job_dir}: the driver of run {self.run_id!r} ended without an answer"
        if saved is not None:
            return StopError(f"{ended}. {savepoint_is_complete(saved)}")
        if _is_promised(directory, self.run_id, self.request_id):
            follows = "it had begun to drain the job, and its next attempt goes on with that"
        else:
            follows = "its next attempt resumes the run, so stop that one"
        return StopNotYetError(f"{ended}; {follows}")

    def _checked(self, answer: ReplyRecord) -> ReplyRecord:
        if not answer.ok:
            why = f"was not stopped as requested: {answer.message}"
            raise _NO.get(answer.exit_code, StopError)(f"{self.job_dir}: run {self.run_id!r} {why}")
        return answer


def request_stop(
    job_dir: str,
    clock: Clock,
    *,
    drain: bool = False,
    savepoint: str | None = None,
    aligned_timeout_s: float | None = None,
    request_id: str | None = None,
) -> StopCall:
    """Ask the driver of a job to stop.

    Args: job_dir: the job directory. clock: time. drain: end the job permanently: MAX_WATERMARK,
    all windows and timers, ``finish()``. savepoint: the address of a savepoint to take when it has
    stopped. aligned_timeout_s: how long the driver waits for the batch in flight; then it is
    interrupted, and runs again with the same offsets when the job resumes. None until it ends.
    request_id: an id of a caller that may repeat the request, such as a retried task; the same id
    is the same stop, even after that stop has ended.

    Raises:
        UnknownJobError: there is no job, or no driver is running it.
    """
    directory = known_job(job_dir)
    # One look: a driver that may be dead gets the request, too, and is found out during the wait.
    lease, liveness = LeaseObserver(directory.storage, clock).look()
    if request_id is not None:
        request_id, before = _standing(directory, request_id, lease, liveness)
        if before is not None:
            return _call(directory, before)
    if lease is None or liveness in TAKEABLE:
        raise UnknownJobError(_not_running(directory))
    request = put_request(
        directory.storage,
        STOP,
        lease.driver_id,
        clock,
        drain=drain,
        request_id=request_id,
        run_id=lease.run_id,
        token=lease.since,
        savepoint=savepoint,
        aligned_timeout_s=aligned_timeout_s,
    )
    return _call(directory, request)


def _standing(
    directory: JobDirectory, request_id: str, lease: LeaseRecord | None, liveness: Liveness
) -> tuple[str, RequestRecord | None]:
    for number in itertools.count(1):
        name = request_id if number == 1 else f"{request_id}.{number}"
        before = find_request(directory.storage, name)
        if before is None:
            return name, None
        if not _is_void(directory, before, lease, liveness):
            return name, before
    raise AssertionError  # pragma: no cover - numbers do not end


def _is_void(
    directory: JobDirectory, request: RequestRecord, lease: LeaseRecord | None, liveness: Liveness
) -> bool:
    answer = read_reply(directory.storage, request.id)
    if answer is not None:
        return not answer.ok and answer.exit_code == EXIT_RETRY
    is_another = lease is not None and lease.driver_id != request.driver_id
    has_successor = is_another and liveness not in TAKEABLE
    return has_successor and not _is_promised(directory, str(request.run_id), request.id)


def _is_promised(directory: JobDirectory, run_id: str, request_id: str) -> bool:
    promised = directory.run(run_id).stop()
    return promised is not None and promised.request_id == request_id


def _savepoint_of(request: RequestRecord) -> str | None:
    if request.savepoint is None:
        return None
    try:
        found = open_savepoint(request.savepoint)
    except ConfigError:
        return None
    return found.url if found.record.labels.get(STOP_REQUEST) == request.id else None


def _call(directory: JobDirectory, request: RequestRecord) -> StopCall:
    return StopCall(directory.url, request.id, str(request.run_id), int(request.token or 0))


def savepoint_address(job_dir: str, savepoint: str | None) -> str | None:
    """Return the address of a savepoint that is given by name or address; None for none."""
    if savepoint is None or "/" in savepoint:
        return savepoint
    return f"{job_dir.rstrip('/')}/savepoints/{check_name(savepoint, what='savepoint')}"


def _not_running(directory: JobDirectory) -> str:
    last = newest_run(directory)
    final = directory.run(last.run_id).final() if last is not None else None
    ended = f"; its last run {final.run_id!r} is {final.outcome}" if final is not None else ""
    return f"{directory.url}: no driver is running this job, so there is nothing to stop{ended}"


def _is_over(token: int, held: LeaseRecord | None, liveness: Liveness) -> bool:
    return held is None or held.since != token or liveness in TAKEABLE
