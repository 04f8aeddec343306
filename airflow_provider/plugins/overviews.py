"""Overview of a job: its queries from source to sink, and what the plots show."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.plugins.history_reader import batch_times, read_histories
from airflow_provider.plugins.job_summaries import not_understood
from airflow_provider.plugins.responses import (
    HistoryView,
    MarkView,
    OverviewView,
    PartView,
    QueryView,
    ReplacementView,
)
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named, operator_title
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.upgrade_record import newest_upgrade

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.plugins.job_summaries import JobSummaries
    from airflow_provider.plugins.observed_jobs import Observed, ObservedJobs
    from airflow_provider.plugins.responses import JobView
    from airflow_provider.plugins.savepoint_views import SavepointCache
    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory


class Overviews:
    """Makes overviews.

    Args:
        jobs: looks at job directories.
        heads: makes what stands above.
        shelf: knows the savepoints.
        clock: tells what time it is.
    """

    def __init__(
        self, jobs: ObservedJobs, heads: JobSummaries, shelf: SavepointCache, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._heads = heads
        self._shelf = shelf
        self._clock = clock

    def read(self, task: IndexedTask, job_dir: str) -> OverviewView:
        """Return the overview of a job.

        Args:
            task: whose job it is.
            job_dir: the directory of the version in force, which another version may have begun.

        Raises:
            OSError: the storage cannot be read.
            SparkStreamError: a document beside those of its newest run cannot be.
        """
        task = dataclasses.replace(task, job_dir=job_dir)
        try:
            observed = self._jobs.look(job_dir)
        except SparkStreamError as error:
            return self._of_none(not_understood(task, error))
        histories = _histories(observed)
        hours = [hour.hour for each in histories for hour in each.hours[:1]]
        batches = [batch.at for each in histories for batch in each.batches[:1]]
        since = min((at for at in (*hours, *batches) if at is not None), default=None)
        return OverviewView(
            now=to_iso(self._clock.now()),
            job=self._heads.of(task, observed, batch_times(histories)),
            upgrade=_upgrade(observed.directory),
            queries=_queries(observed),
            histories=histories,
            marks=self._marks(observed, since),
        )

    def _of_none(self, head: JobView) -> OverviewView:
        now = to_iso(self._clock.now())
        return OverviewView(now=now, job=head, queries=[], histories=[], marks=[])

    def _marks(self, observed: Observed, since: str | None) -> list[MarkView]:
        """Return what the plots mark, from their first hour or batch on."""
        if since is None or observed.run_id is None:
            return []
        attempts = observed.directory.run(observed.run_id).attempts()
        saved = self._shelf.views(observed.directory).savepoints
        begun = [
            MarkView(at=each.started, kind="attempt", text=f"attempt {each.attempt}")
            for each in attempts[1:]
        ]
        taken = [
            MarkView(at=each.taken, kind="savepoint", text=each.name)
            for each in saved
            if each.taken is not None
        ]
        return [mark for mark in (*begun, *taken) if mark.at >= since]


def _histories(observed: Observed) -> list[HistoryView]:
    if observed.run_id is None:
        return []
    return read_histories(observed.directory.run(observed.run_id).storage)


def _upgrade(directory: JobDirectory) -> ReplacementView | None:
    newest = newest_upgrade(directory)
    if newest is None:
        return None
    return ReplacementView(
        step=newest.step.value, to=newest.to, began=newest.began, reason=newest.reason
    )


def _queries(observed: Observed) -> list[QueryView]:
    view = observed.view
    if view is None:
        return []
    progress = view.progress.queries if view.progress is not None else {}
    final = view.final.queries if view.final is not None else {}
    names = list(dict.fromkeys([*progress, *final]))
    counted = view.final or view.progress
    at_least = "at least " if counted is not None and counted.late_minimum else ""
    found = [_query(name, progress.get(name, {}), final.get(name, {}), at_least) for name in names]
    is_at_work = observed.condition is not None and observed.condition.state.is_at_work
    return found if is_at_work else [_left_behind(each, is_ended=bool(final)) for each in found]


def _query(
    name: str, progress: Mapping[str, Any], final: Mapping[str, Any], at_least: str
) -> QueryView:
    now = final or progress
    return QueryView(
        name=name,
        phase=_phase(final) if final else progress.get("phase"),
        batch=final.get("batch_id") if final else progress.get("batch"),
        watermark=now.get("watermark"),
        backlog={} if final else dict(progress.get("backlog") or {}),
        state_rows=progress.get("state_rows"),
        rows_read=progress.get("rows_read"),
        idle=[] if final else list(progress.get("idle") or []),
        pacing=None if final else _pacing(progress.get("pacing")),
        sources=[_part(each) for each in now.get("sources") or ()],
        operators=[_operator(each, at_least) for each in now.get("operators") or ()],
        sinks=[_sink(each) for each in now.get("sinks") or ()],
    )


def _phase(final: Mapping[str, Any]) -> str:
    return "finished" if final.get("finished") else "suspended"


def _left_behind(query: QueryView, *, is_ended: bool) -> QueryView:
    """Return a query without what was true while its driver was there.

    Args:
        query: the query, of a run that is not at work.
        is_ended: whether the run has ended, so that nothing is as its driver had reported it.
    """

    def still(parts: list[PartView]) -> list[PartView]:
        return [p.model_copy(update={"mark": None}) if p.mark == "running" else p for p in parts]

    gone: dict[str, Any] = {"sources": still(query.sources), "operators": still(query.operators)}
    if not is_ended:
        gone |= {"phase": None, "backlog": {}, "idle": [], "pacing": None}
    return query.model_copy(update=gone)


def _pacing(pacing: Mapping[str, Any] | None) -> str | None:
    if pacing is None:
        return None
    limits = [f"{s['limit']:,} {s['unit']} of {n}" for n, s in pacing["sources"].items()]
    reads = f"; a batch reads {', '.join(limits)}" if limits else ""
    return f"{pacing['decision']}: {pacing['reason']} (target {pacing['target_s']:g} s){reads}"


def _part(part: Mapping[str, Any]) -> PartView:
    return PartView(name=str(part.get("name") or "?"), mark=part.get("mark"))


def _operator(part: Mapping[str, Any], at_least: str) -> PartView:
    rows, late = part.get("state_rows"), part.get("late_rows")
    facts = [f"{rows:,} state rows"] if isinstance(rows, int) else []
    facts += [f"{at_least}{late:,} late rows"] if isinstance(late, int) and late else []
    ignored = part.get("ignored_timers")
    facts += [f"{ignored:,} ignored timers"] if isinstance(ignored, int) and ignored else []
    kind, number = str(part.get("kind")), part.get("id", part.get("name"))
    name, does = operator_title(part.get("name"), number, kind), kind_named(kind).does
    if not name.startswith(does):
        facts.insert(0, does)
    return PartView(name=name, mark=part.get("mark"), detail=", ".join(facts) or None)


def _sink(part: Mapping[str, Any]) -> PartView:
    rows = part.get("rows")
    detail = f"{rows:,} rows" if isinstance(rows, int) else None
    return PartView(name=str(part.get("name") or "?"), detail=detail)
