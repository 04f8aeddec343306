"""The function by which a job names an Iceberg table to write: appended, or by key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.extensions.iceberg.keyed_sink import KeyedIcebergSink
from airflow_provider.extensions.iceberg.sink import IcebergSink
from airflow_provider.runtime.api.kit.added_columns import may_add_columns
from airflow_provider.runtime.api.kit.keyed_rows import KeyedRows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def iceberg(
    table: str,
    *,
    catalog: str | Mapping[str, str],
    partition_by: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    keys: Sequence[str] | str = (),
    sequence_by: Sequence[str] | str = (),
    delete_when: str | None = None,
    replace: str | None = None,
    schema_changes: str = "refuse",
) -> IcebergSink:
    """Write a query's rows to an Iceberg table, one snapshot per epoch.

    The table is made with the first epoch when it is missing; its namespace must exist. Other
    programs may write to it, compact it and expire its snapshots meanwhile.

    Args:
        table: ``namespace.table``.
        catalog: the name of a catalog that pyiceberg's own configuration describes, or a catalog's
            properties as ``load_catalog`` takes them, with its ``name`` among them (``default``).
        partition_by: columns that a new table is partitioned by, by value; an existing table's own
            partitioning is kept to.
        options: further options of Spark's Parquet writer, such as ``compression``.
        keys: the columns that tell rows apart: a row replaces the row with the same key.
        sequence_by: the columns that order the changes of a key, compared one after another.
        delete_when: a condition in Spark's SQL by which a row deletes its key: ``op = 'd'``.
        replace: a slice of the table that the rows replace, such as ``day = DATE '2026-01-02'``:
            the run's commit removes the rows in it, and adds the new ones, in one snapshot. It has
            comparisons of columns with literals, joined by AND. The run is then one in BATCH.
        schema_changes: what happens to columns of the query that the table lacks: ``refuse``, or
            ``add``, which adds them in the snapshot of the first epoch that has them; older rows
            have nulls there. Types are never changed.

    Raises:
        ConfigError: the words contradict each other.
    """
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    named = catalog if isinstance(catalog, str) else dict(catalog)
    keyed = KeyedRows.of(keys, sequence_by, delete_when)
    keyed.check_unused(f"iceberg:{table}", replace)
    adds, more = may_add_columns(f"iceberg:{table}", schema_changes), dict(options or {})
    if keyed.keys:
        return KeyedIcebergSink(table, named, columns, more, keyed=keyed, adds_columns=adds)
    return IcebergSink(table, named, columns, more, replace=replace, adds_columns=adds)
