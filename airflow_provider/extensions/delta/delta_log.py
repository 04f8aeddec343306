"""A Delta table's log: opened once, read incrementally, written by compare-and-swap.

delta-rs retries a lost race by itself by default, and then lets two creators of one table both win,
the second by replacing the first one's schema. So retries are off everywhere: each version is
written for the version that was read, or not at all.
"""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.delta.add_file import partition_of
from airflow_provider.runtime.api.kit.file_trees import flush
from airflow_provider.runtime.api.kit.locations import local_path_of
from airflow_provider.runtime.api.kit.staging import folder_name, is_inside
from airflow_provider.runtime.api.sink_errors import reading, tampered_record_error
from airflow_provider.runtime.api.sinks import key_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltalake import CommitProperties, DeltaTable

    from airflow_provider.extensions.delta.add_file import DataFile
    from airflow_provider.runtime.api.sinks import Committable, EpochId, Writer


APPEND_ONLY: Final = "delta.appendOnly"


class RemovedFile(NamedTuple):
    """A file that leaves the table: its path, its bytes, and the texts of its partition."""

    path: str
    size: int
    partition: Mapping[str, str | None]


@dataclasses.dataclass(frozen=True)
class TableChange:
    """The next version of the table.

    Attributes:
        transactions: the numbers that it records, by their names.
        facts: for readers of the table's history.
        added: files that become part of it.
        removed: files of any writer that leave it.
    """

    transactions: Mapping[str, int]
    facts: Mapping[str, Any]
    added: Sequence[DataFile] = ()
    removed: Sequence[RemovedFile] = ()


class DeltaLog:
    """The log of the table at *url*, delta-rs' name of its folder; not safe for threads."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        self.url = url
        self._storage_options = dict(storage_options) if storage_options else None
        self._table: DeltaTable | None = None

    @property
    def version(self) -> int:
        return self._table.version() if self._table is not None else -1

    def load(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        if self._table is not None:
            try:
                self._table.update_incremental()
            except Exception:  # noqa: BLE001 - opening it again raises what matters
                self._table = None
            else:
                return self._table
        try:
            self._table = DeltaTable(self.url, storage_options=self._storage_options)
        except TableNotFoundError:
            return None
        return self._table

    def create(self, schema: Mapping[str, Any], partition_by: Sequence[str]) -> None:
        """Make the table without files; raises if another writer was faster."""
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

    def add_columns(
        self, table: DeltaTable, fields: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]
    ) -> None:
        """Add columns as the version after the one that *table* was loaded at.

        It is a version of its own: delta-rs' transactions of files change no schema.

        Raises:
            Exception: of delta-rs; it may or may not have happened, which the next load tells.

        Crash safety: the whole version or nothing.
        """
        from deltalake import Schema

        added = Schema.from_json(json.dumps({"type": "struct", "fields": list(fields)}))
        version = table.version() + 1
        table.alter.add_columns(list(added.fields), commit_properties=_swapping({}, facts))
        self._flush(version)

    def write(self, table: DeltaTable, change: TableChange) -> None:
        """Write *change* as the version after the one that *table* was loaded at.

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
            RemoveAction(path, True, now_ms, size, dict(partition))  # noqa: FBT003 - its own form
            for path, size, partition in change.removed
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
    """Return the table's paths below *prefixes*, folders relative to it that end with ``/``."""
    import pyarrow as pa

    wanted = tuple(prefixes)
    # The log has paths as URLs; delta-rs takes them plain and gives them back escaped.
    listed = pa.table(table.get_add_actions()).column("path").to_pylist()
    return {path for quoted in listed if (path := unquote(quoted)).startswith(wanted)}


def partly_deleted(table: DeltaTable, prefixes: Iterable[str]) -> set[str]:
    """Return the addresses below *prefixes* of files from which single rows were deleted."""
    features = table.protocol().reader_features or ()
    if "deletionVectors" not in features:
        return set()
    import pyarrow as pa

    wanted = tuple(prefixes)
    marked = pa.table(table.deletion_vectors()).column("filepath").to_pylist()
    # Addresses are escaped, and paths are not.
    return {
        uri
        for uri in marked
        if any(prefix in text for prefix in wanted for text in {uri, unquote(uri)})
    }


def is_append_only(table: DeltaTable) -> bool:
    """Whether no row may leave the table."""
    return table.metadata().configuration.get(APPEND_ONLY, "").lower() == "true"


def _swapping(transactions: Mapping[str, int], facts: Mapping[str, Any]) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata=dict(facts) or None,
        max_commit_retries=0,
        app_transactions=[Transaction(app, number) for app, number in transactions.items()],
    )


