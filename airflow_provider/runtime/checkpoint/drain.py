"""The drain: one administrative batch with no input and the greatest watermark.

Spark runs a planned, uncommitted batch exactly as its offset entry says. An entry with the offsets
of the last committed batch and :data:`.MAX_WATERMARK_MS` reads nothing, evicts all state and fires
all event-time timers. Spark's own state repartitioning appends such entries too. The idea of a last
checkpoint after MAX_WATERMARK is Flink's (FLIP-147). Where rows are later than that, another such
batch follows, up to the end of what Spark's timestamps can hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.drain_step import (
    DrainStep,
    next_drain_step,
    next_watermark,
)
from airflow_provider.runtime.errors import JobDrainedError, OpenBatchError, UnknownJobError

if TYPE_CHECKING:
    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs


def plan_drain_batch(logs: CheckpointLogs, *, further: bool = False) -> int:
    """Append the drain batch to the offset log of a query that is not running.

    Args:
        logs: the query's.
        further: when it is drained already, let another batch follow with a later watermark.

    Returns:
        The drain batch. Start the query once with ``trigger(once=True)`` to run it; with
        ``availableNow`` rows that arrived meanwhile would be read after it and dropped as late.

    Raises:
        UnknownJobError: there is no checkpoint, or no batch has committed.
        OpenBatchError: a batch is planned and not committed.
        JobDrainedError: the query is drained already; with *further*, up to the end of time.

    Crash safety: the entry is put at once or not at all. Idempotent: by the batch.
    """
    position = logs.position()
    if position.last_commit < 0 and position.open_batch is None:
        msg = f"{logs.url}: no checkpoint with a committed batch there; run the query first"
        raise UnknownJobError(msg)
    step = next_drain_step(position, stateful=True)
    if step is DrainStep.RUN_PLANNED:
        return position.last_offsets
    if step is DrainStep.RUN_OPEN:
        msg = (
            f"{logs.url}: batch {position.open_batch} is planned and not committed; run the query "
            "once with trigger(once=True), then plan the drain"
        )
        raise OpenBatchError(msg)
    entry = logs.offsets(position.last_commit)
    watermark_ms = next_watermark(entry.watermark_ms)
    if watermark_ms is None or (step is DrainStep.DONE and not further):
        msg = f"{logs.url}: drained already, by batch {position.last_commit}"
        raise JobDrainedError(msg)
    batch = position.last_commit + 1
    if not logs.put_offsets(batch, entry.with_watermark(watermark_ms)):
        msg = f"{logs.url}: batch {batch} was planned just now by somebody else; is it running?"
        raise OpenBatchError(msg)
    return batch
