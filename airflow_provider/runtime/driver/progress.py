"""Progress of a run for people while it runs, and the history of its batches.

Nothing depends on either: the job continues if they cannot be read or written.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import Clock, Due, from_iso, to_iso
from airflow_provider.runtime.driver.lifecycle.events import AtEnd, JobPhase, QueryPhase
from airflow_provider.runtime.driver.query_reports import QueryReporter
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.batch_history import (
    FULL,
    NO_WATERMARK,
    TOTAL,
    BatchEntry,
    BatchHistory,
    add_batches,
    history_path,
)
from airflow_provider.runtime.jobdir.dropped_rows import LateWarnings
from airflow_provider.runtime.jobdir.epoch_documents import total_of
from airflow_provider.runtime.jobdir.row_counts import sum_of
from airflow_provider.runtime.jobdir.run_records import REPORT_S, ProgressRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.driver.lifecycle import Lifecycle
    from airflow_provider.runtime.jobdir.query_reports import ShownPhase
    from airflow_provider.runtime.queries.batch_reports import BatchReport
    from airflow_provider.runtime.queries.running import Query

log = logging.getLogger(__name__)

_JOB_PHASES: Final[Mapping[JobPhase, ShownPhase]] = {
    JobPhase.OPENED: "starting",
    JobPhase.READING: "reading",
    JobPhase.DRAINING: "draining",
    JobPhase.FINISHING: "committing",
    JobPhase.COMMITTING: "committing",
    JobPhase.SAVING: "committing",
    JobPhase.SEALING: "committing",
}
_QUERY_PHASES: Final[Mapping[QueryPhase, ShownPhase]] = {
    QueryPhase.IDLE: "starting",
    QueryPhase.WAITING: "starting",
    QueryPhase.CATCHING_UP: "reading",
    QueryPhase.READING: "reading",
    QueryPhase.DRAINING: "draining",
    QueryPhase.DRAINED: "committing",
}


def shown_phase(life: Lifecycle) -> ShownPhase:
    """Return the phase of an attempt as people see it, in progress and logs."""
    if life.phase not in {JobPhase.CLOSING, JobPhase.ENDED}:
        return _JOB_PHASES.get(life.phase, _next_phase(life))
    if life.failure is not None:
        return "failed"
    if life.cancelled:
        return "cancelled"
    return "finished" if life.ending is AtEnd.DRAIN else "suspended"


def shown_query_phase(life: Lifecycle, query: str) -> ShownPhase:
    """Return the phase of a query as people see it; that of the attempt once that closes."""
    if life.phase in {JobPhase.CLOSING, JobPhase.ENDED}:
        return shown_phase(life)
    return _QUERY_PHASES.get(life.queries[query], _next_phase(life))


def _next_phase(life: Lifecycle) -> ShownPhase:
    return "draining" if life.ending is AtEnd.DRAIN else "committing"


class ProgressMeter:
    """Turns what queries report into a :class:`ProgressRecord`."""

    def __init__(self, clock: Clock, attempt: int) -> None:
        self._clock = clock
        self._attempt = attempt
        self._begun = clock.monotonic()
        self._rows_before: int | None = None
        self._is_put = True
        self._last_put: ProgressRecord | None = (
            None  # what people see, and no more often than it changes
        )
        self._is_due = Due(clock, REPORT_S)
        self._late = LateWarnings()
        self._history = HistoryWriter(clock, attempt)

    def report(self, storage: Storage, life: Lifecycle, queries: Iterable[Query]) -> ProgressRecord:
        """Return the current progress; write it as the run's ``progress.json`` if it is new."""
        queries = list(queries)
        record = self.read(life, queries)
        self._put(storage, record)
        self._history.write(storage, queries)
        return record

    def end(self, storage: Storage, queries: Iterable[Query]) -> None:
        self._history.write(storage, queries, at_end=True)

    def _put(self, storage: Storage, record: ProgressRecord) -> None:
        self._late.look(record)
        is_due = self._is_due()
        if self._last_put is not None and not is_due and _news(record) == _news(self._last_put):
            return
        try:
            record.put(storage, "progress.json")
        except OSError as error:
            if self._is_put:
                log.warning("%s: progress cannot be reported: %s", storage.url, error)
            self._is_put = False
            self._last_put = None
        else:
            self._is_put = True
            self._last_put = record

    def read(self, life: Lifecycle, queries: Iterable[Query]) -> ProgressRecord:
        queries = list(queries)
        parts = {
            query.name: QueryReporter(query, life.queries[query.name]).progress(
                shown_query_phase(life, query.name)
            )
            for query in queries
        }
        rows = sum(part.rows_read or 0 for part in parts.values())
        if self._rows_before is None:
            self._rows_before = rows
        seconds = max(self._clock.monotonic() - self._begun, 1e-3)
        return ProgressRecord(
            at=to_iso(self._clock.now()),
            attempt=self._attempt,
            phase=shown_phase(life),
            rows_read=rows,
            rows_per_second=round((rows - self._rows_before) / seconds, 1),
            queries=parts,
            late_rows=total_of({query.name: query.counts.late_rows() for query in queries}),
            late_minimum=any(query.counts.late_is_minimum() for query in queries),
            rows_minimum=any(query.definition.native is not None for query in queries),
            lost_rows=sum_of(query.counts.lost_rows() for query in queries),
        )