def folder_of(epoch: EpochId) -> str:
    """Return the folder of an epoch's files, relative to the table."""
    return f"{home_of(epoch.query_id)}/{folder_name(epoch)}"


def home_of(query_id: str) -> str:
    """Return the folder of a query's epochs, relative to the table."""
    return f"spark-stream-{query_id}"


def files_of(committable: Committable) -> list[tuple[str, int]]:
    """Return the path relative to the table, and the bytes, of each staged file; refuse others."""
    epoch, kind = committable.epoch, "delta"
    with reading(kind, committable):
        files = [(path, int(size)) for path, size in committable.data["files"]]
    for path, _ in files:
        if not (is_inside(path) and path.startswith(f"{folder_of(epoch)}/")):
            raise tampered_record_error(kind, epoch, path)
    return files


def last_epoch(table: DeltaTable, query_id: str) -> int:
    """Return the last settled epoch: it and those before are never published (again)."""
    version = table.transaction_version(query_id)
    return -1 if version is None else version


def is_reverted(table: DeltaTable, epoch: EpochId) -> bool:
    """Whether the epoch was reverted, published or not."""
    first = table.transaction_version(_first_mark(epoch.query_id))
    return first is not None and epoch.epoch >= first


def has_files_of(table: DeltaTable, epoch: EpochId) -> bool:
    """Whether the table has files of the epoch, from any of its drivers."""
    return bool(active_paths(table, [f"{home_of(epoch.query_id)}/{epoch.epoch}-"]))


def may_be_named(table: DeltaTable, epoch: EpochId) -> bool:
    """Whether a version of the table that can still be read names the staging's files."""
    if epoch.epoch > last_epoch(table, epoch.query_id):
        return False
    if is_reverted(table, epoch):
        # VACUUM removes them when no reader can read the older version any more.
        return epoch.epoch < (table.transaction_version(_published_mark(epoch.query_id)) or 0)
    return bool(active_paths(table, [f"{folder_of(epoch)}/"]))


def epochs_after(table: DeltaTable, query_id: str, epoch: int) -> set[int]:
    """Return the query's epochs from *epoch* on whose files are part of the table."""
    home = f"{home_of(query_id)}/"
    folders = {path.removeprefix(home).partition("/")[0] for path in active_paths(table, [home])}
    numbers = (name.partition("-")[0] for name in folders)
    return {int(number) for number in numbers if number.isdecimal() and int(number) >= epoch}


def _first_mark(query_id: str) -> str:
    return f"{query_id}/reverted-from"


def _published_mark(query_id: str) -> str:
    return f"{query_id}/published-below"


def removal(
    table: DeltaTable,
    one: EpochId,
    epochs: set[int],
    removed: Sequence[RemovedFile],
    added: Sequence[DataFile] = (),
) -> TableChange:
    """Return the version that removes *epochs* of a query, and refuses them from then on."""
    first, last = _first_mark(one.query_id), _published_mark(one.query_id)
    before, had = table.transaction_version(first), table.transaction_version(last)
    settled = last_epoch(table, one.query_id)
    marks = {
        one.query_id: max(settled, *epochs),
        first: min(epochs) if before is None else min(before, *epochs),
        last: settled + 1 if had is None else had,
    }
    return TableChange(
        marks,
        {"sparkStream": {"query": one.query, "queryId": one.query_id, "tookBack": sorted(epochs)}},
        added=added,
        removed=removed,
    )


def removed_files(published: Sequence[Committable]) -> list[RemovedFile]:
    """Return the staged files of *published* as they leave the table."""
    files = (file for committable in published for file in files_of(committable))
    return [RemovedFile(path, size, partition_of(path)) for path, size in files]


def mark_of(writer: Writer | None) -> dict[str, int]:
    """Return the transaction that records which job directory has published; none without one."""
    return {} if writer is None else {_mark(writer.key): int(writer.identity, 16)}


def marked(table: DeltaTable, job_dir: str) -> list[str]:
    """Return the identity that has published last for a job directory's address."""
    number = table.transaction_version(_mark(key_of(job_dir)))
    return [] if number is None else [f"{number:015x}"]


def _mark(key: str) -> str:
    return f"spark-stream/{key}"


def commit_info(committable: Committable) -> dict[str, Any]:
    """Return the facts of an epoch for readers of the table's history."""
    epoch, writer = committable.epoch, committable.writer
    job = {"jobDir": writer.job_dir, "job": writer.identity} if writer is not None else {}
    return {
        "sparkStream": {
            "query": epoch.query,
            "queryId": epoch.query_id,
            "epoch": epoch.epoch,
            "token": epoch.token,
            **job,
            **({"slice": committable.data["slice"]} if "slice" in committable.data else {}),
        }
    }
