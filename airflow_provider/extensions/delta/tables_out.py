"""The function by which a job names a Delta table to write: appended, or by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.extensions.delta.keyed_sink import KeyedDeltaSink
from airflow_provider.extensions.delta.sink import DeltaSink
from airflow_provider.runtime.api.kit.added_columns import may_add_columns
from airflow_provider.runtime.api.kit.keyed_rows import KeyedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def delta(
    path: str,
    partition_by: Sequence[str] = (),
    *,
    options: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
    keys: Sequence[str] | str = (),
    sequence_by: Sequence[str] | str = (),
    delete_when: str | None = None,
    replace: str | None = None,
    schema_changes: str = "refuse",
) -> DeltaSink:
    """Write a query's rows to a Delta Lake table, one version per epoch.

    The table is made with the first epoch when it is missing. Other programs may write to it,
    compact it and clean it up meanwhile. Without *keys* each row is added; with them a row replaces
    the row with the same key.

    Args:
        path: the table's folder: a local path or a URL such as ``s3://bucket/table``.
        partition_by: its partition columns, the same as the table's when it exists.
        options: further options of Spark's Parquet writer, such as ``compression``.
        storage_options: what delta-rs needs to reach *path* beyond the environment. Spark and
            fsspec, which write and list the staged files, are configured in their own ways.
        keys: the columns that tell rows apart.
        sequence_by: the columns that order the changes of a key, compared one after another; a
            change that arrives late does not replace a newer one. Without them a later epoch's row
            counts.
        delete_when: a condition in Spark's SQL, such as ``op = 'd'``; a row for which it is true
            deletes its key.
        replace: a slice of the table that the rows replace, such as ``day = DATE '2026-01-02'``:
            the run's commit removes the rows in it, and adds the new ones, in one version. It has
            comparisons of columns with literals, joined by AND. The run is then one in BATCH.
        schema_changes: what happens to columns of the query that the table lacks: ``refuse``, or
            ``add``, which adds them with the first epoch that has them; older rows have nulls
            there. Types are never changed.

    Raises:
        ConfigError: the words contradict each other.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    keyed = KeyedRows.of(keys, sequence_by, delete_when)
    keyed.check_unused(f"delta:{path}", replace)
    adds = may_add_columns(f"delta:{path}", schema_changes)
    of_writers = dict(options or {}), dict(storage_options or {})
    if keyed.keys:
        return KeyedDeltaSink(path, columns, *of_writers, keyed=keyed, adds_columns=adds)
    return DeltaSink(path, columns, *of_writers, replace=replace, adds_columns=adds)
