"""Heads of jobs: the row of the list, and what stands above the views of one job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.plugins.history_reader import backlog_of, read_batch_times
from airflow_provider.plugins.responses import JobView, SliceView
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.errors import CheckpointError, SparkStreamError
from airflow_provider.runtime.errors.explanation import Failure
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.observe.health import age_s, driver_trouble
from airflow_provider.runtime.observe.samples import committed_at, restart_count
from airflow_provider.runtime.observe.state import IN_AIRFLOW

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.plugins.history_reader import BatchTime
    from airflow_provider.plugins.observed_jobs import Observed, ObservedJobs
    from airflow_provider.plugins.responses import Category
    from airflow_provider.plugins.savepoint_views import SavepointCache
    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import (
        FinalCheckpoint,
        ProgressRecord,
        RunRecord,
    )
    from airflow_provider.runtime.observe.snapshot import RunSnapshot
    from airflow_provider.runtime.observe.state import RunCondition
    from airflow_provider.slices import Slice

SILENT: Final = "storage does not answer"
_SPARK_BATCHES: Final = 40  # of a sparkline
_COUNTED: Final = ("rows_read", "rows_minimum", "late_rows", "late_minimum", "lost_rows")
_RED: Final = frozenset({"failed", "up_for_retry"})  # of a task; only then is memory looked up
_ORDER: Final = ("failed", "unhealthy", "unknown", "running", "waiting", "suspended", "finished")
_ENDED: Final = frozenset({"failed", "killed", "cancelled", "suspended", "finished"})
# Airflow's states of a task that has not begun and will not; of any other one it still may.
_NEVER: Final[Mapping[str, tuple[Category, str]]] = {
    "failed": ("failed", "its task failed before the operator began: see the task's log"),
    "upstream_failed": ("failed", "a task before it has failed: clear that one"),
    "skipped": ("unknown", "its task was skipped"),
    "removed": ("unknown", "its task is no longer in the DAG"),
    "success": ("unknown", "its task has succeeded without a stream"),
}


def no_memory(_: JobDirectory) -> str | None:
    """Remember no job directory."""


class JobSummaries:
    """Makes the heads of jobs.

    Args:
        jobs: looks at job directories.
        shelf: knows their savepoints.
        clock: tells how old something is.
        lost_job: says that another job directory was at the address; see :mod:`.lost_jobs`.
    """

    def __init__(
        self,
        jobs: ObservedJobs,
        shelf: SavepointCache,
        clock: Clock,
        lost_job: Callable[[JobDirectory], str | None] = no_memory,
    ) -> None:
        self._lost_job = lost_job
        self._jobs = jobs
        self._shelf = shelf
        self._clock = clock

    def read(self, task: IndexedTask) -> JobView:
        """Return the head of a job; what cannot be read is its reason."""
        if task.job_dir is None:
            return unread(task, "this task has no job directory, or was not rendered yet")
        try:
            observed = self._jobs.look(task.job_dir)
            return self.of(task, observed, _newest_batches(observed))
        except SparkStreamError as error:
            return not_understood(task, error)
        except OSError as error:
            return unread(task, f"the storage cannot be read: {error}")

    def of(self, task: IndexedTask, observed: Observed, batches: Sequence[BatchTime]) -> JobView:
        """Return the head of a job that was looked at, with the batches of its newest run."""
        base = unread(task)
        view, condition = observed.view, observed.condition
        if view is None or task.state in _RED:
            lost = self._lost_job(observed.directory)
            if lost is not None:
                return base.model_copy(
                    update={"state": "missing", "category": "failed", "reason": lost}
                )
        if view is None or condition is None:
            absent = "nothing has begun in its job directory"
            return base.model_copy(update={"job": observed.name, "reason": absent})
        category, reason = self._judge(task, view, condition)
        saved = self._shelf.newest(observed.directory)
        final = view.final
        facts: dict[str, Any] = {
            "job": observed.name,
            "state": condition.state,
            "category": category,
            "reason": reason,
            "since": condition.since,
            "next_step": condition.next_step,
            "spark_run_id": observed.run_id,
            "mode": final.mode if final else (observed.record.mode if observed.record else None),
            "lease": observed.lease,
            **self._times(observed, condition),
            "attempts": view.attempt.attempt if view.attempt else 0,
            "restarts": restart_count(view.attempt),
            "newest_savepoint": saved.name if saved else None,
            "newest_savepoint_taken": saved.taken if saved else None,
            **self._progress(
                view,
                is_at_work=condition.state.is_at_work,
                is_history=_reads_history(observed.record),
            ),
            **self._batches(batches, is_running=category in {"running", "unhealthy"}),
        }
        return base.model_copy(update=facts)

    def age_s(self, moment: str | None) -> float | None:
        """Return how long ago a stored moment was, by this machine's clock; None for no moment."""
        return age_s(moment, self._clock.now())

    def _times(self, observed: Observed, condition: RunCondition) -> dict[str, Any]:
        """Return when the run began and ended, and how long it took, or has taken so far."""
        record, final = observed.record, observed.view.final if observed.view else None
        started = record.started if record is not None else final.started if final else None
        ended = condition.since if condition.state in _ENDED else None
        begun_s, ended_s = (
            self.age_s(started),
            0.0 if condition.state.is_at_work else self.age_s(ended),
        )
        took_s = None if begun_s is None or ended_s is None else max(0.0, begun_s - ended_s)
        return {"started": started, "ended": ended, "duration_s": took_s}

    def _progress(self, view: RunSnapshot, *, is_at_work: bool, is_history: bool) -> dict[str, Any]:
        """Return what was reported; of a driver that is gone only what stays true without it."""
        progress, final = view.progress, view.final
        record = final or progress
        if record is None:
            return {}
        queries = list(record.queries.values())
        backlogs = [n for q in queries if (n := backlog_of(q.get("backlog"))) is not None]
        watermark = min((q["watermark"] for q in queries if q.get("watermark")), default=None)
        rows = [n for q in queries if (n := _state_rows(q)) is not None]
        now = {
            "rows_per_second": progress.rows_per_second if progress else None,
            "backlog": sum(backlogs) if backlogs else None,
        }
        return {
            **{name: getattr(record, name) for name in _COUNTED},
            "rows_written": rows_written(record),
            **(now if is_at_work else {}),
            "reported": progress.at if progress else None,
            "watermark": watermark,
            "watermark_lag_s": None if final or is_history else self.age_s(watermark),
            "state_rows": sum(rows) if rows else None,
        }

    def _batches(self, batches: Sequence[BatchTime], *, is_running: bool) -> dict[str, Any]:
        last = max(
            (end for batch in batches if (end := committed_at(batch.at, batch.total_ms))),
            default=None,
        )
        timed = sorted((b for b in batches if b.at and b.total_ms is not None), key=_at)
        return {
            "last_commit": last,
            "last_commit_age_s": self.age_s(last) if is_running else None,
            "batch_ms": [b.total_ms for b in timed[-_SPARK_BATCHES:] if b.total_ms is not None],
        }

    def _judge(
        self, task: IndexedTask, view: RunSnapshot, condition: RunCondition
    ) -> tuple[Category, str | None]:
        if condition.state.is_at_work:
            reason = self._sickness(task, view)
            return ("unhealthy", reason) if reason else ("running", None)
        if condition.state == "finished":
            return "finished", None
        if condition.state in {"suspended", "cancelled"}:
            return "suspended", None
        if condition.state in {"rewound", "absent"}:
            return "unknown", condition.next_step
        failure = view.attempt.failure if view.attempt is not None else None
        if condition.state == "failed" and failure is not None:
            return "failed", _in_short(Failure.from_dict(failure))
        return "failed", condition.error

    def _sickness(self, task: IndexedTask, view: RunSnapshot) -> str | None:
        """Return why a running driver is unhealthy, or None."""
        if task.state == "failed":
            return "its driver runs, and its task has failed: no task is watching this driver"
        is_live = view.liveness is Liveness.LIVE
        now = self._clock.now()
        return driver_trouble(view.progress, view.attempt, now=now, is_live=is_live)


