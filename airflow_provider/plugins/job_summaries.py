"""Summaries of jobs for the list, and the overview of one job."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.hooks.job_memory import identity_in, variable_of
from airflow_provider.plugins.shared_reads import LeaseFacts, condition_of, lease_facts
from airflow_provider.plugins.shown_run import NewestRun, ShownRun, newest_other, upgrade_about
from airflow_provider.plugins.task_index import TaskInstanceAddress  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.typed_json import encode, read_json
from airflow_provider.runtime.checkpoint.drain_step import FinishState
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named
from airflow_provider.runtime.errors import CheckpointError, ConfigError, SparkStreamError
from airflow_provider.runtime.errors.explanation import Failure
from airflow_provider.runtime.jobdir.batch_history import BatchHistory  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.jobdir.identity import check_remembered, lineage_of
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.query_reports import output_sinks
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.jobdir.upgrade_record import (
    UpgradeRecord,
    summary_of,
    worker_of,
)
from airflow_provider.runtime.observe.health import age_s, driver_trouble
from airflow_provider.runtime.observe.samples import committed_at, largest_backlog, restart_count
from airflow_provider.runtime.observe.snapshot import read_histories
from airflow_provider.runtime.observe.state import IN_AIRFLOW, RunState
from airflow_provider.runtime.savepoints.restores import what_is_unfinished

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.plugins.shared_reads import ObservedJobs, SavepointCache
    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.query_reports import FinalQuery, QueryProgress
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot
    from airflow_provider.runtime.observe.state import RunCondition
    from airflow_provider.slices import Slice

SILENT: Final = "storage does not answer"
_SPARK_BATCHES: Final = 40  # of a sparkline
_COUNTED: Final = ("rows_read", "rows_minimum", "late_rows", "late_minimum", "lost_rows")
_RED: Final = frozenset({"failed", "up_for_retry"})  # of a task; only then is memory looked up
# Airflow's states of a task that has not begun and will not; of any other one it still may.
_NEVER: Final[Mapping[str, tuple[RunState, str]]] = {
    "failed": (RunState.FAILED, "its task failed before its run began: see the task's log"),
    "upstream_failed": (RunState.FAILED, "a task before it has failed: clear that one"),
    "skipped": (RunState.UNKNOWN, "its task was skipped"),
    "removed": (RunState.UNKNOWN, "its task is no longer in the DAG"),
    "success": (RunState.UNKNOWN, "its task has succeeded without a stream"),
}
# In the list, trouble first.
_ORDER: Final = (
    *(RunState.FAILED, RunState.KILLED, RunState.DAMAGED, RunState.MISSING),
    *(RunState.UNHEALTHY, RunState.UNKNOWN, RunState.REWOUND, RunState.ABSENT),
    *(RunState.STARTING, RunState.RUNNING, RunState.WAITING),
    *(RunState.CANCELLED, RunState.SUSPENDED, RunState.FINISHED),
)
_TROUBLE: Final = 4  # of these states: the row's own task is told by them
_MOST_FAILED: Final = 10  # links in a row; Airflow's grid has all


@dataclasses.dataclass(frozen=True)
class SliceFacts:
    """The part of the data that a DAG run is for; its times are None for a key that is no time."""

    name: str
    key: str | None
    start: str | None
    end: str | None


@dataclasses.dataclass(frozen=True)
class FailedTask:
    """A failed task instance of a stream, whose later ones may have succeeded."""

    task: TaskInstanceAddress
    slice: SliceFacts | None


@dataclasses.dataclass(frozen=True)
class JobSummary:
    """A row of the list, and the head of a job's page.

    Attributes:
        state: of the newest run, or of the task if no run can be read.
        reason: why it is unhealthy; None when it is healthy.
        is_slice: whether the job directory is for that slice alone.
        ended: when its driver ended; None while one is at work.
        rows_minimum: whether *rows_read* and *rows_written* are lower bounds.
        is_live: whether the run reads until it is stopped; the data of another one may be of any
            year, so it is not behind.
        watermark_lag_s: how far the watermark is behind now.
        batch_ms: the durations of the last batches, oldest first.
        failed_tasks: the last failed task instances of the stream, without the row's own if its
            state says so.
        failed_count: how many there are.
    """

    task: TaskInstanceAddress
    job_dir: str | None
    state: RunState = RunState.UNKNOWN
    reason: str | None = None
    slice: SliceFacts | None = None
    is_slice: bool = False
    job: str | None = None
    since: str | None = None
    next_step: str | None = None
    spark_run_id: str | None = None
    started: str | None = None
    ended: str | None = None
    duration_s: float | None = None
    mode: str | None = None
    lease: LeaseFacts | None = None
    rows_read: int | None = None
    rows_minimum: bool = False
    rows_written: int | None = None
    rows_per_second: float | None = None
    backlog: int | None = None
    watermark: str | None = None
    is_live: bool = False
    watermark_lag_s: float | None = None
    state_rows: int | None = None
    late_rows: int | None = None
    late_minimum: bool = False
    lost_rows: int | None = None
    last_commit: str | None = None
    last_commit_age_s: float | None = None
    attempts: int = 0
    restarts: int = 0
    newest_savepoint: str | None = None
    newest_savepoint_taken: str | None = None
    batch_ms: list[float] = dataclasses.field(default_factory=list)
    failed_tasks: list[FailedTask] = dataclasses.field(default_factory=list)
    failed_count: int = 0


@dataclasses.dataclass(frozen=True)
class Mark:
    """A moment that the plots mark: an ``attempt`` or a ``savepoint``."""

    at: str
    kind: str
    text: str


@dataclasses.dataclass(frozen=True)
class Overview:
    """One run of a job: its head, and its documents.

    Attributes:
        may_act: whether the user may act on the job, of which the active version is shown.
        newest: the job's newest run, if another one is shown.
        unfinished: what keeps the job from running that somebody has begun, and what ends it.
        upgrade: the newest upgrade of this version by another one, or its own while it is on trial.
        progress: without live-only values if no driver is at work.
        does: what each kind of stateful operators does.
    """

    now: str
    job: JobSummary
    may_act: bool = False
    newest: NewestRun | None = None
    unfinished: str | None = None
    upgrade: UpgradeRecord | None = None
    progress: dict[str, Any] | None = None
    final: FinalCheckpoint | None = None
    does: dict[str, str] = dataclasses.field(default_factory=dict)
    histories: list[BatchHistory] = dataclasses.field(default_factory=list)
    marks: list[Mark] = dataclasses.field(default_factory=list)


def _unfinished(
    snapshot: RunSnapshot, directory: JobDirectory, upgrade: UpgradeRecord | None
) -> str | None:
    if upgrade is not None and upgrade.is_open:
        return summary_of(upgrade, worker_of(directory, upgrade))
    return None if snapshot.liveness is Liveness.LIVE else what_is_unfinished(directory)


def no_memory(_: JobDirectory) -> str | None:
    """Remember no job directory."""


class JobSummaries:
    """Makes summaries and overviews."""

    def __init__(
        self,
        jobs: ObservedJobs,
        savepoints: SavepointCache,
        clock: Clock,
        lost_job: Callable[[JobDirectory], str | None] = no_memory,
    ) -> None:
        self._lost_job = lost_job
        self._jobs = jobs
        self._savepoints = savepoints
        self._clock = clock

    def read(self, task: IndexedTask) -> JobSummary:
        """Return the summary of a job; its reason says what cannot be read."""
        if task.job_dir is None:
            return unread(task, "this task has no job directory, or was not rendered yet")
        try:
            snapshot = self._jobs.poll(task.job_dir)
            task = task.of_run(snapshot.run_id or "")
            return self._summary(task, snapshot, _last_batches(snapshot, _SPARK_BATCHES))
        except SparkStreamError as error:
            return not_understood(task, error)
        except OSError as error:
            return unread(task, f"the storage cannot be read: {error}")

    def overview(self, task: IndexedTask, shown: ShownRun) -> Overview:
        """Return the overview of a run of a job."""
        task = dataclasses.replace(task, job_dir=shown.job_dir)
        now = to_iso(self._clock.now())
        try:
            snapshot = self._jobs.poll(shown.job_dir, shown.run_id)
            newest = newest_other(task.address, shown)
            if shown.is_awaited and newest is not None:
                return Overview(now, self._lost(task, snapshot) or not_begun(task), newest=newest)
            histories = snapshot.histories
            summary = self._summary(task, snapshot, histories)
        except SparkStreamError as error:
            return Overview(now, not_understood(task, error), may_act=shown.is_of_active)
        directory = snapshot.directory
        if directory is None:
            return Overview(now, summary, may_act=shown.is_of_active)
        upgraded, upgrade = upgrade_about(shown, directory)
        return Overview(
            now=now,
            job=summary,
            may_act=shown.is_of_active,
            newest=newest,
            unfinished=_unfinished(snapshot, upgraded, upgrade),
            upgrade=upgrade,
            progress=_still_true(snapshot),
            final=snapshot.final,
            does=_does(snapshot),
            histories=histories,
            marks=self._marks(directory, snapshot.run_id, histories),
        )

    def _summary(
        self, task: IndexedTask, snapshot: RunSnapshot, histories: Sequence[BatchHistory]
    ) -> JobSummary:
        summary, directory = unread(task), snapshot.directory
        if directory is None:
            return summary
        if lost := self._lost(task, snapshot):
            return lost
        summary = dataclasses.replace(summary, job=directory.name())
        if snapshot.run_id is None:
            return dataclasses.replace(summary, reason="nothing has begun in its job directory")
        condition = condition_of(snapshot)
        state, reason = self._judge(task, snapshot, condition)
        record, final = snapshot.run_record, snapshot.final
        saved = self._savepoints.newest(directory)
        facts: dict[str, Any] = {
            **self._times(snapshot, condition),
            **self._counts(snapshot, is_at_work=condition.state.is_at_work),
            **self._batches(histories, is_at_work=condition.state.is_at_work),
        }
        return dataclasses.replace(
            summary,
            state=state,
            reason=reason,
            since=condition.since,
            next_step=condition.next_step,
            spark_run_id=snapshot.run_id,
            mode=final.mode if final else record.mode if record else None,
            lease=lease_facts(snapshot.lease, snapshot.liveness),
            attempts=snapshot.attempt.attempt if snapshot.attempt else 0,
            restarts=restart_count(snapshot.attempt),
            newest_savepoint=saved.name if saved else None,
            newest_savepoint_taken=saved.taken if saved else None,
            **facts,
        )

    def _lost(self, task: IndexedTask, snapshot: RunSnapshot) -> JobSummary | None:
        """Return the summary of a job whose directory is another one now; None for the same."""
        if snapshot.directory is None or not (snapshot.run_id is None or task.state in _RED):
            return None
        reason = self._lost_job(snapshot.directory)
        if reason is None:
            return None
        return dataclasses.replace(unread(task), state=RunState.MISSING, reason=reason)

    def _age_s(self, moment: str | None) -> float | None:
        return age_s(moment, self._clock.now())

    def _times(self, snapshot: RunSnapshot, condition: RunCondition) -> dict[str, Any]:
        state, first = condition.state, snapshot.run_record or snapshot.final
        ended = condition.since if state.has_failed or state.is_done else None
        begun_s = self._age_s(first.started if first is not None else None)
        ended_s = 0.0 if state.is_at_work else self._age_s(ended)
        took_s = None if begun_s is None or ended_s is None else max(0.0, begun_s - ended_s)
        started = first.started if first is not None else None
        return {"started": started, "ended": ended, "duration_s": took_s}

    def _counts(self, snapshot: RunSnapshot, *, is_at_work: bool) -> dict[str, Any]:
        progress, counted = snapshot.progress, snapshot.counted
        if counted is None:
            return {}
        queries: list[FinalQuery | QueryProgress] = [*counted.queries.values()]
        reported = progress.queries.values() if progress is not None else ()
        backlogs = [n for each in reported if (n := largest_backlog(each.backlog)) is not None]
        rows = [n for each in queries if (n := each.state_rows) is not None]
        watermark = min((each.watermark for each in queries if each.watermark), default=None)
        record = snapshot.run_record
        is_live = record is None or record.options.until == "stopped"
        is_behind = snapshot.final is None and is_live
        return {
            **{name: getattr(counted, name) for name in _COUNTED},
            "rows_written": rows_written(counted),
            "rows_per_second": progress.rows_per_second if progress and is_at_work else None,
            "backlog": sum(backlogs) if backlogs and is_at_work else None,
            "watermark": watermark,
            "is_live": is_live,
            "watermark_lag_s": self._age_s(watermark) if is_behind else None,
            "state_rows": sum(rows) if rows else None,
        }

    def _batches(self, histories: Sequence[BatchHistory], *, is_at_work: bool) -> dict[str, Any]:
        batches = sorted((b for each in histories for b in each.batches), key=lambda b: b.at)
        ends = (committed_at(batch.at, batch.time_ms) for batch in batches)
        last = max((end for end in ends if end is not None), default=None)
        return {
            "last_commit": last,
            "last_commit_age_s": self._age_s(last) if is_at_work else None,
            "batch_ms": [float(batch.time_ms) for batch in batches[-_SPARK_BATCHES:]],
        }

    def _judge(
        self, task: IndexedTask, snapshot: RunSnapshot, condition: RunCondition
    ) -> tuple[RunState, str | None]:
        state = condition.state
        if state.is_at_work:
            trouble = self._trouble(task, snapshot)
            return (RunState.UNHEALTHY, trouble) if trouble else (state, None)
        if state in {RunState.REWOUND, RunState.ABSENT}:
            return state, condition.next_step
        failure = snapshot.attempt.failure if snapshot.attempt is not None else None
        if state is RunState.FAILED and failure is not None:
            shown = Failure.from_dict(failure).explanation  # its class and causes are in a tab
            return state, f"{shown.what} ({shown.where})" if shown.where else shown.what
        return state, condition.error

    def _trouble(self, task: IndexedTask, snapshot: RunSnapshot) -> str | None:
        if task.state == "failed":
            return "its driver runs, and its task has failed: no task is watching this driver"
        is_live = snapshot.liveness is Liveness.LIVE
        now = self._clock.now()
        return driver_trouble(snapshot.progress, snapshot.attempt, now=now, is_live=is_live)

    def _marks(
        self, directory: JobDirectory, run_id: str | None, histories: Sequence[BatchHistory]
    ) -> list[Mark]:
        hours = [hour.hour for each in histories for hour in each.hours[:1]]
        batches = [batch.at for each in histories for batch in each.batches[:1]]
        since = min((*hours, *batches), default=None)
        if since is None or run_id is None:
            return []
        attempts = directory.run(run_id).attempts()[1:]
        saved = self._savepoints.all(directory)
        begun = [Mark(each.started, "attempt", f"attempt {each.attempt}") for each in attempts]
        taken = [Mark(each.taken, "savepoint", each.name) for each in saved if each.taken]
        return [mark for mark in (*begun, *taken) if mark.at >= since]


def unread(
    task: IndexedTask, reason: str | None = None, state: RunState = RunState.UNKNOWN
) -> JobSummary:
    """Return the summary of a job of which only Airflow's side is known."""
    part = _facts_of(task.slice)
    return JobSummary(task.address, task.job_dir, state, reason, part, task.is_slice)


