"""Names of the files that the ``files`` sink publishes: of an epoch, and the same each time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from airflow_provider.runtime.api.sinks import EpochId

# Spark names a file part-<task>-<uuid>.c000.snappy.parquet, or with -c000; what follows is kept.
_SPARK_NAME: Final = re.compile(r"part-\d+-[0-9a-f-]{36}[.-]c\d+(?P<suffix>\..+)")


def final_name(staged: str, number: int, epoch: EpochId) -> str:
    """Return where a staged file is published, relative to the output.

    Args:
        staged: its path relative to the epoch's staging folder, whose first part is the folder of
            one staging.
        number: its place among the epoch's files.
        epoch: whose it is.
    """
    folder, _, name = staged.partition("/")[2].rpartition("/")
    match = _SPARK_NAME.fullmatch(name)
    suffix = match["suffix"] if match else Path(name).suffix
    final = f"part-{epoch.epoch:010d}-{number:05d}-{epoch.query_id}{suffix}"
    return f"{folder}/{final}" if folder else final


def is_final_name(final: str, epoch: EpochId) -> bool:
    """Whether a published file of that name is one of the epoch's."""
    return _is_name(final, f"{epoch.epoch:010d}", epoch.query_id)


def is_name_of(final: str, query_id: str) -> bool:
    """Whether a published file of that name is one of the query's, of whatever epoch."""
    return _is_name(final, r"\d{10,}", query_id)


def _is_name(final: str, epoch: str, query_id: str) -> bool:
    start = rf"part-{epoch}-\d{{5,}}-{re.escape(query_id)}\."
    return re.match(start, final.rpartition("/")[2]) is not None
