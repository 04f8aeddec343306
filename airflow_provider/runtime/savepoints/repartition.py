"""Repartitioning of state in a restore: what Spark's offline repartitioning can do.

It appends a batch without input to a checkpoint, with the state of the batch before it spread over
another number of partitions. A restore does that in the copy that it makes, before the copy has the
id that makes it a checkpoint; so one that was cut short is copied again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operator_kinds import kind_named
from airflow_provider.runtime.checkpoint.operators import has_one_partition
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import read_saved, saved_offsets
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.record import SavedOperator

Repartition = Callable[[str, CheckpointLogs, int], None]
"""Appends the batch to a checkpoint: its address as Spark writes it, its logs, how many."""

PROVIDER: Final = "rocksdb"


def check_repartitionable(
    savepoint: Savepoint, names: Iterable[str], *, skip_in_flight: bool = False
) -> None:
    """Refuse a savepoint whose state Spark cannot repartition.

    Args:
        savepoint: the savepoint to restore.
        names: its queries to restore.
        skip_in_flight: whether a batch in flight is skipped.

    Raises:
        ConfigError: the message names the query, the obstacle, and the way out.
    """
    stateful = {
        name: query
        for name, query in savepoint.record.queries.items()
        if name in set(names) and query.operators
    }
    if not stateful:
        msg = f"{savepoint.url}: no query in it keeps state; restore it without partitions"
        raise ConfigError(msg)
    for name in stateful:
        reason = _find_obstacle(savepoint, name, skip_in_flight=skip_in_flight)
        if reason is not None:
            msg = f"{savepoint.url}: the state of query {name!r} cannot be repartitioned: {reason}"
            raise ConfigError(msg)


def partitions_of(savepoint: Savepoint, name: str) -> int | None:
    """Return how many partitions Spark gives a query's state; None when its log does not tell."""
    return saved_offsets(savepoint, name, savepoint.record.queries[name].batch).partitions


def _find_obstacle(savepoint: Savepoint, name: str, *, skip_in_flight: bool) -> str | None:
    query = savepoint.record.queries[name]
    for operator in query.operators:
        what = f"stateful operator {operator['id']} ({operator['name']})"
        if operator["provider"] != PROVIDER:
            return (
                f"{what} keeps it in {operator['provider']}, and Spark repartitions only "
                f"{PROVIDER}; restore it without partitions"
            )
        if not kind_named(operator["name"]).is_repartitionable:
            return f"Spark does not know how to, for {what}; restore it without partitions"
        if _has_one_partition(savepoint, name, operator):
            # Spark would put its only row where its only partition does not look for it.
            return f"{what} has no keys, so it always has one; restore it without partitions"
    if query.planned and not skip_in_flight:
        return (
            f"batch {query.batch + 1} was in flight, and runs with the partitions that it was "
            "planned with; take an aligned savepoint, or restore it without partitions"
        )
    return None


def _has_one_partition(savepoint: Savepoint, name: str, operator: SavedOperator) -> bool:
    files = savepoint.record.queries[name].files
    folder, place = f"state/{operator['id']}/", open_storage(savepoint.url)
    schemas = [f for f in files if f.path.startswith(folder) and f.path.endswith("/schema")]
    planned = partitions_of(savepoint, name)
    return (planned is not None and operator["partitions"] == 1 < planned) or any(
        has_one_partition(read_saved(place, name, schema)) for schema in schemas
    )
