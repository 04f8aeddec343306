"""Spark's reports of the batches of a running query, each of which is given once."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.sources import CountedSource
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.checkpoint.source_end import is_by_partition
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.batch_history import UNREAD_FILES
from airflow_provider.runtime.queries.spark_state import OperatorRows
from airflow_provider.runtime.queries.state_rows import StateRows

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_provider.runtime.jobdir.query_reports import BatchSizing, TaskCounts
    from airflow_provider.runtime.sources.declared import SourceDefinition

log = logging.getLogger(__name__)

_RUN: Final = "addBatch"  # a phase that only a batch has: a query that waits reports, too


class BatchReport(NamedTuple):
    """A finished batch.

    *progress* is Spark's ``StreamingQueryProgress``, whose late rows are groups of an aggregation;
    *late_rows* counts rows, and *counts* those of rules and records. A field that is not known is
    None.
    """

    progress: dict[str, Any]
    batch_sizing: BatchSizing | None = None
    unread_files: int | None = None
    late_rows: int | None = None
    counts: Mapping[str, int] = MappingProxyType({})
    sources: Sequence[SourceDefinition] = ()

    def backlog(self) -> dict[str, int] | None:
        return backlog_of(self.progress.get("sources", []), self.unread_files, self.sources)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How far a query has read, as far as Spark reports it.

    Attributes:
        batch: the last reported batch; None before the first one, and of a batch job.
        watermark: of that batch, as ISO 8601; None without one.
        operators: the stateful operators after that batch, in plan order.
        backlog: unread input by measure; None if no source reports any.
        tasks: the counts of a batch job's stages and tasks; None before the first stage.
        batch_sizing: the size of the next batch and the reason; None if batches are not fitted.
        idle: the sources that hold no watermark back, because they deliver no rows.
        unread_input: input that was listed and not read, a sentence each.
        spark_counts: whether Spark itself has counted the rows in state.
    """

    batch: int | None = None
    watermark: str | None = None
    operators: tuple[OperatorRows, ...] = ()
    backlog: Mapping[str, int] | None = None
    tasks: TaskCounts | None = None
    batch_sizing: BatchSizing | None = None
    idle: tuple[str, ...] = ()
    unread_input: tuple[str, ...] = ()
    spark_counts: bool = True


class BatchReports:
    """Collects the reports of one query, over all its starts.

    Thread safety: :meth:`staged` and :meth:`note` are called in Spark's callback thread.
    """

    def __init__(self, sources: Sequence[SourceDefinition] = ()) -> None:
        self.state_rows = StateRows()
        self._sources = sources
        self._seen = -1
        self._new: list[BatchReport] = []
        self._notes: dict[int, dict[str, Any]] = {}
        self._staged: BatchReport | None = None

    def starts(self, committed: int) -> None:
        self._seen = committed

    def staged(self, report: BatchReport) -> None:
        self._staged = report

    def note(self, batch: int, **known: Any) -> None:
        self._notes.setdefault(batch, {}).update(known)

    def collect(self, query: StreamingQuery) -> list[dict[str, Any]]:
        from py4j.protocol import Py4JError

        found: list[dict[str, Any]] = []
        try:
            for progress in self._unseen(query):
                self._seen = progress["batchId"]
                self._new.append(self._with_notes(BatchReport(progress)))
                found.append(progress)
        except Py4JError as error:  # the JVM may be gone, which others notice
            log.debug("batches of %s cannot be read: %s", query, error)
        return found

    def end(self, is_committed: Callable[[int], bool]) -> None:
        """Collect a last batch that was stopped between its commit and Spark's report of it."""
        staged, self._staged = self._staged, None
        batch = staged.progress["batchId"] if staged is not None else -1
        if staged is None or batch <= self._seen:
            return
        try:
            if is_committed(batch):
                self._seen = batch
                self._new.append(self._with_notes(staged))
        except (OSError, SparkStreamError) as error:
            log.debug("whether a last batch was committed is not known: %s", error)

    def last(self, query: StreamingQuery) -> dict[str, Any] | None:
        """Return the last report of a running query; None before the first."""
        progress = query._jsq.lastProgress()
        return self.state_rows.in_report(_read(progress)) if progress is not None else None

    def take(self) -> list[BatchReport]:
        new, self._new = self._new, []
        return new

    def _with_notes(self, report: BatchReport) -> BatchReport:
        notes = self._notes.pop(report.progress["batchId"], {})
        progress = self.state_rows.in_report(report.progress)
        return report._replace(progress=progress, sources=self._sources, **notes)

    def _unseen(self, query: StreamingQuery) -> list[dict[str, Any]]:
        last = query._jsq.lastProgress()
        if last is None or last.batchId() <= self._seen:
            return []
        progress = _read(last)
        has_run = _RUN in progress["durationMs"]
        missing = progress["batchId"] - self._seen - (0 if has_run else 1)
        if missing <= 1 and has_run:
            return [progress]
        return list(self._recent(query))[::-1] if missing else []

    def _recent(self, query: StreamingQuery) -> Iterator[dict[str, Any]]:
        recent = query._jsq.recentProgress()
        for location in reversed(range(len(recent))):
            progress = recent[location]
            if progress.batchId() <= self._seen:
                return
            read = _read(progress)
            if _RUN in read["durationMs"]:
                yield read