def not_begun(task: IndexedTask) -> JobSummary:
    """Return the summary of a slice whose operator has not begun, by the state of its task."""
    state, reason = _NEVER.get(task.state or "none", (RunState.WAITING, None))
    return unread(task, reason, state)


def with_failed(job: JobSummary, tasks: Sequence[IndexedTask]) -> JobSummary:
    """Return the summary with the failed task instances that its state does not tell of."""
    failed = [t for t in tasks if t.address != job.task or job.state not in _ORDER[:_TROUBLE]]
    shown = [FailedTask(t.address, _facts_of(t.slice)) for t in failed[:_MOST_FAILED]]
    return dataclasses.replace(job, failed_tasks=shown, failed_count=len(failed))


def not_understood(task: IndexedTask, error: SparkStreamError) -> JobSummary:
    """Return the summary of a job whose documents cannot be read, or that cannot lie there."""
    if not isinstance(error, CheckpointError):
        return unread(task, str(error))
    summary = unread(task, str(error), RunState.DAMAGED)
    return dataclasses.replace(summary, next_step=IN_AIRFLOW[RunState.DAMAGED.value])


def in_order(jobs: Sequence[JobSummary]) -> list[JobSummary]:
    """Return the jobs, trouble first, and otherwise in the order given."""
    locations = {state: position for position, state in enumerate(_ORDER)}

    def location_of(job: JobSummary) -> int:
        location = locations.get(job.state, 0)
        return min(location, _TROUBLE) if job.failed_count else location

    return sorted(jobs, key=location_of)


