"""Maintenance of an Iceberg table: snapshots expire, and then the files that only they had go.

=====================================  ============================================================
a death                                the next maintenance
=====================================  ============================================================
before the list of files is put        starts again
after it                               finds files in it that snapshots have, and leaves them
after the snapshots have expired       deletes the files of the list that no snapshot has
while files are deleted                deletes the others; the list goes last
=====================================  ============================================================

The list has one name. Of two calls together one may replace the other's, which then deletes its
own files; if that one dies, they stay as orphans.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.maintenance.decision import (
    Held,
    Published,
    Since,
    Snapshot,
    plan_snapshots,
    why_revertible,
)
from airflow_provider.extensions.maintenance.report import Report, TableSize
from airflow_provider.runtime.api.errors import ConfigError, SinkError, SparkStreamError
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.extras import require_extra
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.refusals import refusal_of
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from airflow_provider.extensions.maintenance.decision import SnapshotExpiry
    from airflow_provider.extensions.maintenance.facts import Facts
    from airflow_provider.runtime.api.kit.clock import Clock

_PENDING: Final = "spark-stream-expired.json"
_LOST: Final = RetryPolicy(first_s=0.05, longest_s=2.0, for_s=300.0, jitter=0.5)
_LEAST_KEPT: Final = "history.expire.min-snapshots-to-keep"
_AGE: Final = "history.expire.max-snapshot-age-ms"
_FIVE_DAYS_S: Final = 5.0 * 24 * 3600  # Iceberg's own default
_SHOWN: Final = frozenset({"name", "type", "warehouse", "py-io-impl", "py-catalog-impl"})
_LEAST_CHARS: Final = 4
_MOST_BYTES: Final = 1 << 30


class IcebergTable:
    """The table *name* of a catalog, by its name in pyiceberg's configuration or by properties."""

    def __init__(self, table: str, catalog: str | Mapping[str, str]) -> None:
        self.table, self.name = table, f"iceberg:{table}"
        self._catalog = catalog

    def load(self) -> Table:
        """Return the current table.

        Raises:
            ConfigError: there is none, or the catalog refuses.
            OutageError: the catalog does not answer.
        """
        require_extra(f"{self.name}: maintain", "iceberg", "pyarrow", "pyiceberg.catalog")
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return self._open().load_table(self.table)
        except NoSuchTableError:
            raise ConfigError(
                f"{self.name}: the catalog has no such table; correct its name, or the catalog's. "
                "A Delta table is named by its path"
            ) from None
        except Exception as error:  # noqa: BLE001 - each catalog has errors of its own
            text = self._without_secrets(f"{type(error).__name__}: {error}")
            raise refusal_of(error, f"{self.name}: {text}") from None

    def _open(self) -> Catalog:
        from pyiceberg.catalog import load_catalog

        named = self._catalog
        properties = {"name": named} if isinstance(named, str) else dict(named)
        properties.setdefault("init_catalog_tables", "false")
        return load_catalog(properties.pop("name", "default"), **properties)

    def _without_secrets(self, text: str) -> str:
        from pyiceberg.utils.config import Config

        named = self._catalog
        known = Config().get_catalog_config(named) if isinstance(named, str) else named
        for key, value in (known or {}).items():
            if key not in _SHOWN and len(str(value)) >= _LEAST_CHARS:
                text = text.replace(str(value), "***")
        return " ".join(text.split())


def least_keep_s(table: Table) -> float:
    """Return how long the table keeps snapshots, in seconds: five days, or as it says."""
    text = table.metadata.properties.get(_AGE, "")
    return int(text) / 1000 if text.isdecimal() else _FIVE_DAYS_S


