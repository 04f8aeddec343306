"""Views of runs: their attempts, their batches, and the end of a driver's log."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from airflow_provider.hooks.airflow_settings import history_server
from airflow_provider.hooks.log_tail import LogFollower, log_folders
from airflow_provider.plugins.history_reader import read_histories, statistics
from airflow_provider.plugins.job_summaries import rows_written
from airflow_provider.plugins.observed_jobs import lease_view, without_log
from airflow_provider.plugins.responses import (
    AttemptView,
    BatchesView,
    LogView,
    QueryBatchesView,
    RunsView,
    RunView,
)
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError
from airflow_provider.runtime.errors.explanation import Failure
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.runs import newest_run, recent_runs
from airflow_provider.runtime.jobdir.upgrade_record import Version, version_in_force
from airflow_provider.runtime.observe import state
from airflow_provider.runtime.observe.snapshot import read_snapshot
from airflow_provider.runtime.storage.documents import read_stored

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow_provider.plugins.observed_jobs import ObservedJobs
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, RunRecord
    from airflow_provider.runtime.jobdir.submissions import SubmissionRecord

_MOST_RUNS: Final = 20
_MOST_ATTEMPTS: Final = 50  # of a run that failed all night, the last ones
_TAIL_BYTES: Final = 60_000


class RunViews:
    """Makes the views of runs.

    Args:
        jobs: looks at leases.
        clock: time.
        log_folder: Airflow's own, in which drivers of job directories in a bucket write.
    """

    def __init__(self, jobs: ObservedJobs, clock: Clock, log_folder: Path) -> None:
        self._jobs = jobs
        self._clock = clock
        self._log_folder = log_folder

    def read(self, job_dir: str, first: str) -> RunsView:
        """Return the newest runs, newest first.

        Args:
            job_dir: the directory of the version in force.
            first: the address of the job, from which upgrades have led there.

        Raises:
            OSError: the storage cannot be read.
        """
        directory = directory_at(job_dir)
        lease, liveness = self._jobs.lease(job_dir)
        return RunsView(
            lease=lease_view(lease, liveness) if lease is not None else None,
            runs=[self._run(directory, run_id, first) for run_id in newest_run_ids(directory)],
        )

    def batches(self, job_dir: str, run_id: str | None) -> BatchesView:
        """Return the history of a run, with statistics; of the newest one for None.

        Raises:
            LookupError: there is no such run.
            OSError: the storage cannot be read.
        """
        directory = directory_at(job_dir)
        record = _record_of(directory, run_id)
        if record is None:
            return BatchesView(run_id=None, queries=[], configuration={})
        histories = read_histories(directory.run(record.run_id).storage)
        return BatchesView(
            run_id=record.run_id,
            queries=[QueryBatchesView(history=h, statistics=statistics(h)) for h in histories],
            configuration={
                **dataclasses.asdict(record.options),
                "interval": record.interval,
                "from_savepoint": record.from_savepoint,
                "settings": record.settings,
            },
        )

    def log(self, job_dir: str, first: str, run_id: str, driver_id: str) -> LogView:
        """Return the end of a driver's log, if it lies where this process can read it.

        Args:
            job_dir: the directory of the run.
            first: as of :meth:`read`.
            run_id: the run.
            driver_id: the driver.

        Raises:
            LookupError: there is no such run or driver.
            OSError: the storage cannot be read.
        """
        submitted = _submitted(listed_run(directory_at(job_dir), run_id), job_dir, first)
        submission = submitted.by_driver.get(driver_id)
        if submission is None:
            raise LookupError(driver_id)
        if submission.log is None:
            return LogView(lines=[], problem=_no_log(submitted.run, submission))
        log = LogFollower(submission.log, log_folders(submitted.job_dir, run_id, self._log_folder))
        try:
            log.offset = begin = max(0, log.size_bytes() - _TAIL_BYTES)
        except FileNotFoundError:
            return LogView(lines=[], problem=f"{submission.log} is not on this machine")
        except OSError:  # a document may name any path
            return LogView(lines=[], problem=f"{submission.log} is no log of this run")
        lines = log.new_lines()
        return LogView(lines=lines[1:] if begin else lines, is_cut=begin > 0)

    def _run(self, directory: JobDirectory, run_id: str, first: str) -> RunView:
        run = directory.run(run_id)
        try:
            return self._readable(directory, run, first)
        except CheckpointError as error:
            found = state.damaged(str(error))
            return RunView(
                run_id=run_id, problem=found.error, state=found.state, next_step=found.next_step
            )

    def _readable(self, directory: JobDirectory, run: RunDirectory, first: str) -> RunView:
        view = without_log(read_snapshot(directory, run.run_id))
        condition = state.run_condition(view, state.assess(view), steps=state.IN_AIRFLOW)
        record, final = run.record(), view.final
        counted = final or view.progress
        submitted = _submitted(run, directory.url, first)
        attempts = run.attempts()[-_MOST_ATTEMPTS:]
        return RunView(
            run_id=run.run_id,
            state=condition.state,
            since=condition.since,
            error=condition.error,
            next_step=condition.next_step,
            mode=final.mode if final else record.mode if record else None,
            until=record.options.until if record else None,
            interval=list(record.interval) if record and record.interval else None,
            entry=record.entry if record else None,
            started=record.started if record else None,
            committed=final.committed if final else None,
            rows_read=counted.rows_read if counted else None,
            rows_minimum=counted.rows_minimum if counted else False,
            rows_written=rows_written(counted) if counted else None,
            late_rows=counted.late_rows if counted else None,
            late_minimum=counted.late_minimum if counted else False,
            lost_rows=counted.lost_rows if counted else None,
            ignored_timers=final.ignored_timers if final else None,
            from_savepoint=record.from_savepoint if record else None,
            params=_params(record) if record else None,
            launch=state.launch_line(view),
            attempts=[
                _attempt(run, each, submitted, is_last=each is attempts[-1])
                for each in reversed(attempts)
            ],
        )


class _Submitted(NamedTuple):
    """Where the drivers of a run were submitted: their records and their logs are there."""

    job_dir: str
    run: RunDirectory
    by_driver: Mapping[str, SubmissionRecord]


def _submitted(run: RunDirectory, job_dir: str, first: str) -> _Submitted:
    """Return where a run's drivers were submitted.

    An upgrade submits the new version's driver from the directory of the version before. That one
    is found from the job's address, not from what the new directory says of itself.
    """
    found = run.submissions()
    if not found and directory_at(first).url != directory_at(job_dir).url:
        job_dir = version_in_force(Version(first, "", ""), before=job_dir).job_dir
        run = directory_at(job_dir).run(run.run_id)
        found = run.submissions()
    return _Submitted(job_dir, run, {each.driver_id: each for each in found})


def _params(record: RunRecord) -> str | None:
    texts = [f"{name}={json.dumps(value)}" for name, value in sorted(record.params.items())]
    return ", ".join(texts) or None


def newest_run_ids(directory: JobDirectory) -> list[str]:
    """Return the newest runs, newest first; damaged ones of a job in which one is, too."""
    try:
        found = [record.run_id for record in recent_runs(directory, _MOST_RUNS)]
    except CheckpointError:
        found = []
    listed = [name for name in directory.storage.list("runs") if is_name(name)]
    return found or listed[: -_MOST_RUNS - 1 : -1]


def listed_run(directory: JobDirectory, run_id: str) -> RunDirectory:
    """Return a run that is in the listing of the job directory.

    Raises:
        LookupError: it is not, or the name cannot be one.
    """
    if not is_name(run_id) or run_id not in directory.storage.list("runs"):
        raise LookupError(run_id)
    return directory.run(run_id)


def _no_log(run: RunDirectory, submission: SubmissionRecord) -> str:
    if submission.launcher is None:
        return "its driver was started from a shell, without a log"
    handle = run.handle_of(submission.driver_id)
    return f"its log is on {submission.launcher}{f' {handle.id}' if handle is not None else ''}"


def _record_of(directory: JobDirectory, run_id: str | None) -> RunRecord | None:
    return newest_run(directory) if run_id is None else listed_run(directory, run_id).record()


def _attempt(
    run: RunDirectory,
    attempt: AttemptRecord,
    submitted: _Submitted,
    *,
    is_last: bool,
) -> AttemptView:
    raw = _raw_attempt(run, attempt.attempt)
    submission = submitted.by_driver.get(attempt.driver_id)
    ended = submitted.run.exit_of(attempt.driver_id) if submission is not None else None
    failure = Failure.from_dict(attempt.failure).describe() if attempt.failure else None
    is_over = attempt.ended is not None or ended is not None or not is_last
    return AttemptView(
        attempt=attempt.attempt,
        driver_id=attempt.driver_id,
        token=attempt.token,
        host=attempt.host,
        pid=attempt.pid,
        started=attempt.started,
        ended=attempt.ended,
        outcome=attempt.outcome,
        failure=failure,
        restarts=int(attempt.restarts["count"]) if attempt.restarts else 0,
        exit_code=ended.exit_code if ended is not None else None,
        application_id=_text(raw.get("application_id")),
        ui_url=_spark_page(raw, is_over=is_over),
        has_log=submission is not None and submission.log is not None,
    )


def _raw_attempt(run: RunDirectory, number: int) -> dict[str, Any]:
    """Return an attempt's document as it is, with members that only later versions know."""
    try:
        raw = read_json(read_stored(run.storage, f"attempts/{number}.json"))
    except (CorruptDocumentError, FileNotFoundError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _text(raw: Any) -> str | None:
    return raw if isinstance(raw, str) else None


def _spark_page(raw: dict[str, Any], *, is_over: bool) -> str | None:
    """Return the address of the application's page: its own, then that of the history server."""
    application_id, server = _text(raw.get("application_id")), history_server()
    if is_over and application_id and server:
        return f"{server}/history/{quote(application_id, safe='')}"
    return _web_address(raw.get("ui_url"))


def _web_address(raw: Any) -> str | None:
    """Return an address that a browser may follow: a script is none."""
    is_web = isinstance(raw, str) and raw.startswith(("http://", "https://"))
    return raw if is_web else None
