"""The hand-over record of a supervised stream: what is committed when a DAG run passes it on.

It is no final checkpoint: nothing has ended, ``outcome`` is RUNNING, and nothing is stored. It is
read from what decides: a batch in it is in Spark's commit log, and its epoch is published.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.topology_record import kept_topology
from airflow_provider.runtime.jobdir.watermark_markers import is_marker
from airflow_provider.runtime.observe.completeness import published_batch
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.observe.snapshot import RunSnapshot

RUNNING: Final = "RUNNING"


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamReport(Document):
    """How far a run had come at a moment.

    Attributes:
        outcome: always RUNNING.
        attempts: drivers so far, this one included.
        restarts: how often this driver has started queries again.
        at: the driver's last report.
        queries: per query ``query_id``, ``batch_id``: the last batch that is committed and
            published, None before the first; of that batch ``watermark``, ``sources`` with their
            ``end_offset``, and ``sinks``; ``backlog`` as the sources report it.
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
    lost_rows: int | None = 0
    queries: dict[str, dict[str, Any]]


def describe_running(directory: JobDirectory, snapshot: RunSnapshot) -> StreamReport:
    """Return how far the run has come whose driver *snapshot* has shown.

    Raises:
        CheckpointError: the driver has reported nothing yet, or what it goes by is damaged.
    """
    progress = snapshot.driver_progress
    if progress is None or snapshot.attempt is None or snapshot.lease is None:
        msg = f"{directory.url}: its driver has not begun its queries, so nothing is handed over"
        raise CheckpointError(msg)
    run = directory.run(snapshot.lease.run_id).record()
    if run is None:
        msg = f"{directory.url}: run {snapshot.lease.run_id!r} has a driver and no run.json"
        raise CheckpointError(msg)
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
        lost_rows=progress.lost_rows,
        queries={
            name: _describe_query(directory, name, reported)
            for name, reported in progress.queries.items()
        },
    )


def _describe_query(
    directory: JobDirectory, name: str, reported: Mapping[str, Any]
) -> dict[str, Any]:
    seen = published_batch(directory, name)
    watermark_ms = seen.watermark_ms
    return {
        "query_id": seen.query_id,
        "batch_id": seen.number,
        "watermark": millis_to_iso(watermark_ms) if watermark_ms is not None else None,
        "sources": _sources(directory, name, seen.offsets) if seen.offsets is not None else [],
        "sinks": _sinks(seen.epoch),
        "backlog": reported.get("backlog"),
    }


def _sources(directory: JobDirectory, name: str, entry: OffsetEntry) -> list[dict[str, Any]]:
    topology = kept_topology(directory, name)
    names = topology.sources if topology is not None else ()
    offsets = entry.source_offsets()
    known = names if len(names) == len(offsets) else (None,) * len(offsets)
    return [
        {"name": source, "end_offset": offset}
        for source, offset in zip(known, offsets, strict=True)
        if not is_marker(source)
    ]


def _sinks(record: EpochRecord | None) -> list[dict[str, Any]]:
    if record is None:  # one of Spark's own, or folded away
        return []
    return [
        {"name": sink["name"], "epoch": record.epoch, "rows": sink.get("run_rows")}
        for sink in record.sinks
    ]
