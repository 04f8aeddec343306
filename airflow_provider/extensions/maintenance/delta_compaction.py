"""Compaction of a Delta table: small files become one, in a version that changes no row.

The files of a call are written to ``spark-stream-maintenance/<id>/``, which no version names yet.
A version is put if it is absent, for the version that was read; marks ``_try-<version>`` in the
folder say for which versions it was tried. So it is known at any time whether the folder's files
are a part of the table, can still become one, or never will.

=====================================  ============================================================
a death                                the next maintenance
=====================================  ============================================================
while files are written                removes them, once another version is there
before the version is put              the same
after it                               finds it in the log, and removes the marks
while it removes the files of another  removes the rest; ``_removing`` goes last
=====================================  ============================================================

A process that stood still cannot name removed files: it puts its mark and then looks for
``_removing``; who removes puts ``_removing`` and then looks for marks. One of them sees the other.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import enum
import json
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.extensions.maintenance.delta_files import active_files, merged_stats, types_of
from airflow_provider.runtime.api.errors import SinkError, SparkStreamError
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.file_trees import flush
from airflow_provider.runtime.api.kit.retry import Retries, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalake import DeltaTable

    from airflow_provider.extensions.maintenance.decision import Compaction, DataFile
    from airflow_provider.extensions.maintenance.delta_files import ActiveFiles, DeltaFiles
    from airflow_provider.runtime.api.kit.clock import Clock

HOME: Final = "spark-stream-maintenance"
_TRIED: Final = re.compile(r"_try-(\d+)")
_REMOVING: Final = "_removing"
_BINS_AT_ONCE: Final = 32  # are one version: a death loses the work of one
_ROW_GROUP_BYTES: Final = 128 * 1024 * 1024
_ROWS: Final = 64 * 1024
_LEFT: Final = dt.timedelta(hours=1)  # politeness: a folder that changed since is left to its owner
_LOST: Final = RetryPolicy(first_s=0.01, longest_s=1.0, for_s=300.0, jitter=0.5)
_FAILURES: Final = 3


class Rewritten(NamedTuple):
    """A bin and the file that has its rows."""

    inputs: tuple[DataFile, ...]
    path: str
    size: int
    stats: str


class Fate(enum.Enum):
    """What becomes of the files in a folder of a compaction."""

    COMMITTED = "committed"
    OPEN = "open"
    LOST = "lost"
    UNKNOWN = "unknown"


class Compactor:
    """Compacts one table, by the plan that *plan* makes of a version's files."""

    def __init__(
        self,
        files: DeltaFiles,
        plan: Callable[[Sequence[DataFile]], Compaction],
        clock: Clock,
    ) -> None:
        self._files, self._plan, self._clock = files, plan, clock
        self._skipped: set[str] = set()
        self.compacted = 0
        self.written = 0

    def run(self) -> None:
        """Compact until nothing is left to do. Crash safety: see the module."""
        self._collect_leftovers()
        while True:
            table = self._files.load()
            found = active_files(table)
            bins = self._bins(found)
            if not bins:
                return
            folder = _Folder(self._files, uuid.uuid4().hex)
            folder.mark(table.version())
            try:
                done = [
                    each for each in (self._rewrite(table, found, b, folder) for b in bins) if each
                ]
                failpoints.hit("maintenance.written")
                self._commit(str(table.metadata().id), folder, done)
            finally:
                folder.leave(self._files.load().version())

    def _bins(self, found: ActiveFiles) -> list[tuple[DataFile, ...]]:
        left = [file for file in found.files if file.path not in self._skipped]
        return [*self._plan(left).bins][:_BINS_AT_ONCE]

    def _rewrite(
        self, table: DeltaTable, found: ActiveFiles, inputs: tuple[DataFile, ...], folder: _Folder
    ) -> Rewritten | None:
        """Write the rows of a bin to one file; files of another schema than its first are left."""
        path = f"{folder.path}/part-{uuid.uuid4().hex[:12]}.parquet"
        try:
            same, rows = _write_rows(self._files.filesystem, inputs, path)
        except FileNotFoundError:  # it left the table since, and was deleted
            self._skipped.update(file.path for file in inputs)
            return None
        self._skipped.update(file.path for file in inputs if file not in same)
        of_inputs = [found.facts[file.path] for file in same]
        if len(same) == 1:
            self._skipped.add(same[0].path)
            self._files.filesystem.delete_file(path)
            return None
        known = sum(row["num_records"] or 0 for row in of_inputs)
        if any(row["num_records"] is None for row in of_inputs):
            stats = json.dumps({"numRecords": rows})
        elif known != rows:
            raise SinkError(
                f"{self._files.name}: {same[0].path} and {len(same) - 1} more have {rows:,} rows, "
                f"and the table's log says {known:,}; nothing was compacted"
            )
        else:
            stats = merged_stats(of_inputs, types_of(table))
        size = self._files.filesystem.get_file_info([path])[0].size
        if self._files.is_local:
            flush(f"{self._files.url}/{folder.path}", [path.rpartition("/")[2]])
        return Rewritten(tuple(same), path, size, stats)

    def _commit(self, table_id: str, folder: _Folder, work: Sequence[Rewritten]) -> None:
        """Put the version, unless other writers have removed what it replaces."""
        retries, failures, left = Retries(_LOST, self._clock), 0, [*work]
        while left:
            table = self._files.load()
            if str(table.metadata().id) != table_id:
                return
            present = {f.path for f in active_files(table).files if not f.obstacle}
            left = [each for each in left if all(f.path in present for f in each.inputs)]
            if not left or not folder.mark(table.version()):
                return
            folder.is_tried = True
            try:
                _put_version(self._files, table, left)
            except SparkStreamError:
                raise
            except Exception as error:  # delta-rs and the stores have errors of their own
                now = self._files.load().version()
                fate = folder.fate(now)
                if fate is not Fate.COMMITTED:
                    failures = 0 if now != table.version() else failures + 1
                    if failures >= _FAILURES or not retries.failed():
                        raise SinkError(f"{self._files.name}: {error}") from error
                    retries.pause()
                    continue
            failpoints.hit("maintenance.committed")
            self.compacted += sum(len(each.inputs) for each in left)
            self.written += len(left)
            folder.settle({each.path for each in left})
            return

    def _collect_leftovers(self) -> None:
        before = dt.datetime.now(dt.timezone.utc) - _LEFT
        for info in self._files.names(HOME):
            folder = _Folder(self._files, info.path.rpartition("/")[2])
            if folder.changed_since(before):
                continue
            fate = folder.fate(self._files.load().version())
            if fate is Fate.COMMITTED:
                folder.settle(None)
            elif fate is Fate.LOST:
                folder.remove()


