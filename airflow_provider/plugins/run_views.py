"""Views of runs: their attempts, their batches, their failures, and the end of a driver's log."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from airflow_provider.hooks.airflow_settings import history_server
from airflow_provider.hooks.log_tail import LogFollower, log_folders
from airflow_provider.plugins.job_summaries import rows_written
from airflow_provider.plugins.shared_reads import (
    LeaseFacts,
    answer_without_log,
    condition_of,
    lease_facts,
    without_log,
)
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.errors import EXIT_OK, CheckpointError, SparkStreamError
from airflow_provider.runtime.errors.explanation import Failure, screen_lines
from airflow_provider.runtime.failures.messages import AFTER_A_TASK
from airflow_provider.runtime.jobdir.batch_history import BatchHistory  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_records import (  # noqa: TC001 - FastAPI reads it
    AttemptRecord,
    FinalCheckpoint,
    ProgressRecord,
    RunRecord,
)
from airflow_provider.runtime.jobdir.runs import newest_run, recent_runs
from airflow_provider.runtime.jobdir.upgrade_record import Version, active_version
from airflow_provider.runtime.observe.endings import recorded_failure, silent_failure
from airflow_provider.runtime.observe.snapshot import read_histories, read_snapshot
from airflow_provider.runtime.observe.state import (
    RunCondition,
    RunState,
    damaged,
    ending_of,
    launch_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from airflow_provider.plugins.shared_reads import ObservedJobs
    from airflow_provider.plugins.shown_run import ShownRun
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot

_MOST_RUNS: Final = 20
_NO_QUERIES: Final[dict[str, Any]] = {"queries": {}}
_MOST_ATTEMPTS: Final = 50  # of a run that failed all night, the last ones
_TAIL_BYTES: Final = 60_000
# Numbers, ids and addresses differ from one time to the next, and the cause is the same.
_VARIES: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8}-[0-9a-f-]{27}|\d+", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One driver's life.

    Attributes:
        record: its address of Spark's UI is safe for a browser, or None.
    """

    record: AttemptRecord
    failure: str | None
    exit_code: int | None
    has_log: bool


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of the job; *problem* says why it cannot be read, and the rest is then empty.

    Attributes:
        counted: its final checkpoint, else its last progress; without its queries.
        committed: when its final checkpoint was put.
        attempts: the newest first.
    """

    run_id: str
    condition: RunCondition
    problem: str | None = None
    record: RunRecord | None = None
    counted: FinalCheckpoint | ProgressRecord | None = None
    committed: str | None = None
    rows_written: int | None = None
    launch: str | None = None
    attempts: list[Attempt] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The newest runs, newest first, the lease's holder, and the run of the task."""

    lease: LeaseFacts | None
    runs: list[Run]
    shown: str | None = None


@dataclasses.dataclass(frozen=True)
class Batches:
    """The batches of a run, and the options that it runs with."""

    record: RunRecord | None
    histories: list[BatchHistory]


@dataclasses.dataclass(frozen=True)
class LogTail:
    """The end of a driver's log; *problem* says why there is none to show."""

    lines: list[str]
    is_cut: bool = False
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class Occurrence:
    """One occurrence of a failure.

    Attributes:
        attempt: None if the driver ended before its first one.
        is_restarted: whether the driver restarted its queries after it.
        recovered: when the run ended well after all; None if it did not.
    """

    run_id: str
    attempt: int | None
    driver_id: str
    at: str | None
    is_restarted: bool
    location: str
    failure: Failure
    recovered: str | None = None


@dataclasses.dataclass(frozen=True)
class Cause:
    """Failures of one root cause."""

    failure: Failure
    reason: str
    helps: str
    occurrences: list[Occurrence]


@dataclasses.dataclass(frozen=True)
class Failures:
    """The failures of the newest runs, and the run of the task."""

    failures: list[Cause]
    shown: str | None = None


