"""History of a job over its newest runs: what each has read, written, dropped and quarantined."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.hooks.task_runs import owner_of
from airflow_provider.plugins.job_summaries import rows_written
from airflow_provider.plugins.shared_reads import Cache, condition_of
from airflow_provider.plugins.task_index import TaskInstanceAddress  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.query_reports import quarantine_totals
from airflow_provider.runtime.jobdir.runs import recent_runs
from airflow_provider.runtime.observe.snapshot import read_snapshot
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.open import credentials_in_use

if TYPE_CHECKING:
    from airflow_provider.plugins.shown_run import ShownRun
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord

_MOST_RUNS: Final = 48  # two days by the hour; each that has not ended costs a dozen reads
_MOST_KEPT: Final = 5000


@dataclasses.dataclass(frozen=True)
class PastRun:
    """One run, without its attempts.

    Attributes:
        task: the task instance that owns it; None if it was begun by a command or another DAG.
        quarantined_rows: None if a sink for quarantined rows does not count.
        duration_s: until its driver ended; None while it may be at work.
    """

    run_id: str
    state: RunState
    task: TaskInstanceAddress | None = None
    interval: tuple[str, str] | None = None
    started: str | None = None
    duration_s: float | None = None
    rows_read: int | None = None
    rows_minimum: bool = False
    rows_written: int | None = None
    late_rows: int | None = None
    quarantined_rows: int | None = None


@dataclasses.dataclass(frozen=True)
class RunHistory:
    """The newest runs, newest first, and the run of the task."""

    runs: list[PastRun]
    shown: str | None


class RunHistories:
    """Reads histories; the facts of a run with a final checkpoint never change, and are kept."""

    def __init__(self) -> None:
        self._kept: Cache[PastRun] = Cache(_MOST_KEPT)

    def read(self, address: TaskInstanceAddress, shown: ShownRun) -> RunHistory:
        """Return the runs of the active version."""
        directory = directory_at(shown.active)
        records = recent_runs(directory, _MOST_RUNS)
        return RunHistory([self._run(directory, each, address) for each in records], shown.run_id)

    def _run(
        self, directory: JobDirectory, record: RunRecord, address: TaskInstanceAddress
    ) -> PastRun:
        run = directory.run(record.run_id)
        key = (run.storage.url, credentials_in_use(), address.dag_id, address.task_id)
        try:
            past = self._kept.get(key)
            if past is None:
                past = _read(directory, record, address)
                if past.state.is_done:
                    self._kept.put(key, past)
            elif run.rewound() is not None:
                past = dataclasses.replace(past, state=RunState.REWOUND)
        except CheckpointError:
            return PastRun(record.run_id, RunState.DAMAGED, started=record.started)
        return past


def _read(directory: JobDirectory, record: RunRecord, address: TaskInstanceAddress) -> PastRun:
    snapshot = read_snapshot(directory, record.run_id)
    condition, counted = condition_of(snapshot), snapshot.counted
    owner, task = owner_of(directory.run(record.run_id)), None
    if owner is not None and owner.dag_id == address.dag_id:
        task = dataclasses.replace(address, run_id=owner.dag_run_id)
    ended = None if condition.state.is_at_work else condition.since
    took = from_iso(ended) - from_iso(record.started) if ended is not None else None
    quarantined = quarantine_totals(counted.queries) if counted is not None else None
    return PastRun(
        record.run_id,
        condition.state,
        task,
        record.interval,
        record.started,
        max(0.0, took.total_seconds()) if took is not None else None,
        counted.rows_read if counted is not None else None,
        counted.rows_minimum if counted is not None else False,
        rows_written(counted) if counted is not None else None,
        counted.late_rows if counted is not None else None,
        quarantined.quarantined if quarantined is not None and quarantined.has_any else None,
    )
