"""Files of the batch that Spark plans once more when a query starts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import SourceLog, file_position
from airflow_provider.runtime.checkpoint.source_names import key_of_source
from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.storages import Storage

log = logging.getLogger(__name__)


def files_of_last_batch(checkpoint: Storage, names: Sequence[str | None]) -> dict[str, list[str]]:
    """Return by file source the addresses of the files that the last planned batch has of it.

    Args:
        checkpoint: the query's.
        names: the sources in a log of positions; a log with names does without.

    Returns:
        Nothing for a source whose files are not known: that Spark has compacted, that is read at
        several locations, or whose entry is damaged.
    """
    logs = CheckpointLogs(checkpoint)
    planned = logs.batches("offsets")
    if not planned or (planned[-1] > 0 and planned[-1] - 1 not in planned):
        return {}
    try:
        entry = logs.offsets(planned[-1])
        before = logs.offsets(planned[-1] - 1) if planned[-1] > 0 else None
    except CorruptDocumentError:
        return {}  # recovery puts it back from the record of its epoch, or refuses it
    if entry.has_spark_ids:
        return {}
    known = list(names if entry.names is None else entry.names)
    found = {}
    for location, line in enumerate(entry.sources[: len(known)]):
        name, last = known[location], file_position(line)
        if name is None or last is None or known.count(name) > 1:
            continue
        start = file_position(before.offset_of(location, name)) if before is not None else None
        source_log = SourceLog(checkpoint, key_of_source(name) if entry.names else str(location))
        numbers = range(0 if start is None else start + 1, last + 1)
        try:
            found[name] = [file.path for n in numbers for file in source_log.files(n)]
        except CheckpointError as error:
            log.debug("%s: the files of source %s are not known: %s", logs.url, name, error)
    return found