def maintain_iceberg(
    opened: IcebergTable,
    facts: Facts,
    keep_s: float,
    *,
    dry_run: bool = False,
    clock: Clock | None = None,
) -> Report:
    """Expire the snapshots that nothing needs, and delete the files that only they had.

    Crash safety: nothing that is committed is lost, and calling it again completes it.
    """
    clock = clock or SystemClock()
    before_ms = int((clock.now().timestamp() - keep_s) * 1000)
    table = opened.load()
    report = Report(opened.name, dry_run, before=_size_of(table))
    if not dry_run:
        deleted = _complete(table)
        report.deleted, report.deleted_bytes = len(deleted), sum(deleted.values())
    expiry = _plan(table, facts, before_ms)
    only_theirs = _only_in(table, set(expiry.ids))
    if not dry_run:
        expiry, only_theirs = _expire(opened, facts, before_ms, clock)
    report.held["expiry"] = {holder: Held(count) for holder, count in expiry.held.items()}
    report.expired = len(expiry.ids)
    report.deleted += len(only_theirs)
    report.deleted_bytes += sum(only_theirs.values())
    report.notes.append("compaction: Iceberg tables are not compacted by this command")
    report.after = _size_of(opened.load())
    return report


def _size_of(table: Table) -> TableSize:
    snapshot = table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    sizes = [
        entry.data_file.file_size_in_bytes
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]
    return TableSize(len(sizes), sum(sizes), len(table.metadata.snapshots))


# --- what may go ----------------------------------------------------------------------------------


def _plan(table: Table, facts: Facts, before_ms: int) -> SnapshotExpiry:
    queries = {each.query_id: each for each in facts.queries}
    metadata = table.metadata
    numbers = {each.snapshot_id: each.sequence_number or 0 for each in metadata.snapshots}
    named: dict[int, list[str]] = {}
    for name, ref in metadata.refs.items():
        kind = str(getattr(ref.snapshot_ref_type, "value", ref.snapshot_ref_type))
        named.setdefault(ref.snapshot_id, []).append(f"{kind} {name}")
    for version in facts.versions:
        if version.sink.startswith("iceberg:") and version.version in numbers:
            named.setdefault(version.version, []).append(version.holder)
    for snapshot_id in _least_kept(table):
        named.setdefault(snapshot_id, []).append(f"the table's property {_LEAST_KEPT}")
    since = [*_of_readers(facts, str(metadata.table_uuid), numbers)]
    return plan_snapshots(
        [_snapshot_of(each) for each in metadata.snapshots],
        before_ms=before_ms,
        named=named,
        since=since,
        needed=lambda published: why_revertible(published, queries),
    )


def _least_kept(table: Table) -> Iterator[int]:
    text = table.metadata.properties.get(_LEAST_KEPT, "1")
    left, snapshot = int(text) if text.isdecimal() else 1, table.metadata.current_snapshot()
    while snapshot is not None and left > 0:
        yield snapshot.snapshot_id
        left -= 1
        parent = snapshot.parent_snapshot_id
        snapshot = table.metadata.snapshot_by_id(parent) if parent is not None else None


def _of_readers(facts: Facts, uuid: str, numbers: Mapping[int, int]) -> Iterator[Since]:
    for position in facts.positions:
        offset = position.offset
        number = offset.get("sequence") if offset.get("uuid") == uuid else None
        snapshot_id = offset.get("snapshot_id")  # of Iceberg's own source
        if number is None and isinstance(snapshot_id, int):
            number = numbers.get(snapshot_id)
        if isinstance(number, int):
            holder = f"the reader's {position.holder}, at sequence number {number}"
            yield Since(number, holder)


def _snapshot_of(snapshot: Any) -> Snapshot:
    facts = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    query_id, epoch = facts.get("spark-stream.query-id"), facts.get("spark-stream.epoch")
    is_epoch = query_id is not None and epoch is not None
    published = Published(str(query_id), int(str(epoch))) if is_epoch else None
    number = snapshot.sequence_number or 0
    return Snapshot(snapshot.snapshot_id, number, snapshot.timestamp_ms, published)


# --- expiry ---------------------------------------------------------------------------------------