def own_report(batch: int, began: dt.datetime, seconds: float, rows: int | None) -> BatchReport:
    """Return a report of a batch that Spark has not reported; *rows* is None if unknown."""
    took = {"triggerExecution": round(1000 * seconds)}
    return BatchReport(
        {"batchId": batch, "timestamp": to_iso(began), "numInputRows": rows, "durationMs": took}
    )


def backlog_of(
    sources: Sequence[Mapping[str, Any]],
    unread_files: int | None,
    declared: Sequence[SourceDefinition] = (),
) -> dict[str, int] | None:
    """Return the unread input of sources, by measure; None if none tells.

    Args:
        sources: Spark's reports of them.
        unread_files: of its file sources.
        declared: the sources, in the same order; a report of another number is of none of them.
    """
    found = {} if unread_files is None else {UNREAD_FILES: unread_files}
    known = [each.source for each in declared] if len(declared) == len(sources) else ()
    for source, of in itertools.zip_longest(sources, known):
        own = of.behind(source) if isinstance(of, CountedSource) else behind_latest(source)
        metrics = source.get("metrics") or own
        for key, value in metrics.items():
            outstanding = key.lower().endswith(("outstanding", "behindlatest"))
            if outstanding and str(value).lstrip("-").isdigit():
                found[key] = found.get(key, 0) + int(value)
    return found or None


def reading_of(
    progress: Mapping[str, Any] | None,
    unread_files: int | None = None,
    declared: Sequence[SourceDefinition] = (),
) -> Reading:
    """Return how far a stream has read, by Spark's last report of it."""
    spark = progress or {}
    return Reading(
        batch=spark.get("batchId"),
        watermark=spark.get("eventTime", {}).get("watermark"),
        operators=tuple(
            OperatorRows(number, operator["operatorName"], operator["numRowsTotal"])
            for number, operator in enumerate(spark.get("stateOperators", ()))
        ),
        backlog=backlog_of(spark.get("sources", ()), unread_files, declared),
    )


def reported_state(reading: Reading, batch: int) -> list[OperatorRows]:
    """Return the operators as they were reported after a batch; empty if the rows are not known."""
    is_known = all(each.state_rows is not None for each in reading.operators)
    return [*reading.operators] if is_known and reading.batch == batch else []


def behind_latest(source: Mapping[str, Any]) -> dict[str, int]:
    """Return how far offsets by topic and partition are behind; nothing for others."""
    read, latest = source.get("endOffset"), source.get("latestOffset")
    if not (is_by_partition(read) and is_by_partition(latest)):
        return {}
    behind = [
        max(to - read.get(topic, {}).get(partition, 0), 0)
        for topic, partitions in latest.items()
        for partition, to in partitions.items()
    ]
    if not behind:
        return {}
    return {"minOffsetsBehindLatest": min(behind), "maxOffsetsBehindLatest": max(behind)}


def _read(progress: Any) -> dict[str, Any]:
    return dict(json.loads(progress.json()))  # noqa: TID251 - Spark's own