class RunViews:
    """Makes the views of runs."""

    def __init__(self, jobs: ObservedJobs, log_folder: Path) -> None:
        self._jobs = jobs
        self._log_folder = log_folder

    def read(self, shown: ShownRun, first: str) -> Runs:
        """Return the newest runs, newest first, and the one that is shown.

        Args:
            shown: the run of the task.
            first: the job's original address, before upgrades.
        """
        directory = directory_at(shown.job_dir)
        lease = lease_facts(*self._jobs.lease(shown.job_dir))
        run_ids = _newest_run_ids(directory, shown.run_id)
        return Runs(lease, [_run(directory, each, first) for each in run_ids], shown.run_id)

    def batches(self, shown: ShownRun) -> Batches:
        """Return the history of the run that is shown."""
        directory = directory_at(shown.job_dir)
        if shown.run_id is not None:
            record = _listed_run(directory, shown.run_id).record()
        else:
            record = None if shown.is_awaited else newest_run(directory)
        if record is None:
            return Batches(None, [])
        return Batches(record, read_histories(directory.run(record.run_id).storage))

    def log(self, job_dir: str, first: str, run_id: str, driver_id: str) -> LogTail:
        """Return the end of a driver's log, if it lies where this process can read it."""
        submitted = _submitted(_listed_run(directory_at(job_dir), run_id), job_dir, first)
        submission = submitted.by_driver.get(driver_id)
        if submission is None:
            raise LookupError(driver_id)
        if submission.log is None:
            return LogTail([], problem=_no_log(submitted.run, submission))
        log = LogFollower(submission.log, log_folders(submitted.job_dir, run_id, self._log_folder))
        try:
            log.offset = begin = max(0, log.size_bytes() - _TAIL_BYTES)
        except FileNotFoundError:
            return LogTail([], problem=f"{submission.log} is not on this machine")
        except OSError:  # a document may name any path
            return LogTail([], problem=f"{submission.log} is no log of this run")
        lines = log.new_lines()
        return LogTail(lines[1:] if begin else lines, is_cut=begin > 0)

    def failures(self, shown: ShownRun) -> Failures:
        """Return the failures of the newest runs, by their causes."""
        directory = directory_at(shown.job_dir)
        failed = {each.run_id: each for each in self._failed_runs(shown)}
        causes: dict[tuple[str, ...], Cause] = {}
        for run_id in _newest_run_ids(directory, shown.run_id):
            run = directory.run(run_id)
            try:
                found = list(_failures_of(run, failed.get(run_id)))
                final = run.final() if found else None
            except CheckpointError:
                continue  # its damage is shown among the runs
            for one in found:
                each = dataclasses.replace(one, recovered=final.committed if final else None)
                failure = each.failure
                text = _VARIES.sub("#", failure.root_cause or failure.reason)
                key = (failure.failure_class.value, failure.condition, text)
                helps = AFTER_A_TASK[failure.failure_class]
                sentence = f"{helps[:1].upper()}{helps[1:]}."
                cause = Cause(failure, failure.explanation.what, sentence, [])
                causes.setdefault(key, cause).occurrences.append(each)
        return Failures(list(causes.values()), shown.run_id)

    def _failed_runs(self, shown: ShownRun) -> Iterator[RunSnapshot]:
        for run_id in {shown.run_id, None}:
            with contextlib.suppress(SparkStreamError):
                snapshot = self._jobs.poll(shown.job_dir, run_id)
                if condition_of(snapshot).state in {RunState.FAILED, RunState.KILLED}:
                    yield snapshot


class _Submitted(NamedTuple):
    job_dir: str
    run: RunDirectory
    by_driver: Mapping[str, SubmissionRecord]


def _submitted(run: RunDirectory, job_dir: str, first: str) -> _Submitted:
    """Return the directory of a run's submissions and logs.

    An upgrade submits the new version's driver from the old version's directory, which is found
    from the job's own address.
    """
    found = run.submissions()
    if not found and directory_at(first).url != directory_at(job_dir).url:
        job_dir = active_version(Version(first, "", ""), before=job_dir).job_dir
        run = directory_at(job_dir).run(run.run_id)
        found = run.submissions()
    return _Submitted(job_dir, run, {each.driver_id: each for each in found})


def _newest_run_ids(directory: JobDirectory, own: str | None) -> list[str]:
    """Return the run *own* and the newest ones, newest first; if one is damaged, those listed."""
    try:
        found = [record.run_id for record in recent_runs(directory, _MOST_RUNS)]
    except CheckpointError:
        found = []
    listed = [name for name in directory.storage.list("runs") if is_name(name)]
    newest = found or listed[: -_MOST_RUNS - 1 : -1]
    return newest if own is None else [own, *(run_id for run_id in newest if run_id != own)]


def _listed_run(directory: JobDirectory, run_id: str) -> RunDirectory:
    if not is_name(run_id) or run_id not in directory.storage.list("runs"):
        raise LookupError(run_id)
    return directory.run(run_id)