def _expire(
    opened: IcebergTable, facts: Facts, before_ms: int, clock: Clock
) -> tuple[SnapshotExpiry, dict[str, int]]:
    """Expire snapshots, and delete their files; retried while other writers win."""
    from pyiceberg.exceptions import CommitFailedException

    retries = Retries(_LOST, clock)
    while True:
        table = opened.load()
        expiry = _plan(table, facts, before_ms)
        if not expiry.ids:
            return expiry, {}
        only_theirs = _only_in(table, set(expiry.ids))
        _put_pending(table, only_theirs)
        failpoints.hit("maintenance.listed")
        try:
            _remove_snapshots(table, expiry.ids)
        except CommitFailedException as error:
            if not retries.failed():
                raise SinkError(f"{opened.name}: {error}") from error
            retries.pause()
            continue
        except SparkStreamError:
            raise
        except Exception as error:
            raise refusal_of(error, f"{opened.name}: {type(error).__name__}") from error
        failpoints.hit("maintenance.expired")
        _complete(opened.load())
        return expiry, only_theirs


def _remove_snapshots(table: Table, ids: tuple[int, ...]) -> None:
    """Expire snapshots, unless a branch or a tag has moved since the table was loaded."""
    from pyiceberg.table.update import (
        AssertRefSnapshotId,
        AssertTableUUID,
        RemoveSnapshotsUpdate,
    )

    same = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in table.metadata.refs.items()
    )
    table._do_commit(
        updates=(RemoveSnapshotsUpdate.model_validate({"snapshot-ids": list(ids)}),),
        requirements=(AssertTableUUID(uuid=table.metadata.table_uuid), *same),
    )


def _files_of(table: Table, snapshot: Any, seen: dict[str, list[Any]]) -> Iterator[tuple[str, int]]:
    """Yield the files of a snapshot, and those that it has removed itself, with their bytes."""
    from pyiceberg.manifest import ManifestEntryStatus

    yield snapshot.manifest_list, 0
    for manifest in snapshot.manifests(table.io):
        yield manifest.manifest_path, manifest.manifest_length
        if manifest.manifest_path not in seen:
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            seen[manifest.manifest_path] = [
                (e.status == ManifestEntryStatus.DELETED, e.snapshot_id, e.data_file.file_path,
                 e.data_file.file_size_in_bytes)
                for e in entries
            ]  # fmt: skip
        for is_removed, by, path, size in seen[manifest.manifest_path]:
            if not is_removed or by == snapshot.snapshot_id:
                yield path, size


def _only_in(table: Table, ids: set[int]) -> dict[str, int]:
    """Return the files, with their bytes, that only these snapshots have."""
    seen: dict[str, list[Any]] = {}
    theirs: dict[str, int] = {}
    kept: set[str] = set()
    for snapshot in table.metadata.snapshots if ids else ():
        found = _files_of(table, snapshot, seen)
        if snapshot.snapshot_id in ids:
            theirs.update(found)
        else:
            kept.update(path for path, _ in found)
    return {path: size for path, size in theirs.items() if path not in kept}


def _pending_path(table: Table) -> str:
    return f"{table.metadata.location.rstrip('/')}/metadata/{_PENDING}"


def _put_pending(table: Table, files: Mapping[str, int]) -> None:
    with table.io.new_output(_pending_path(table)).create(overwrite=True) as out:
        out.write(json.dumps({"files": dict(files)}).encode())


def _folders_of(table: Table) -> tuple[str, ...]:
    """Return the folders of the table's files: a list of another program's making names others."""
    metadata = table.metadata
    others = [metadata.properties.get(f"write.{kind}.path") for kind in ("data", "metadata")]
    return tuple(f"{top.rstrip('/')}/" for top in (metadata.location, *others) if top)


def _complete(table: Table) -> dict[str, int]:
    """Delete the listed files that no snapshot has; return them."""
    pending = table.io.new_input(_pending_path(table))
    if not pending.exists():
        return {}
    with pending.open() as source:
        listed: dict[str, int] = read_json(source.read(), at_most_bytes=_MOST_BYTES)["files"]
    seen: dict[str, list[Any]] = {}
    kept = {path for s in table.metadata.snapshots for path, _ in _files_of(table, s, seen)}
    tops = _folders_of(table)
    gone = {p: size for p, size in listed.items() if p not in kept and p.startswith(tops)}
    for path in gone:
        with contextlib.suppress(FileNotFoundError):
            table.io.delete(path)
        failpoints.hit("maintenance.deleted_one")
    table.io.delete(_pending_path(table))
    return gone
