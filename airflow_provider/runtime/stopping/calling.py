"""The caller's side of a stop: from any process that reaches the job directory."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import StopError, UnknownJobError
from airflow_provider.runtime.jobdir import JobDirectory, check_name, known_job
from airflow_provider.runtime.lease import TAKEABLE, LeaseObserver, Liveness
from airflow_provider.runtime.requests import STOP, find_request, put_request, read_reply
from airflow_provider.runtime.storage import open_storage

if TYPE_CHECKING:
    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir import ReplyRecord, RequestRecord
    from airflow_provider.runtime.lease import LeaseRecord

_POLL_S = 0.1


@dataclasses.dataclass(frozen=True)
class StopCall:
    """A stop that was asked for.

    Attributes:
        job_dir: the job directory's address.
        request_id: the request.
        run_id: the run that is stopped.
        token: the lease of the driver that was asked.
    """

    job_dir: str
    request_id: str
    run_id: str
    token: int

    def look(self, observer: LeaseObserver) -> ReplyRecord | None:
        """Return the driver's answer; None while it is at work.

        Args:
            observer: watches the job's lease, from one look to the next.

        Raises:
            StopError: it said no, or ended without an answer.
        """
        held, liveness = observer.look()
        # Read after the lease: a driver answers before it gives the lease up.
        answer = read_reply(open_storage(self.job_dir), self.request_id)
        if answer is not None:
            return self._checked(answer)
        if _is_over(self.token, held, liveness):
            raise StopError(self._unanswered())
        return None

    def wait(self, clock: Clock, timeout_s: float) -> ReplyRecord:
        """Return the driver's answer.

        Raises:
            StopError: it said no, ended without an answer, or gave none in *timeout_s* seconds;
                in the last case the request stands, and may still be met.
        """
        answer = self.answer_within(timeout_s, clock)
        if answer is None:
            raise self.timed_out(timeout_s)
        return answer

    def answer_within(self, timeout_s: float, clock: Clock) -> ReplyRecord | None:
        """Return the driver's answer; None when there is none in *timeout_s* seconds.

        Raises:
            StopError: it said no, or ended without an answer.
        """
        observer = LeaseObserver(open_storage(self.job_dir), clock)
        deadline = clock.monotonic() + timeout_s
        while clock.monotonic() < deadline:
            answer = self.look(observer)
            if answer is not None:
                return answer
            clock.sleep(_POLL_S)
        return None

    def timed_out(self, timeout_s: float) -> StopError:
        """Return the error for an answer that did not come in time."""
        msg = (
            f"{self.job_dir}: run {self.run_id!r} has not stopped in {timeout_s:g} seconds; it "
            "still will when its batch ends. Give it more time, or 'spark-stream cancel' it: what "
            "is committed stays, and the run resumes"
        )
        return StopError(msg)

    def _unanswered(self) -> str:
        promised = JobDirectory(open_storage(self.job_dir)).run(self.run_id).stop()
        if promised is not None and promised.request_id == self.request_id:
            follows = "it had begun to drain the job, and its next attempt goes on with that"
        else:
            follows = "its next attempt goes on, so stop that one"
        return (
            f"{self.job_dir}: the driver of run {self.run_id!r} ended without an answer; {follows}"
        )

    def _checked(self, answer: ReplyRecord) -> ReplyRecord:
        if not answer.ok:
            msg = f"{self.job_dir}: run {self.run_id!r} was not stopped as asked: {answer.message}"
            raise StopError(msg)
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

    Args:
        job_dir: the job directory.
        clock: time.
        drain: end the job for good: MAX_WATERMARK, all windows and timers, ``finish()``.
        savepoint: the address of a savepoint to take when it has stopped.
        aligned_timeout_s: how long the batch in flight is waited for; then it is cut short, and
            runs again with the same offsets when the job resumes. None until it ends.
        request_id: of who may have to ask again, such as a task that is retried: the same id is the
            same stop, whatever became of it meanwhile.

    Raises:
        UnknownJobError: there is no job, or no driver is running it.
    """
    directory = known_job(job_dir)
    before = find_request(directory.storage, request_id) if request_id is not None else None
    if before is not None:
        return _call(directory, before)
    # One look: a driver that may be dead is asked as well, and found out while it is waited for.
    lease, liveness = LeaseObserver(directory.storage, clock).look()
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
        token=lease.token,
        savepoint=savepoint,
        aligned_timeout_s=aligned_timeout_s,
    )
    return _call(directory, request)


def _call(directory: JobDirectory, request: RequestRecord) -> StopCall:
    return StopCall(directory.url, request.id, str(request.run_id), int(request.token or 0))


def savepoint_address(job_dir: str, savepoint: str | None) -> str | None:
    """Return the address of a savepoint that is given by name or address; None for none."""
    if savepoint is None or "/" in savepoint:
        return savepoint
    return f"{job_dir.rstrip('/')}/savepoints/{check_name(savepoint, what='savepoint')}"


def _not_running(directory: JobDirectory) -> str:
    runs = directory.run_ids()
    final = directory.run(runs[-1]).final() if runs else None
    ended = f"; its last run {runs[-1]!r} is {final.outcome}" if final is not None else ""
    return f"{directory.url}: no driver is running this job, so there is nothing to stop{ended}"


def _is_over(token: int, held: LeaseRecord | None, liveness: Liveness) -> bool:
    return held is None or held.token != token or liveness in TAKEABLE
