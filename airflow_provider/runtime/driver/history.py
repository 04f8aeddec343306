"""Batch histories of an attempt: what Spark reports of each batch, put every ten seconds."""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.clock import Clock, Due, from_iso, to_iso
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.batch_reports import BatchReport
    from airflow_provider.runtime.queries.streaming import RunningQuery
    from airflow_provider.runtime.storage.base import Storage

log = logging.getLogger(__name__)

PUT_S: Final = 10.0
"""How often the history of a query is put at most; a killed driver takes so much with it."""
_WAITING: Final = 10 * FULL  # what cannot be put for so long is not worth the memory


class HistoryWriter:
    """Goes on with the histories that earlier attempts of the run have put.

    Nothing is decided by them, so that the job goes on whatever cannot be read or put.

    Args:
        clock: time.
        attempt: the attempt's number.
    """

    def __init__(self, clock: Clock, attempt: int) -> None:
        self._clock = clock
        self._attempt = attempt
        self._queries: dict[str, _QueryHistory] = {}

    def look(self, storage: Storage, queries: Iterable[RunningQuery | BatchQuery]) -> None:
        """Take the batches that have ended, and put the histories that are due.

        Args:
            storage: the run's directory.
            queries: the queries of the attempt.

        Crash safety: a history is there as it was, or with the new batches.
        Idempotent: each batch is taken once.
        """
        for query in queries:
            self._look(storage, query, at_end=False)

    def end(self, storage: Storage, queries: Iterable[RunningQuery | BatchQuery]) -> None:
        """Put all that was not put; the attempt ends.

        Crash safety: see :meth:`look`.
        Idempotent: each batch is taken once.
        """
        for query in queries:
            self._look(storage, query, at_end=True)

    def _look(self, storage: Storage, query: RunningQuery | BatchQuery, *, at_end: bool) -> None:
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
    """The history of one query.

    Args:
        name: the query.
        clock: time.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.new: deque[BatchEntry] = deque(maxlen=_WAITING)
        self.is_due = Due(clock, PUT_S)
        self.has_failed = False
        self._clock = clock
        self._kept: BatchHistory | None = None
        self._is_stored = True

    def has_news(self) -> bool:
        """Whether there is something that is not stored."""
        return bool(self.new) or not self._is_stored

    def put(self, storage: Storage) -> None:
        """Store the new batches; the first time, after those that are there."""
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
    """Return what the history keeps of a batch."""
    spark, pacing = report.progress, report.pacing or {}
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
        duration_ms=times,
        input_rate=_rate(spark.get("inputRowsPerSecond")),
        process_rate=_rate(spark.get("processedRowsPerSecond")),
        watermark=watermark,
        lag_s=_lag_s(watermark, ended),
        state_rows=_sum(operators, "numRowsTotal"),
        state_bytes=_sum(operators, "memoryUsedBytes"),
        backlog=report.backlog(),
        limits={name: each["limit"] for name, each in pacing.get("sources", {}).items()} or None,
        decision=pacing.get("decision"),
        reason=pacing.get("reason"),
    )


def _sum(operators: list[dict[str, Any]] | None, metric: str) -> int | None:
    return None if operators is None else sum(each.get(metric, 0) for each in operators)


def _rate(value: float | None) -> float | None:
    """Return rows a second; None where Spark has divided by no time."""
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return round(float(value), 1) if value is not None and is_number else None


def _lag_s(watermark: str | None, ended: dt.datetime) -> float | None:
    """Return how far a watermark is behind; that of a drain is at the end of time."""
    if watermark is None or watermark == NO_WATERMARK or not watermark.startswith(("1", "2")):
        return None
    return round((ended - from_iso(watermark)).total_seconds(), 1)
