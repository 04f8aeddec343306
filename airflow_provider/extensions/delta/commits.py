"""Commits of a Delta table: the entries of its log, and the rows that each of them changes. Pure.

Only an entry says whether a commit appends, deletes, updates or rewrites rows; the list of a
version's files does not.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from airflow_provider.extensions.delta.partition_values import read_value
from airflow_provider.runtime.api.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.extensions.delta.deleted_rows import DeletedRows

# They write back rows of the files that they remove, and no others.
_NEVER_APPENDS: Final = frozenset({"DELETE", "UPDATE", "TRUNCATE"})
_ADDS_OLD_FILES: Final = "RESTORE"
_OPTIONAL: Final[Mapping[str, Any]] = {"partitionValues": {}, "size": 0}  # of a removed file
_INSERTED: Final = ("numTargetRowsInserted", "num_target_rows_inserted")  # Delta's name, delta-rs'


class TableFile(NamedTuple):
    """A data file of the table.

    Attributes:
        path: relative to the table, or a URL, as the filesystem has it.
        size: in bytes.
        rows: by the writer's statistics; None without them.
        partition: the values of the columns that partitioned the table when it was added. A file
            of a change data feed has there the feed's columns with one value in all its rows, too.
        deleted: its rows that a deletion vector deletes; None without one.
    """

    path: str
    size: int
    rows: int | None
    partition: Mapping[str, Any]
    deleted: DeletedRows | None = None


@dataclasses.dataclass(frozen=True)
class Commit:
    """An entry of the log.

    Attributes:
        version: its number.
        timestamp_ms: when it was committed, by the writer's clock; None if the entry has no time.
        operation: its name in the entry, such as ``MERGE``.
        inserted_rows: of a merge, by the writer's metrics.
        added: the files with new data, in the order of their paths.
        removed: the files with data that is deleted or replaced, in the order of their paths.
        changed: the change data files, in the order of their paths.
        with_vector: a file that it adds or removes with a deletion vector.
        without_partition: a file that it removes without the values of its partition.
        metadata: the table's metadata, if the commit changes them.
        protocol: the table's protocol, if the commit changes it.
    """

    version: int
    timestamp_ms: int | None
    operation: str
    inserted_rows: int | None
    added: tuple[TableFile, ...]
    removed: tuple[TableFile, ...]
    changed: tuple[TableFile, ...]
    with_vector: str | None
    without_partition: str | None
    metadata: Mapping[str, Any] | None
    protocol: Mapping[str, Any] | None

    def appended(self, *, skip_changes: bool) -> tuple[TableFile, ...]:
        """Return the files whose rows the commit appends.

        A commit that only rewrites files appends none.

        Args:
            skip_changes: whether deletes and updates are skipped. A commit that may
                have inserted rows into files with older ones is refused all the same.

        Raises:
            ConfigError: the commit changes rows that were read before.
        """
        if not self.removed and self.operation != _ADDS_OLD_FILES:
            if self.with_vector is not None:
                raise ConfigError(
                    f"version {self.version} ({self.operation}) adds {self.with_vector} with a "
                    "deletion vector, which this source cannot read; start from a later snapshot, "
                    "after REORG TABLE … APPLY (PURGE)"
                )
            return self.added
        keeps_rows = self.operation in _NEVER_APPENDS or self.inserted_rows == 0
        appends_none = not self.added or keeps_rows
        if appends_none and (skip_changes or not self.removed):
            return ()
        raise self._refusal(appends_none=appends_none)

    def _refusal(self, *, appends_none: bool) -> ConfigError:
        what = "deletes or updates rows" if appends_none else "replaces or restores rows"
        way = "changes='appended rows only' skips it, or " if appends_none else ""
        return ConfigError(
            f"version {self.version} ({self.operation}) {what} that were read before, which a "
            f"stream of appended rows cannot retract; {way}begin with a new query from a snapshot "
            "(starts='snapshot')"
        )


def parse_commit(
    version: int, lines: Iterable[bytes], types: Mapping[str, Any], names: Mapping[str, str]
) -> Commit:
    """Read an entry of the log.

    Args:
        version: its number.
        lines: the actions in JSON.
        types: the Delta types of the columns that may have partitioned the table.
        names: of these columns, by the names that entries have for them.

    Raises:
        CorruptDocumentError: it is not what Delta's protocol says.
    """
    info: Mapping[str, Any] = {}
    actions: dict[str, Mapping[str, Any]] = {}
    added: list[TableFile] = []
    removed: list[TableFile] = []
    changed: list[TableFile] = []
    with_vector = without_partition = None
    try:
        for line in lines:
            action = read_json(line) if line.strip() else {}
            info = action.get("commitInfo") or info
            actions |= {k: action[k] for k in ("metaData", "protocol") if action.get(k)}
            if (add := action.get("add")) and add["dataChange"]:
                added.append(_file_of(add, types, names))
                with_vector = added[-1].path if add.get("deletionVector") else with_vector
            if (remove := action.get("remove")) and remove["dataChange"]:
                removed.append(_file_of({**_OPTIONAL, **_known(remove)}, types, names))
                with_vector = removed[-1].path if remove.get("deletionVector") else with_vector
                if remove.get("partitionValues") is None:
                    without_partition = removed[-1].path
            if cdc := action.get("cdc"):
                changed.append(_file_of(cdc, types, names))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDocumentError(
            f"version {version} of its log cannot be read: {type(error).__name__}: {error}"
        ) from error
    return Commit(
        version=version,
        timestamp_ms=_whole(info.get("inCommitTimestamp", info.get("timestamp"))),
        operation=str(info.get("operation") or "an unnamed operation"),
        inserted_rows=_inserted(info),
        added=_sorted(added),
        removed=_sorted(removed),
        changed=_sorted(changed),
        with_vector=with_vector,
        without_partition=without_partition,
        metadata=actions.get("metaData"),
        protocol=actions.get("protocol"),
    )


def _file_of(
    action: Mapping[str, Any], types: Mapping[str, Any], names: Mapping[str, str]
) -> TableFile:
    stats = read_json(action["stats"]) if action.get("stats") else {}
    values = {names.get(n, n): text for n, text in action["partitionValues"].items()}
    partition = {n: read_value(text, types[n]) for n, text in values.items() if n in types}
    rows = _whole(stats.get("numRecords"))
    return TableFile(unquote(action["path"]), int(action["size"]), rows, partition)


def _known(remove: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in remove.items() if value is not None}


def _sorted(files: list[TableFile]) -> tuple[TableFile, ...]:
    return tuple(sorted(files, key=lambda file: file.path))


def _inserted(info: Mapping[str, Any]) -> int | None:
    metrics = info.get("operationMetrics") or {}
    found = (_whole(metrics[name]) for name in _INSERTED if name in metrics)
    return next(found, None) if info.get("operation") == "MERGE" else None


def _whole(value: Any) -> int | None:
    is_text = isinstance(value, str) and value.isdecimal()  # as Delta writes its metrics
    return int(value) if type(value) is int or is_text else None