class _Folder:
    """A folder of files that one version may name."""

    def __init__(self, files: DeltaFiles, name: str) -> None:
        self._files = files
        self.path = f"{HOME}/{name}"
        self.is_tried = False

    def mark(self, version: int) -> bool:
        """Record that the version after *version* is tried; False if the files are removed."""
        self._files.filesystem.create_dir(self.path, recursive=True)
        self._put(f"_try-{version}")
        return _REMOVING not in self._names()

    def fate(self, now: int) -> Fate:
        """Return what becomes of its files; *now* is the table's version, or an earlier one."""
        tried = [int(match[1]) for name in self._names() if (match := _TRIED.fullmatch(name))]
        if not tried:
            return Fate.UNKNOWN
        fates = {self._fate_of(version, now) for version in tried}
        order = (Fate.COMMITTED, Fate.OPEN, Fate.UNKNOWN, Fate.LOST)
        return next(fate for fate in order if fate in fates)

    def _fate_of(self, version: int, now: int) -> Fate:
        entry = self._files.entry(version + 1)
        if entry is None:
            return Fate.UNKNOWN if now > version else Fate.OPEN
        is_ours = any(path.startswith(f"{self.path}/") for path in entry.added)
        return Fate.COMMITTED if is_ours else Fate.LOST

    def settle(self, named: set[str] | None) -> None:
        """Remove the marks of a folder whose version was put, and the files that it lacks."""
        if named is None:
            named = self._named()
        for name in self._names():
            path = f"{self.path}/{name}"
            if not _TRIED.fullmatch(name) and name != _REMOVING and path not in named:
                self._delete(name)
        self._forget()

    def _named(self) -> set[str]:
        tried = [int(match[1]) for name in self._names() if (match := _TRIED.fullmatch(name))]
        entries = [self._files.entry(version + 1) for version in tried]
        return {path for entry in entries if entry is not None for path in entry.added}

    def leave(self, now: int) -> None:
        """Remove the files that this process has written, unless a version may name them."""
        if not self.is_tried:
            self._remove_all()
        elif self.fate(now) is Fate.LOST:
            self.remove()

    def remove(self) -> None:
        """Remove files that no version names, or will; see the module for the order."""
        self._put(_REMOVING)
        if self.fate(self._files.load().version()) is not Fate.LOST:
            self._delete(_REMOVING)
            return
        self._remove_all()

    def _remove_all(self) -> None:
        for name in self._names():
            if not _TRIED.fullmatch(name) and name != _REMOVING:
                self._delete(name)
        self._forget()
        if self._files.is_local:
            with contextlib.suppress(OSError):
                self._files.filesystem.delete_dir(self.path)

    def _forget(self) -> None:
        for name in sorted(self._names(), key=lambda each: each == _REMOVING):
            if _TRIED.fullmatch(name) or name == _REMOVING:
                self._delete(name)

    def changed_since(self, moment: dt.datetime) -> bool:
        return any(info.mtime and info.mtime > moment for info in self._files.names(self.path))

    def _names(self) -> list[str]:
        return [info.path.rpartition("/")[2] for info in self._files.names(self.path)]

    def _put(self, name: str) -> None:
        # An empty one: pyarrow gives small writes to delta-rs as what it does not take.
        self._files.filesystem.open_output_stream(f"{self.path}/{name}").close()

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.filesystem.delete_file(f"{self.path}/{name}")


