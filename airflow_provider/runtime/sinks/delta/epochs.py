"""What a Delta table has recorded of a query's epochs, in its application transactions.

::

    <query id>                   the last epoch that is settled: it and those before it are never
                                 published (again)
    <query id>/taken-back-from   the first epoch that was taken back, as all after it were
    <query id>/published-below   the epoch after the last that had been published when that began

They live as long as the table, whoever cleans its history, and are moved in the same version as the
files that they speak of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.sinks.delta.log import Change, active_paths
from airflow_provider.runtime.sinks.protocol import changed, reading
from airflow_provider.runtime.sinks.staging import folder_name, is_inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from airflow_provider.runtime.sinks.protocol import Committable, EpochId


def folder_of(epoch: EpochId) -> str:
    """Return where an epoch is staged and stays, relative to the table."""
    return f"{home_of(epoch.query_id)}/{folder_name(epoch)}"


def home_of(query_id: str) -> str:
    """Return where a query's epochs are, relative to the table."""
    return f"spark-stream-{query_id}"


def files_of(committable: Committable) -> list[tuple[str, int]]:
    """Return the path relative to the table, and the bytes, of each file that was staged.

    Raises:
        CorruptDocumentError: a path is not in the folder in which the epoch was staged.
    """
    epoch, kind = committable.epoch, "delta"
    with reading(kind, committable):
        files = [(path, int(size)) for path, size in committable.data["files"]]
    for path, _ in files:
        if not (is_inside(path) and path.startswith(f"{folder_of(epoch)}/")):
            raise changed(kind, epoch, path)
    return files


def last_epoch(table: DeltaTable, query_id: str) -> int:
    """Return the last epoch that is settled: it and those before are never published (again)."""
    version = table.transaction_version(query_id)
    return -1 if version is None else version


def is_taken_back(table: DeltaTable, epoch: EpochId) -> bool:
    """Tell whether the epoch was taken back, published or not."""
    first = table.transaction_version(_first_mark(epoch.query_id))
    return first is not None and epoch.epoch >= first


def has_files_of(table: DeltaTable, epoch: EpochId) -> bool:
    """Tell whether the table has files of the epoch, whoever of its drivers staged them."""
    return bool(active_paths(table, [f"{home_of(epoch.query_id)}/{epoch.epoch}-"]))


def may_be_named(table: DeltaTable, epoch: EpochId) -> bool:
    """Tell whether a version of the table that somebody may read names the staging's files."""
    if epoch.epoch > last_epoch(table, epoch.query_id):
        return False
    if is_taken_back(table, epoch):
        # VACUUM removes them when nobody can read the older version any more.
        return epoch.epoch < (table.transaction_version(_published_mark(epoch.query_id)) or 0)
    return bool(active_paths(table, [f"{folder_of(epoch)}/"]))


def epochs_after(table: DeltaTable, query_id: str, epoch: int) -> set[int]:
    """Return the query's epochs from *epoch* on of which files are part of the table."""
    home = f"{home_of(query_id)}/"
    folders = {path.removeprefix(home).partition("/")[0] for path in active_paths(table, [home])}
    numbers = (name.partition("-")[0] for name in folders)
    return {int(number) for number in numbers if number.isdecimal() and int(number) >= epoch}


def _first_mark(query_id: str) -> str:
    return f"{query_id}/taken-back-from"


def _published_mark(query_id: str) -> str:
    return f"{query_id}/published-below"


def removal(
    table: DeltaTable, one: EpochId, epochs: set[int], published: Sequence[Committable]
) -> Change:
    """Return the version that takes *epochs* back.

    Args:
        table: as it is now.
        one: any of them, for the query.
        epochs: their numbers.
        published: the stagings that were published.
    """
    first, last = _first_mark(one.query_id), _published_mark(one.query_id)
    before, had = table.transaction_version(first), table.transaction_version(last)
    settled = last_epoch(table, one.query_id)
    marks = {
        one.query_id: max(settled, *epochs),
        first: min(epochs) if before is None else min(before, *epochs),
        last: settled + 1 if had is None else had,
    }
    return Change(
        marks,
        {"sparkStream": {"query": one.query, "queryId": one.query_id, "tookBack": sorted(epochs)}},
        removed=[file for committable in published for file in files_of(committable)],
    )


def facts_of(epoch: EpochId) -> dict[str, Any]:
    """Return what the table's history tells people of an epoch."""
    return {
        "sparkStream": {
            "query": epoch.query,
            "queryId": epoch.query_id,
            "epoch": epoch.epoch,
            "token": epoch.token,
        }
    }
