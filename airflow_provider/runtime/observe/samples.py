"""Metrics of a stream: :data:`METRICS` names them, :func:`measure` computes them (pure)."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.base.clock import Due, from_iso, to_iso
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.jobdir.row_counts import counts_of
from airflow_provider.runtime.jobdir.run_records import AttemptRecord
from airflow_provider.runtime.observe.health import age_s, driver_trouble
from airflow_provider.runtime.observe.snapshot import read_history
from airflow_provider.runtime.savepoints.catalog import Savepoint, last_of_each_origin, read_folder
from airflow_provider.runtime.storage.file_tree import folders_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.batch_history import BatchEntry
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.query_reports import QueryProgress
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

SAVEPOINTS_S: Final = 60.0
"""How often savepoints are listed: in a bucket that costs twelve times a read."""


class Metric(NamedTuple):
    """One metric; each is a gauge.

    Attributes:
        name: after ``spark_stream.``.
        meaning: one sentence without its full stop.
        is_of_query: whether each query of a job has its own.
    """

    name: str
    unit: str
    meaning: str
    is_of_query: bool = True


METRICS: Final = (
    Metric(
        "healthy",
        "1 or 0",
        "The driver lives, reports, and no query restarts again and again",
        is_of_query=False,
    ),
    Metric(
        "restarts",
        "restarts",
        "How often the run was started again, by a task or in its driver",
        is_of_query=False,
    ),
    Metric(
        "savepoint_age", "seconds", "Time since the newest savepoint was taken", is_of_query=False
    ),
    Metric("backlog", "as the source counts", "What the sources have not been read of"),
    Metric("watermark_lag", "seconds", "How far the event-time watermark is behind the clock"),
    Metric("batch_duration", "seconds", "How long the last batch took"),
    Metric(
        "input_rows_per_second",
        "rows per second",
        "The rate at which the last batch's rows arrived",
    ),
    Metric(
        "processed_rows_per_second",
        "rows per second",
        "The rate at which the last batch was processed",
    ),
    Metric("late_rows", "rows", "How many rows the run has dropped as late"),
    Metric("rejected_rows", "rows", "How many records of the run could not be read"),
    Metric("broken_rows", "rows", "How many rows have broken a rule, once for each rule"),
    Metric("quarantined_rows", "rows", "How many rows the run has quarantined"),
    Metric("state_rows", "rows", "How many rows were in state after the last batch"),
    Metric("state_bytes", "bytes", "How much memory they take"),
    Metric("commit_age", "seconds", "Time since the last batch committed"),
)


class Sample(NamedTuple):
    """The value of a metric at one sample.

    Attributes:
        name: one of :data:`METRICS`.
        query: None for one of the whole job.
    """

    name: str
    value: float
    query: str | None = None


@dataclasses.dataclass(frozen=True)
class StreamSample:
    """One sample of a run.

    Attributes:
        savepoint_taken: when the job's newest savepoint was taken; None without one.
        is_alive: whether a driver of the run lives; None while one is starting.
    """

    progress: ProgressRecord | None
    attempt: AttemptRecord | None
    last_batches: Mapping[str, BatchEntry]
    savepoint_taken: str | None
    is_alive: bool | None


def measure(sample: StreamSample, now: dt.datetime) -> list[Sample]:
    """Return the samples of one look; what is not known has none."""
    samples = [*_samples(None, _of_job(sample, now))]
    for query, progress in (sample.progress.queries if sample.progress is not None else {}).items():
        last = sample.last_batches.get(query)
        samples += _samples(query, _of_query(progress, last, now))
    return samples


def _samples(query: str | None, values: Iterable[tuple[str, float | None]]) -> Iterator[Sample]:
    return (Sample(name, float(value), query) for name, value in values if value is not None)


def _of_job(sample: StreamSample, now: dt.datetime) -> Iterator[tuple[str, float | None]]:
    if sample.is_alive is not None:
        trouble = driver_trouble(sample.progress, sample.attempt, now=now, is_live=sample.is_alive)
        yield "healthy", sample.is_alive and trouble is None
    yield "restarts", restart_count(sample.attempt)
    yield "savepoint_age", age_s(sample.savepoint_taken, now)


def _of_query(
    progress: QueryProgress, last: BatchEntry | None, now: dt.datetime
) -> Iterator[tuple[str, float | None]]:
    yield "backlog", largest_backlog(progress.backlog)
    yield "watermark_lag", age_s(progress.watermark, now)
    known = [rows for part in progress.operators if (rows := part.late_rows) is not None]
    yield "late_rows", sum(known) if known else None
    yield from counts_of(progress.row_counts).items()
    if last is None:
        return
    yield "batch_duration", last.time_ms / 1000
    yield "input_rows_per_second", last.input_rate
    yield "processed_rows_per_second", last.process_rate
    yield "state_rows", last.state_rows
    yield "state_bytes", last.state_bytes
    yield "commit_age", age_s(committed_at(last.at, last.time_ms), now)


def largest_backlog(backlog: Mapping[str, int] | None) -> int | None:
    """Return the greatest measure of unread input; None when no source reports any."""
    return max((backlog or {}).values(), default=None)


def committed_at(began: str | None, took_ms: float | None) -> str | None:
    """Return when a batch ended: its history has its begin, and how long it took."""
    try:
        begin = from_iso(began) if began else None
    except ValueError:
        return None
    return to_iso(begin + dt.timedelta(milliseconds=took_ms or 0)) if begin else None


def restart_count(attempt: AttemptRecord | None) -> int:
    """Return how often a run was started again: drivers after the first, and within the last."""
    if attempt is None:
        return 0
    inside = attempt.restarts["count"] if attempt.restarts else 0
    return attempt.attempt - 1 + int(inside)


class StreamReader:
    """Samples a run repeatedly, and reads only what may have changed."""

    def __init__(self, directory: JobDirectory, run_id: str, clock: Clock) -> None:
        self._directory = directory
        self._run = directory.run(run_id)
        self._clock = clock
        self._last: dict[str, BatchEntry] = {}
        self._savepoints_due = Due(clock, SAVEPOINTS_S)
        self._taken: dict[str, str] = {}  # of complete savepoints, whose records never change

    def samples(self, *, is_alive: bool | None) -> list[Sample]:
        """Return the current samples; *is_alive* is None while a driver is starting."""
        progress = self._run.progress()
        if progress is not None:
            for query, reported in progress.queries.items():
                self._read_history(query, reported.batch)
        sample = StreamSample(
            progress, self._attempt(progress), self._last, self._newest_savepoint(), is_alive
        )
        return measure(sample, self._clock.now())

    def _attempt(self, progress: ProgressRecord | None) -> AttemptRecord | None:
        """Return the last attempt: the one that reports, so that no folder has to be listed."""
        now = self._clock.now()
        if progress is None or driver_trouble(progress, None, now=now, is_live=True):
            return self._run.last_attempt()  # another one may have begun, and not reported yet
        return AttemptRecord.read(self._run.storage, f"attempts/{progress.attempt}.json")

    def _read_history(self, query: str, batch: int | None) -> None:
        known = self._last.get(query)
        if known is not None and batch in {None, known.batch}:
            return
        history = read_history(self._run.storage, query, last=1)
        if history is not None and history.batches:
            self._last[query] = history.batches[-1]

    def _newest_savepoint(self) -> str | None:
        if self._savepoints_due():
            location = self._directory.storage.at("savepoints")
            names = [name for name in folders_in(location) if is_name(name)]
            self._taken = {name: at for name, at in self._taken.items() if name in names}
            for name in set(last_of_each_origin(names)).difference(self._taken):
                found = read_folder(location.at(name))
                if isinstance(found, Savepoint):
                    self._taken[name] = found.record.taken
        return max(self._taken.values(), default=None)