def _news(record: ProgressRecord) -> ProgressRecord:
    return dataclasses.replace(record, at="", rows_per_second=0.0)


PUT_S: Final = 10.0
"""How often the history of a query is put at most; a killed driver takes so much with it."""
_WAITING: Final = 10 * FULL  # what cannot be put for so long is not worth the memory


class HistoryWriter:
    """Continues the histories that earlier attempts have written; nothing depends on them."""

    def __init__(self, clock: Clock, attempt: int) -> None:
        self._clock = clock
        self._attempt = attempt
        self._queries: dict[str, _QueryHistory] = {}

    def write(
        self,
        storage: Storage,
        queries: Iterable[Query],
        *,
        at_end: bool = False,
    ) -> None:
        for query in queries:
            self._write(storage, query, at_end=at_end)

    def _write(self, storage: Storage, query: Query, *, at_end: bool) -> None:
        history = self._queries.setdefault(query.name, _QueryHistory(query.name, self._clock))
        try:
            history.new.extend(entry_of(each, self._attempt) for each in query.new_batches())
            if history.has_news() and (at_end or history.is_due()):
                history.put(storage)
        except Exception as error:  # noqa: BLE001 - the job is worth more than its history
            if not history.has_failed:
                log.warning("query=%s its batches are not recorded: %s", query.name, error)
            history.has_failed = True


class _QueryHistory:
    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.new: deque[BatchEntry] = deque(maxlen=_WAITING)
        self.is_due = Due(clock, PUT_S)
        self.has_failed = False
        self._clock = clock
        self._kept: BatchHistory | None = None
        self._is_stored = True

    def has_news(self) -> bool:
        return bool(self.new) or not self._is_stored

    def put(self, storage: Storage) -> None:
        now = to_iso(self._clock.now())
        if self._kept is None:
            self._kept = self._read(storage) or BatchHistory(query=self.name, updated=now)
        self._kept = add_batches(self._kept, self.new, updated=now)
        self.new.clear()
        self._is_stored = False
        self._kept.put(storage, history_path(self.name))
        self._is_stored = True
        self.has_failed = False

    def _read(self, storage: Storage) -> BatchHistory | None:
        try:
            return BatchHistory.read(storage, history_path(self.name))
        except SparkStreamError as error:
            log.warning("%s; it is replaced", error)
            return None


def entry_of(report: BatchReport, attempt: int) -> BatchEntry:
    """Return a batch's entry in the history."""
    spark, sizing = report.progress, report.batch_sizing
    operators = spark.get("stateOperators")  # None in a report that is not Spark's
    times = {phase: ms for phase, ms in spark.get("durationMs", {}).items() if ms > 0}
    watermark = spark.get("eventTime", {}).get("watermark")
    ended = from_iso(spark["timestamp"]) + dt.timedelta(milliseconds=times.get(TOTAL, 0))
    return BatchEntry(
        batch=spark["batchId"],
        at=to_iso(from_iso(spark["timestamp"])),
        attempt=attempt,
        rows=spark.get("numInputRows"),
        late_rows=report.late_rows
        if report.late_rows is not None
        else _sum(operators, "numRowsDroppedByWatermark"),
        **report.counts,
        duration_ms=times,
        input_rate=_rate(spark.get("inputRowsPerSecond")),
        process_rate=_rate(spark.get("processedRowsPerSecond")),
        watermark=watermark,
        lag_s=_lag_s(watermark, ended),
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        backlog=report.backlog(),
        limits=({n: s.limit for n, s in sizing.sources.items()} or None) if sizing else None,
        decision=sizing.decision if sizing is not None else None,
        reason=sizing.reason if sizing is not None else None,
    )


def _sum(operators: list[dict[str, Any]] | None, metric: str) -> int | None:
    return None if operators is None else sum_of(each.get(metric, 0) for each in operators)


def _rate(value: float | None) -> float | None:
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return round(float(value), 1) if value is not None and is_number else None


def _lag_s(watermark: str | None, ended: dt.datetime) -> float | None:
    if watermark is None or watermark == NO_WATERMARK or not watermark.startswith(("1", "2")):
        return None
    return round((ended - from_iso(watermark)).total_seconds(), 1)
