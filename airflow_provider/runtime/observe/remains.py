"""Remains of a driver that recorded no end: its open batches, and whether its disk is full."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.observe.endings import Remains
from airflow_provider.runtime.storage.mounts import full_disk
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import JobDirectory


def remains_of(directory: JobDirectory) -> Remains:
    """Return what is left in a job directory; what cannot be read is left out."""
    folder = local_path_of(directory.url)
    found: dict[str, int] = {}
    with contextlib.suppress(OSError, SparkStreamError):
        for query in directory.query_names():
            batch = CheckpointLogs(directory.checkpoint(query)).position().open_batch
            if batch is not None:
                found[query] = batch
    return Remains(found, full_disk([folder]) if folder is not None else None)
