"""Maintenance of a Delta table: compaction, then the deletion of files that left it long ago.

Deleted are files which the log says have left the table. A file that the log does not name is left
alone, so no staged file is deleted. Each file is deleted by itself: a death in between leaves the
others to the next call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from airflow_provider.extensions.maintenance.decision import (
    Expired,
    Since,
    plan_compaction,
    plan_expiry,
    why_revertible,
)
from airflow_provider.extensions.maintenance.delta_compaction import Compactor
from airflow_provider.extensions.maintenance.delta_files import (
    DeltaFiles,
    active_files,
    published_in,
)
from airflow_provider.extensions.maintenance.report import Report, TableSize
from airflow_provider.runtime.api.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.api.kit.clock import SystemClock
from airflow_provider.runtime.api.kit.failpoints import failpoints
from airflow_provider.runtime.api.kit.messages import first_line
from airflow_provider.runtime.base.clock import parse_duration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from deltalake import DeltaTable

    from airflow_provider.extensions.maintenance.decision import (
        Compaction,
        DataFile,
        Expiry,
    )
    from airflow_provider.extensions.maintenance.delta_files import Entry, Removed
    from airflow_provider.extensions.maintenance.facts import Facts, QueryEpochs
    from airflow_provider.runtime.api.kit.clock import Clock

_HOUR_S: Final = 3600
_SEVEN_DAYS_S: Final = 7.0 * 24 * _HOUR_S
_RETENTION: Final = "delta.deletedFileRetentionDuration"
_SPARKS_ID, _SPARKS_VERSION = "reservoirId", "reservoirVersion"  # of Delta's own source


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the caller wants.

    Attributes:
        keep_s: how long files that left the table stay, in seconds.
        target_bytes: the size that small files are compacted to.
        dry_run: whether nothing is changed.
    """

    keep_s: float
    target_bytes: int
    dry_run: bool = False


def maintain_delta(
    files: DeltaFiles, facts: Facts, wishes: Wishes, clock: Clock | None = None
) -> Report:
    """Compact the table, and delete what nothing needs; return what was done.

    Crash safety: nothing that is committed is lost, and calling it again completes it.
    """
    clock = clock or SystemClock()
    queries = {each.query_id: each for each in facts.queries}
    report = Report(files.name, wishes.dry_run, before=_size_of(files))

    def plan(found: Iterable[DataFile]) -> Compaction:
        return plan_compaction([*found], queries, wishes.target_bytes)

    planned = plan(active_files(files.load()).files)
    report.held["compaction"] = planned.held
    if wishes.dry_run:
        report.compacted = sum(map(len, planned.bins))
        report.written = len(planned.bins)
    else:
        compactor = Compactor(files, plan, clock)
        try:
            compactor.run()
        finally:
            report.compacted, report.written = compactor.compacted, compactor.written
        if report.compacted:
            _checkpoint(files, report)
    expiry = _plan_expiry(files, facts, queries, wishes.keep_s, clock)
    report.held["expiry"] = expiry.held
    report.deleted, report.deleted_bytes = len(expiry.files), sum(f.size for f in expiry.files)
    if not wishes.dry_run:
        _delete(files, expiry)
    report.after = _size_of(files)
    if wishes.dry_run:
        gone = report.compacted - report.written
        report.after = dataclasses.replace(report.after, files=report.after.files - gone)
    return report


def _checkpoint(files: DeltaFiles, report: Report) -> None:
    """Spare readers the entries that name the small files; the entries stay for streams."""
    try:
        files.load().create_checkpoint()
    except SparkStreamError:
        raise
    except Exception as error:  # noqa: BLE001 - delta-rs cannot write one for each table
        report.notes.append(f"no checkpoint of the log was written: {first_line(str(error))}")


def _size_of(files: DeltaFiles) -> TableSize:
    found = active_files(files.load()).files
    return TableSize(len(found), sum(file.size for file in found), len(files.versions()))


# --- expiry ---------------------------------------------------------------------------------------


def _plan_expiry(
    files: DeltaFiles,
    facts: Facts,
    queries: Mapping[str, QueryEpochs],
    keep_s: float,
    clock: Clock,
) -> Expiry:
    before_ms = int((clock.now().timestamp() - keep_s) * 1000)
    since: list[Since] = []
    removed: dict[str, tuple[int, Removed]] = {}
    for entry in files.entries():
        since += _of_replacement(entry, queries)
        removed.update({path: (entry.version, gone) for path, gone in entry.removed.items()})
    old = {path for path, (_, gone) in removed.items() if gone.when_ms <= before_ms}
    table = files.load()
    since += _of_consumers(files, str(table.metadata().id), facts)
    # Checkpoints forget files that left the table, and the log forgets its entries.
    candidates = (old | _forgotten(table, keep_s, removed)) - set(active_files(table).facts)
    there = {info.path: info.size for info in files.names("", recursive=True)} if candidates else {}
    oldest = min(files.versions(), default=0)
    found = [
        Expired(path, there[path], removed[path][0] if path in removed else oldest)
        for path in sorted(candidates & there.keys())
    ]
    return plan_expiry(found, since)


def _forgotten(table: DeltaTable, keep_s: float, known: Collection[str]) -> set[str]:
    """Return files that left the table in versions whose entries the log no longer has."""
    hours = math.ceil(keep_s / _HOUR_S)
    quoted = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False)
    return {unquote(path) for path in quoted} - set(known)


def _of_consumers(files: DeltaFiles, table_id: str, facts: Facts) -> Iterator[Since]:
    folder = files.url.rpartition("/")[2]
    for named in facts.versions:
        if named.sink.startswith("delta:") and named.sink.rpartition("/")[2] == folder:
            yield Since(named.version, named.holder)
    for position in facts.positions:
        version = _version_of(position.offset, table_id)
        if version is not None:
            # A reader of changes may need the files that the version itself has removed.
            yield Since(version - 1, f"the reader's {position.holder}, at version {version}")


def _version_of(offset: Mapping[str, object], table_id: str) -> int | None:
    for name, number in (("id", "version"), (_SPARKS_ID, _SPARKS_VERSION)):
        version = offset.get(number)
        if offset.get(name) == table_id and isinstance(version, int):
            return version
    return None


def _of_replacement(entry: Entry, queries: Mapping[str, QueryEpochs]) -> Iterator[Since]:
    """Yield the things that may revert an epoch which has replaced files: they are added again."""
    if entry.published is None or not entry.removed:
        return
    for holder in why_revertible(entry.published, queries):
        job = f" ({entry.job_dir})" if entry.job_dir and "not given" in holder else ""
        yield Since(entry.version - 1, f"{holder}{job}")


def _delete(files: DeltaFiles, expiry: Expiry) -> None:
    for file in expiry.files:
        with contextlib.suppress(FileNotFoundError):
            files.filesystem.delete_file(file.path)
        if files.is_local and published_in(file.path) is not None:
            with contextlib.suppress(OSError):  # it has other files
                Path(files.url, file.path).parent.rmdir()
        failpoints.hit("maintenance.deleted_one")


def least_keep_s(table: DeltaTable) -> float:
    """Return how long the table keeps files that left it, in seconds: seven days, or longer."""
    text = table.metadata().configuration.get(_RETENTION, "").lower().removeprefix("interval ")
    try:
        return max(parse_duration(text), _SEVEN_DAYS_S) if text else _SEVEN_DAYS_S
    except ConfigError:  # such as calendar months
        return _SEVEN_DAYS_S