def _reads_history(record: RunRecord | None) -> bool:
    """Whether the run ends with its data, which may be of any year: it is not behind."""
    return record is not None and record.options.until != "stopped"


def unread(
    task: IndexedTask,
    reason: str | None = None,
    *,
    state: str | None = None,
    category: Category = "unknown",
) -> JobView:
    """Return the head of a job of which only Airflow's side is known."""
    return JobView(
        task=task.address,
        task_state=task.state,
        operator=task.operator,
        job_dir=task.job_dir,
        state=state,
        category=category,
        reason=reason,
        slice=_slice_view(task.slice) if task.slice is not None else None,
        is_slice=task.is_slice,
    )


def not_begun(task: IndexedTask) -> JobView:
    """Return the head of a slice whose operator has not begun, by Airflow's state of its task."""
    state = task.state or "none"
    if state not in _NEVER:
        return unread(task, state="waiting", category="waiting")
    category, reason = _NEVER[state]
    return unread(task, reason, state=state.replace("_", " "), category=category)


def rows_written(record: FinalCheckpoint | ProgressRecord) -> int | None:
    """Return how many rows all sinks of a run have published; None when one does not know."""
    rows = [s["rows"] for query in record.queries.values() for s in query.get("sinks") or ()]
    return None if not rows or None in rows else sum(rows)


def _slice_view(one: Slice) -> SliceView:
    start, end = one.interval or (None, None)
    return SliceView(name=one.name, key=one.key, start=_utc(start), end=_utc(end))


def _utc(moment: dt.datetime | None) -> str | None:
    return to_iso(moment) if moment is not None else None


def not_understood(task: IndexedTask, error: SparkStreamError) -> JobView:
    """Return the head of a job whose documents cannot be read, or cannot lie where they should."""
    if not isinstance(error, CheckpointError):
        return unread(task, str(error))
    head = unread(task, str(error), state="damaged", category="failed")
    return head.model_copy(update={"next_step": IN_AIRFLOW["damaged"]})


def _in_short(failure: Failure) -> str:
    """Return what has failed and where; its class and its causes are among the failures."""
    what, where = failure.explanation.what, failure.explanation.where
    return f"{what} ({where})" if where else what


def in_order(jobs: Sequence[JobView]) -> list[JobView]:
    """Return the jobs, trouble first, and otherwise in the order given."""
    return sorted(jobs, key=lambda job: _ORDER.index(job.category))


def _state_rows(query: Mapping[str, Any]) -> int | None:
    """Return how many rows a query keeps, as its driver reported, or its operators at the end."""
    if query.get("state_rows") is not None:
        return int(query["state_rows"])
    known = [
        n for each in query.get("operators") or () if (n := each.get("state_rows")) is not None
    ]
    return sum(known) if known else None


def _at(batch: BatchTime) -> str:
    return str(batch.at)


def _newest_batches(observed: Observed) -> list[BatchTime]:
    if observed.run_id is None:
        return []
    run = observed.directory.run(observed.run_id)
    return read_batch_times(run.storage, _SPARK_BATCHES)
