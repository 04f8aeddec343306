"""Changes of an Iceberg table: what a snapshot did, and whether its files are new rows.

The counts come from the snapshot's manifest list, which every writer must fill in. Those of its
summary are optional; a removal that only the summary tells of counts, too.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.extensions.iceberg.history import described
from airflow_provider.extensions.iceberg.table_options import APPENDED_ROWS
from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table.snapshots import Snapshot

    from airflow_provider.extensions.iceberg.table_options import TableOptions


@dataclasses.dataclass(frozen=True)
class Change:
    """The files and rows that a snapshot added and removed."""

    added_files: int
    added_rows: int
    removed_files: int
    removed_rows: int
    added_delete_files: int

    @classmethod
    def of(cls, snapshot: Snapshot, manifests: Iterable[ManifestFile]) -> Change:
        from pyiceberg.manifest import ManifestContent

        own = [m for m in manifests if m.added_snapshot_id == snapshot.snapshot_id]
        data = [m for m in own if m.content == ManifestContent.DATA]
        deletes = [m for m in own if m.content == ManifestContent.DELETES]
        return cls(
            added_files=sum(m.added_files_count or 0 for m in data),
            added_rows=sum(m.added_rows_count or 0 for m in data),
            removed_files=max(
                sum(m.deleted_files_count or 0 for m in data),
                _count_in_summary(snapshot, "deleted-data-files"),
            ),
            removed_rows=sum(m.deleted_rows_count or 0 for m in data),
            added_delete_files=max(
                sum(m.added_files_count or 0 for m in deletes),
                _count_in_summary(snapshot, "added-delete-files"),
            ),
        )

    @property
    def removes(self) -> bool:
        return self.removed_files > 0 or self.added_delete_files > 0


def is_read(snapshot: Snapshot, io: FileIO, options: TableOptions) -> bool:
    """Whether a snapshot's added files are new rows; False if the snapshot is passed over.

    Raises:
        ConfigError: the snapshot removed or changed rows, and the options do not allow for it.
    """
    change = Change.of(snapshot, snapshot.manifests(io))
    operation = snapshot.summary.operation.value if snapshot.summary else ""
    if operation == "replace":
        _check_compaction(snapshot, change, options)
        return False
    if not change.removes:
        return change.added_files > 0
    if change.added_files == 0 and options.changes == APPENDED_ROWS:
        return False
    if change.added_files == 0:
        raise ConfigError(
            f"{options.name}: {described(snapshot)} removed rows that the query may have read. "
            f"changes={APPENDED_ROWS!r} passes over such snapshots; otherwise start a new query"
        )
    raise ConfigError(
        f"{options.name}: {described(snapshot)} removed rows and added others, and which of these "
        "are new is not known. Start a new query with starts='snapshot', or with this snapshot's "
        f"id, starts={snapshot.snapshot_id}, to read only what comes after it"
    )


def _check_compaction(snapshot: Snapshot, change: Change, options: TableOptions) -> None:
    """Refuse a compaction that is not proven to have kept the rows."""
    missing = change.removed_rows - change.added_rows
    if change.added_delete_files == 0 and 0 <= missing <= _deleted_before(snapshot):
        return
    if change.added_files == change.removed_files == 0:
        return  # it has rewritten delete files alone
    raise ConfigError(
        f"{options.name}: {described(snapshot)} replaced {change.removed_rows} rows by "
        f"{change.added_rows}, with {change.added_delete_files} new delete files, so it is not "
        "proven to be a compaction. Check its writer, and start a new query"
    )


def _deleted_before(snapshot: Snapshot) -> int:
    """Return how many rows a compaction may leave out: those that were deleted by position."""
    keys = ("total-position-deletes", "removed-position-deletes")
    return sum(_count_in_summary(snapshot, key) for key in keys)


def _count_in_summary(snapshot: Snapshot, key: str) -> int:
    """Return a count of a snapshot's summary; 0 without it."""
    text = (snapshot.summary.additional_properties.get(key) if snapshot.summary else None) or "0"
    return int(text) if text.isdecimal() else 0