def _write_rows(
    filesystem: Any, inputs: Sequence[DataFile], path: str
) -> tuple[list[DataFile], int]:
    """Write the rows of the files with the first one's schema; return these files, and how many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    same: list[DataFile] = []
    rows = 0
    with contextlib.ExitStack() as opened:
        out = opened.enter_context(filesystem.open_output_stream(path))
        writer: Any = None
        for file in inputs:
            with filesystem.open_input_file(file.path) as source:
                # Delta has no nanoseconds, which old files of Spark's would be read as.
                parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
                schema = parquet.schema_arrow
                if writer is None:
                    codec = _codec_of(parquet.metadata)
                    writer = opened.enter_context(pq.ParquetWriter(out, schema, compression=codec))
                elif not schema.equals(writer.schema):
                    continue
                same.append(file)
                rows += parquet.metadata.num_rows
                for group in _row_groups(parquet):
                    writer.write_table(pa.Table.from_batches(group, writer.schema))
    return same, rows


def _row_groups(parquet: Any) -> Iterator[list[Any]]:
    group: list[Any] = []
    for batch in parquet.iter_batches(batch_size=_ROWS):
        group.append(batch)
        if sum(each.nbytes for each in group) >= _ROW_GROUP_BYTES:
            yield group
            group = []
    if group:
        yield group


def _codec_of(metadata: Any) -> str:
    if not metadata.num_row_groups or not metadata.row_group(0).num_columns:
        return "snappy"
    codec = str(metadata.row_group(0).column(0).compression).lower()
    return "none" if codec == "uncompressed" else codec


def _put_version(files: DeltaFiles, table: DeltaTable, work: Sequence[Rewritten]) -> None:
    """Put the next version; raises if another writer was faster."""
    from deltalake import CommitProperties, PostCommitHookProperties
    from deltalake.transaction import AddAction, RemoveAction

    now_ms = time.time_ns() // 1_000_000
    columns = table.metadata().partition_columns
    actions: list[AddAction | RemoveAction] = []
    for each in work:
        partition = dict(zip(columns, each.inputs[0].group, strict=True))
        actions.append(
            AddAction(each.path, each.size, partition, now_ms, data_change=False, stats=each.stats)
        )
        actions += [
            RemoveAction(file.path, False, now_ms, file.size, partition)  # noqa: FBT003
            for file in each.inputs
        ]
    version = table.version() + 1
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by=columns,
        commit_properties=CommitProperties(
            custom_metadata={"sparkStreamMaintenance": {"compacted": len(work)}},
            max_commit_retries=0,
        ),
        # What expires is decided elsewhere, by what readers and reverts need.
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
    if files.is_local:
        flush(f"{files.url}/_delta_log", [f"{version:020d}.json"])
