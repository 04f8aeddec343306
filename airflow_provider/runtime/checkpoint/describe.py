"""A checkpoint explained, for people and scripts; works on any query's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import UnknownJobError
from airflow_provider.runtime.storage.numbered_files import numbers_in

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage

_SHOWN_BATCHES = 10


def describe_checkpoint(storage: Storage) -> dict[str, Any]:
    """Say what the checkpoint at *storage* holds.

    Returns:
        Plain JSON values: query id, last planned, last committed and open batch, watermark, whether
        it is drained, sources' end offsets, stateful operators with their partitions, and the last
        batches.

    Raises:
        UnknownJobError: there is no checkpoint.
        CheckpointError: its logs contradict each other.
    """
    logs = CheckpointLogs(storage)
    if not logs.exists():
        msg = f"{storage.url}: no Spark checkpoint there (neither 'metadata' nor 'offsets')"
        raise UnknownJobError(msg)
    position = logs.position()
    batches = logs.batches("offsets")
    last = logs.offsets(position.last_offsets) if batches else None
    return {
        "checkpoint": storage.url,
        "query_id": logs.query_id(),
        "last_planned_batch": position.last_offsets if batches else None,
        "last_committed_batch": position.last_commit if position.last_commit >= 0 else None,
        "open_batch": position.open_batch,
        "watermark": millis_to_iso(last.watermark_ms) if last else None,
        "drained": is_of_drain(position.watermark_ms) and position.open_batch is None,
        "sources": last.source_offsets() if last else [],
        "operators": _operators(storage),
        "batches": [_batch(logs, batch) for batch in batches[-_SHOWN_BATCHES:]],
    }


def _operators(storage: Storage) -> list[dict[str, Any]]:
    ids = numbers_in(storage.list("state"))
    return [{"id": i, "partitions": len(numbers_in(storage.list(f"state/{i}")))} for i in ids]


def _batch(logs: CheckpointLogs, batch: int) -> dict[str, Any]:
    entry = logs.offsets(batch)
    return {
        "batch": batch,
        "committed": logs.is_committed(batch),
        "watermark": millis_to_iso(entry.watermark_ms),
        "sources": entry.source_offsets(),
    }
