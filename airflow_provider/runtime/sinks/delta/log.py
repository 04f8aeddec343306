"""A Delta table's log: opened once, read on from where it was, written by compare-and-swap.

delta-rs retries a lost race by itself unless told not to, and then lets two creators of one table
both win, the second by replacing the first one's schema. So it is told not to, everywhere: what is
written rests on the very version that was looked at, or is not written.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_provider.runtime.sinks.delta.datafiles import partition_of
from airflow_provider.runtime.storage.file_tree import flush
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalake import CommitProperties, DeltaTable

    from airflow_provider.runtime.sinks.delta.datafiles import DataFile


@dataclasses.dataclass(frozen=True)
class Change:
    """One version of the table to be.

    Attributes:
        added: files that get part of the table.
        removed: path and bytes of files that no longer are.
        transactions: numbers by application id, remembered as long as the table lives.
        facts: for people who read the table's history.
    """

    transactions: Mapping[str, int]
    facts: Mapping[str, Any]
    added: Sequence[DataFile] = ()
    removed: Sequence[tuple[str, int]] = ()


class DeltaLog:
    """The log of the table at *url*; not safe for threads.

    Args:
        url: the table's folder, as delta-rs calls it.
        storage_options: delta-rs' own.
    """

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        self.url = url
        self._storage_options = dict(storage_options) if storage_options else None
        self._table: DeltaTable | None = None

    @property
    def version(self) -> int:
        """Return the version that was last seen; -1 when none was."""
        return self._table.version() if self._table is not None else -1

    def load(self) -> DeltaTable | None:
        """Return the table as it is now, or None when there is none."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._table is not None:
            try:
                self._table.update_incremental()
            except Exception:  # noqa: BLE001 - opening it anew raises what matters
                self._table = None
            else:
                return self._table
        try:
            self._table = DeltaTable(self.url, storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        return self._table

    def create(self, schema: Mapping[str, Any], partition_by: Sequence[str]) -> None:
        """Make the table without files; raises when another one was faster.

        Crash safety: the table or nothing.
        """
        from deltalake import Schema
        from deltalake.transaction import create_table_with_add_actions

        create_table_with_add_actions(
            self.url,
            Schema.from_json(json.dumps(schema)),
            [],
            mode="error",
            partition_by=list(partition_by),
            storage_options=self._storage_options,
            commit_properties=_swapping({}, {}),
        )
        self._flush(0)

    def write(self, table: DeltaTable, change: Change) -> None:
        """Make *change* the version after the one that *table* was loaded at.

        Raises:
            Exception: of delta-rs; it may or may not have happened, which the next load tells.

        Crash safety: the whole version or nothing.
        """
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                file.path, file.size, file.partition, now_ms, data_change=True, stats=file.stats
            )
            for file in change.added
        ]
        actions += [
            RemoveAction(path, True, now_ms, size, partition_of(path))  # noqa: FBT003 - its own form
            for path, size in change.removed
        ]
        version = table.version() + 1
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=table.metadata().partition_columns,
            commit_properties=_swapping(change.transactions, change.facts),
        )
        self._flush(version)

    def _flush(self, version: int) -> None:
        """Make the entry survive a loss of power, as the record of its epoch does."""
        if local_path_of(self.url) is not None:
            flush(f"{self.url}/_delta_log", [f"{version:020d}.json"])


def active_paths(table: DeltaTable, prefixes: Iterable[str]) -> set[str]:
    """Return the paths below *prefixes* that are part of the table and that have all their rows.

    Args:
        table: a loaded table.
        prefixes: folders relative to the table, each with a ``/`` at its end.
    """
    import pyarrow as pa

    wanted = tuple(prefixes)
    # The log has paths as URLs; delta-rs takes them plain and gives them back escaped.
    listed = pa.table(table.get_add_actions()).column("path").to_pylist()
    return {path for quoted in listed if (path := unquote(quoted)).startswith(wanted)}


def partly_deleted(table: DeltaTable, prefixes: Iterable[str]) -> set[str]:
    """Return the addresses below *prefixes* of files that somebody deleted single rows of."""
    features = table.protocol().reader_features or ()
    if "deletionVectors" not in features:
        return set()
    import pyarrow as pa

    wanted = tuple(prefixes)
    marked = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    return {uri for uri in marked if any(prefix in uri for prefix in wanted)}


def _swapping(transactions: Mapping[str, int], facts: Mapping[str, Any]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=dict(facts) or None,
        max_commit_retries=0,
        app_transactions=[Transaction(app, number) for app, number in transactions.items()],
    )
