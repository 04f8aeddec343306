"""Published batches, completeness and reports of a stream: how far its output can be read.

A published batch with watermark W has emitted all windows that end by W, and later rows for them
are late. So the output is complete up to W. A query without windows has written each row that it
has read, so its output is complete up to the watermark after the batch. It writes late rows, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import offset_value
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.jobdir.query_reports import (
    PublishedQuery,
    PublishedSink,
    PublishedSource,
    quarantine_sink,
)
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.observe.supervise import sample_query
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.query_reports import QueryProgress
    from airflow_provider.runtime.observe.snapshot import RunSnapshot


@dataclasses.dataclass(frozen=True)
class PublishedBatch:
    """The last batch of a query that readers of its output see; None of each before the first one.

    Attributes:
        offsets: the offsets that the batch has read to.
        watermark_ms: the event time up to which its output is complete.
        epoch: the record of the sinks' epoch; None for Spark's own sinks, and when folded.
    """

    query_id: str | None
    number: int | None
    offsets: OffsetEntry | None
    watermark_ms: int | None
    epoch: EpochRecord | None


def published_batch(directory: JobDirectory, query: str) -> PublishedBatch:
    """Return the last batch of a query that is committed and published."""
    logs = CheckpointLogs(directory.checkpoint(query))
    query_id = logs.query_id()
    records = EpochRecords(directory.committables(query), str(query_id))
    number = sample_query(directory, query, None).committed
    if records.has_own():  # Spark's own sinks publish as they write; ours after Spark's commit
        number = min(number, records.find().newest)
    if number < 0:
        return PublishedBatch(query_id, None, None, None, None)
    offsets, complete_ms = logs.offsets(number), logs.complete_ms(number)
    return PublishedBatch(query_id, number, offsets, complete_ms, records.published(number))


@dataclasses.dataclass(frozen=True)
class Completeness:
    """The event time up to which the output of a job is complete.

    Attributes:
        watermarks: of each query in milliseconds since 1970; None while it has none.
        finished_by: the run that has finished the job, so that no more output will come.
    """

    watermarks: Mapping[str, int | None]
    finished_by: str | None

    @property
    def is_finished(self) -> bool:
        return self.finished_by is not None

    @property
    def reached_ms(self) -> int | None:
        """The event time up to which every query is complete, in milliseconds since 1970.

        None while a query has no watermark, and when all are drained.
        """
        known = [each for each in self.watermarks.values() if each is not None]
        if not known or len(known) < len(self.watermarks):
            return None
        lowest = min(known)
        return None if is_of_drain(lowest) else lowest

    def lagging(self, until_ms: int) -> dict[str, int | None]:
        if self.is_finished:
            return {}
        return {
            query: watermark
            for query, watermark in self.watermarks.items()
            if watermark is None or watermark < until_ms
        }

    def is_up_to(self, until_ms: int) -> bool:
        return self.is_finished or (bool(self.watermarks) and not self.lagging(until_ms))

    def describe(self) -> dict[str, str | None]:
        """Return each query's last complete moment, or ``end`` for a query that is drained."""
        return {query: _shown(watermark) for query, watermark in self.watermarks.items()}


def completeness(directory: JobDirectory, queries: Sequence[str] = ()) -> Completeness:
    """Return the event time up to which the output of a job is complete.

    *queries* are those that count, begun or not; by default all that have begun.
    """
    begun = directory.query_names()
    watermarks = {
        query: published_batch(directory, query).watermark_ms if query in begun else None
        for query in (queries or begun)
    }
    return Completeness(watermarks, _finished_by(directory))


def _finished_by(directory: JobDirectory) -> str | None:
    newest = newest_run(directory)
    if newest is None:
        return None
    run = directory.run(newest.run_id)
    final = run.final()
    is_last = final is not None and final.outcome == FINISHED and run.rewound() is None
    return newest.run_id if is_last else None


def _shown(watermark_ms: int | None) -> str | None:
    is_end = watermark_ms is not None and is_of_drain(watermark_ms)
    return "end" if is_end else _iso(watermark_ms)


def _iso(watermark_ms: int | None) -> str | None:
    return millis_to_iso(watermark_ms) if watermark_ms is not None else None


RUNNING: Final = "RUNNING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamReport(Document):
    """The progress of a running run that a supervising task hands over; it is not stored.

    Attributes:
        outcome: always RUNNING.
        attempts: drivers so far, this one included.
        at: the driver's last report.
        late_minimum: whether more rows than *late_rows* may have come late.
    """

    CONTENTS = Contents.FACTS

    job: str
    run_id: str
    outcome: str
    mode: str
    driver_id: str
    attempts: int
    restarts: int
    started: str
    at: str
    rows_read: int
    late_rows: int | None = None
    late_minimum: bool = False
    lost_rows: int | None = 0
    queries: Mapping[str, PublishedQuery]


def describe_running(directory: JobDirectory, snapshot: RunSnapshot) -> StreamReport:
    """Return the progress of a running run."""
    progress = snapshot.driver_progress
    if progress is None or snapshot.attempt is None or snapshot.lease is None:
        raise CheckpointError(
            f"{directory.url}: its driver has not begun its queries, so nothing is handed over"
        )
    run = directory.run(snapshot.lease.run_id).record()
    if run is None:
        raise CheckpointError(
            f"{directory.url}: run {snapshot.lease.run_id!r} has a driver and no run.json"
        )
    return StreamReport(
        job=directory.name() or "",
        run_id=run.run_id,
        outcome=RUNNING,
        mode=run.mode,
        driver_id=snapshot.lease.driver_id,
        attempts=snapshot.attempt.attempt,
        restarts=int((snapshot.attempt.restarts or {}).get("count", 0)),
        started=run.started,
        at=progress.at,
        rows_read=progress.rows_read,
        late_rows=progress.late_rows,
        late_minimum=progress.late_minimum,
        lost_rows=progress.lost_rows,
        queries={
            name: _published_query(directory, name, reported)
            for name, reported in progress.queries.items()
        },
    )


def _published_query(directory: JobDirectory, name: str, reported: QueryProgress) -> PublishedQuery:
    seen = published_batch(directory, name)
    return PublishedQuery(
        query_id=seen.query_id,
        batch_id=seen.number,
        watermark=_iso(seen.watermark_ms),
        sources=_sources(directory, name, seen.offsets) if seen.offsets is not None else (),
        operators=reported.operators,
        sinks=_sinks(seen.epoch, quarantine_sink(reported)),
        backlog=reported.backlog,
        row_counts=reported.row_counts,
    )


def _sources(directory: JobDirectory, name: str, entry: OffsetEntry) -> tuple[PublishedSource, ...]:
    topology = kept_topology(directory, name)
    names: Sequence[str | None] = topology.sources if topology is not None else entry.names or ()
    offsets = [offset_value(line) for line in entry.lines_of(names)]
    known = names if len(names) == len(offsets) else (None,) * len(offsets)
    return tuple(
        PublishedSource(name=source, end_offset=offset)
        for source, offset in zip(known, offsets, strict=True)
        if not is_marker(source)
    )


def _sinks(record: EpochRecord | None, quarantine: str | None) -> tuple[PublishedSink, ...]:
    if record is None:  # one of Spark's own, or folded away
        return ()
    return tuple(
        PublishedSink(
            name=sink["name"],
            epoch=record.epoch,
            rows=sink.get("run_rows"),
            quarantine=sink["name"] == quarantine,
        )
        for sink in record.sinks
    )