def rows_written(record: FinalCheckpoint | ProgressRecord) -> int | None:
    """Return how many rows a run has published, without kept ones; None if a sink counts none."""
    sinks = output_sinks(record.queries)
    return sum_of(sink.rows for sink in sinks) if sinks else None


def lost_job(directory: JobDirectory) -> str | None:
    """Return that another job directory was at this address, and the fixes; None if not."""
    from airflow.models.variable import Variable
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        query = select(Variable).where(Variable.key == variable_of(directory.url))
        variable = session.scalar(query)
        stored = variable.val if variable is not None else None
    try:
        remembered = identity_in(read_json(stored or "null"))
    except ValueError:  # a person has edited it; a task says so
        return None
    if remembered is None:
        return None
    try:
        check_remembered(directory.url, remembered, lineage_of(directory.storage))
    except ConfigError as error:
        return str(error)
    return None


def _facts_of(one: Slice | None) -> SliceFacts | None:
    if one is None:
        return None
    start, end = one.interval or (None, None)
    return SliceFacts(one.name, one.key, _utc(start), _utc(end))


def _utc(moment: dt.datetime | None) -> str | None:
    return to_iso(moment) if moment is not None else None


def _last_batches(snapshot: RunSnapshot, last: int) -> list[BatchHistory]:
    if snapshot.directory is None or snapshot.run_id is None:
        return []
    return read_histories(snapshot.directory.run(snapshot.run_id).storage, last)


def _still_true(snapshot: RunSnapshot) -> dict[str, Any] | None:
    if snapshot.progress is None:
        return None
    shown: dict[str, Any] = encode(snapshot.progress)
    if not condition_of(snapshot).state.is_at_work:
        for query in shown["queries"].values():
            query |= {"phase": None, "backlog": {}, "idle": [], "batch_sizing": None}
            for part in (*query["sources"], *query["operators"]):
                if part["finish_state"] == FinishState.RUNNING.value:
                    part["finish_state"] = None
    return shown


def _does(snapshot: RunSnapshot) -> dict[str, str]:
    records = [each for each in (snapshot.progress, snapshot.final) if each is not None]
    queries = [query for record in records for query in record.queries.values()]
    kinds = {part.kind for query in queries for part in query.operators}
    return {kind: kind_named(kind).does for kind in sorted(kinds)}
