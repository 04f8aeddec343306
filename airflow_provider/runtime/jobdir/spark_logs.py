"""Spark's own logs, compared with what the records of the epochs keep of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logged_batch import changed_offsets, check_unchanged
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs

if TYPE_CHECKING:
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords

log = logging.getLogger(__name__)


def replaced_offsets(
    records: EpochRecords, checkpoint: Storage, last: int, found: EpochListing | None = None
) -> dict[int, bytes]:
    """Compare Spark's logs of the last two batches, which a restart reads, with the records.

    Args:
        records: of the query's epochs.
        checkpoint: the query's, or a copy of it.
        last: the last committed batch.
        found: the records, if they have been listed.

    Returns:
        The right bytes of each ``offsets/<batch>`` that was replaced since its batch ran.

    Raises:
        CheckpointError: another file of the logs was replaced.
    """
    found, replaced = found or records.find(), {}
    for batch in range(max(last - 1, 0), last + 1):
        record = records.counting(batch, found)
        if record is None or record.logged is None:
            continue
        if record.commit is not None:
            check_unchanged(checkpoint, f"commits/{batch}", record.commit)
        data = changed_offsets(checkpoint, batch, record.logged)
        if data is not None:
            replaced[batch] = data
    return replaced


def put_back_offsets(
    records: EpochRecords, checkpoint: Storage, last: int, found: EpochListing | None = None
) -> None:
    """Put back what was replaced of the offset log; no driver but the caller's runs the query.

    Raises:
        CheckpointError: another file of the logs was replaced.

    Idempotent.
    """
    for batch, data in replaced_offsets(records, checkpoint, last, found).items():
        text = "%s/offsets/%s: was replaced after its batch had run; put back as it was"
        log.warning(text, checkpoint.url, batch)
        CheckpointLogs(checkpoint).put_back_offsets(batch, data)
