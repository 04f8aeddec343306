"""What a Delta table has recorded of a query's epochs, in its application transactions.

::

    <query id>                      the last epoch that is settled: it and those before it are
                                    never published (again)
    <query id>/taken-back/<epoch>   the token of the staging that was taken back, or 0 when none
                                    of the epoch's stagings had been published

They live as long as the table, whoever cleans its history, and are moved in the same version as the
files that they speak of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.sinks.delta.log import Change, active_paths
from airflow_provider.runtime.sinks.staging import folder_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from airflow_provider.runtime.sinks.protocol import Committable, EpochId

_NOBODY: Final = 0  # no driver's token


def folder_of(epoch: EpochId) -> str:
    """Return where an epoch is staged and stays, relative to the table."""
    return f"{home_of(epoch.query_id)}/{folder_name(epoch)}"


def home_of(query_id: str) -> str:
    """Return where a query's epochs are, relative to the table."""
    return f"spark-stream-{query_id}"


def files_of(committable: Committable) -> list[tuple[str, int]]:
    """Return the path relative to the table, and the bytes, of each file that was staged."""
    return [(str(path), int(size)) for path, size in committable.data["files"]]


def last_epoch(table: DeltaTable, query_id: str) -> int:
    """Return the last epoch that is settled: it and those before are never published (again)."""
    version = table.transaction_version(query_id)
    return -1 if version is None else version


def taken_back(table: DeltaTable, epoch: EpochId) -> int | None:
    """Return the token of the staging of the epoch that was taken back; None when none was.

    It is 0 when the epoch was taken back before any of its stagings was published.
    """
    return table.transaction_version(_mark_of(epoch.query_id, epoch.epoch))


def may_be_named(table: DeltaTable, epoch: EpochId) -> bool:
    """Tell whether a version of the table that somebody may read names the staging's files."""
    if epoch.epoch > last_epoch(table, epoch.query_id):
        return False
    if taken_back(table, epoch) == epoch.token:
        return True  # VACUUM removes them when nobody can read the older version any more
    return bool(active_paths(table, [f"{folder_of(epoch)}/"]))


def _mark_of(query_id: str, epoch: int) -> str:
    return f"{query_id}/taken-back/{epoch}"


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
    tokens = {c.epoch.epoch: c.epoch.token for c in published}
    marks = {_mark_of(one.query_id, epoch): tokens.get(epoch, _NOBODY) for epoch in epochs}
    settled = max(last_epoch(table, one.query_id), *epochs)
    return Change(
        {one.query_id: settled, **marks},
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