def _run(directory: JobDirectory, run_id: str, first: str) -> Run:
    try:
        snapshot = without_log(read_snapshot(directory, run_id))
        condition, record = condition_of(snapshot), snapshot.run_record
        run = directory.run(run_id)
        submitted = _submitted(run, directory.url, first)
        attempts = run.attempts()[-_MOST_ATTEMPTS:]
    except CheckpointError as error:
        return Run(run_id, damaged(str(error)), str(error))
    counted, final = snapshot.counted, snapshot.final
    return Run(
        run_id,
        condition,
        record=record,
        counted=dataclasses.replace(counted, **_NO_QUERIES) if counted is not None else None,
        committed=final.committed if final is not None else None,
        rows_written=rows_written(counted) if counted is not None else None,
        launch=launch_line(snapshot),
        attempts=[
            _attempt(each, submitted, is_last=each is attempts[-1]) for each in reversed(attempts)
        ],
    )


def _attempt(record: AttemptRecord, submitted: _Submitted, *, is_last: bool) -> Attempt:
    submission = submitted.by_driver.get(record.driver_id)
    ended = submitted.run.exit_of(record.driver_id) if submission is not None else None
    is_over = record.ended is not None or ended is not None or not is_last
    failure = Failure.from_dict(record.failure).describe() if record.failure else None
    return Attempt(
        record=dataclasses.replace(record, ui_url=_spark_page(record, is_over=is_over)),
        failure=failure,
        exit_code=ended.exit_code if ended is not None else None,
        has_log=submission is not None and submission.log is not None,
    )


def _spark_page(record: AttemptRecord, *, is_over: bool) -> str | None:
    """Return the address of the application's page, or of the history server; never a script."""
    server = history_server()
    if is_over and record.application_id and server:
        return f"{server}/history/{quote(record.application_id, safe='')}"
    is_web = str(record.ui_url).startswith(("http://", "https://"))
    return record.ui_url if is_web else None


def _no_log(run: RunDirectory, submission: SubmissionRecord) -> str:
    if submission.launcher is None:
        return "its driver was started from a shell, without a log"
    handle = run.handle_of(submission.driver_id)
    return f"its log is on {submission.launcher}{f' {handle.id}' if handle is not None else ''}"


def _failures_of(run: RunDirectory, failed: RunSnapshot | None) -> Iterator[Occurrence]:
    attempts = run.attempts()
    begun = {each.driver_id for each in attempts}
    for submission in reversed(run.submissions()):
        if submission.driver_id not in begun:
            yield from _silent_end(run, submission.driver_id, None, failed)
    for attempt in reversed(attempts):
        where: dict[str, Any] = {"driver_id": attempt.driver_id, "at": attempt.ended}
        recorded = recorded_failure(attempt)
        if recorded is not None:
            yield _occurrence(run, attempt, recorded, **where)
        if attempt.restarts is not None and attempt.restarts["failure"] != attempt.failure:
            last = Failure.from_dict(attempt.restarts["failure"])
            yield _occurrence(run, attempt, last, is_restarted=True, **where)
        if recorded is None and attempt.outcome is None:
            yield from _silent_end(run, attempt.driver_id, attempt, failed)


def _silent_end(
    run: RunDirectory, driver_id: str, attempt: AttemptRecord | None, failed: RunSnapshot | None
) -> Iterator[Occurrence]:
    ended, at, handle = run.end_of(driver_id), None, run.handle_of(driver_id)
    if ended is not None and not ended.status().is_over:
        ended = None
    is_ok = ended is not None and ended.exit_code == EXIT_OK
    if is_ok and attempt is not None and handle is None:
        return
    last = failed.submission or failed.attempt if failed is not None else None
    if failed is not None and last is not None and last.driver_id == driver_id:
        failure, at = ending_of(failed), ended.at if ended is not None else None
    elif ended is not None and not (is_ok and handle is not None):
        process = run.process_of(driver_id) if attempt is None else None
        host = attempt.host if attempt is not None else process.identity.host if process else ""
        lines = screen_lines(ended.last_lines)  # any other line of a log needs another right
        said = answer_without_log(ended.status()).describe(handle) if handle is not None else ""
        failure, at = silent_failure(ended.exit_code, lines, host=host, cluster=said), ended.at
    else:
        return
    yield _occurrence(run, attempt, failure, driver_id=driver_id, at=at)


def _occurrence(
    run: RunDirectory,
    attempt: AttemptRecord | None,
    failure: Failure,
    *,
    driver_id: str,
    at: str | None,
    is_restarted: bool = False,
) -> Occurrence:
    host = failure.host or (attempt.host if attempt is not None else "")
    return Occurrence(
        run_id=run.run_id,
        attempt=attempt.attempt if attempt is not None else None,
        driver_id=driver_id,
        at=at,
        is_restarted=is_restarted,
        location=dataclasses.replace(failure, query=None).explanation.where,
        failure=dataclasses.replace(failure, host=host),
    )
