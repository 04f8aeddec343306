"""Files that the file sources of a query have read: in a savepoint, and since it was taken."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.source_end import SourceLog, file_position
from airflow_provider.runtime.checkpoint.source_names import key_of_source, name_of_key
from airflow_provider.runtime.errors import CheckpointError, ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.identity import identity_of
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.savepoints.catalog import folder_of, saved_offsets
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.logs import OffsetEntry
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint

log = logging.getLogger(__name__)

START: Final = -1
"""The position of a source that has read nothing."""


@dataclasses.dataclass(frozen=True)
class ReadFiles:
    """The log of one file source, as it is now and as it was saved.

    Attributes:
        now: the position of each file in the log of the query, by its address.
        saved: the position of each file in the savepoint; empty for the job's very beginning.
        position: how far the savepoint has read.
    """

    source: str
    now: Mapping[str, int]
    saved: Mapping[str, int]
    position: int = START


def read_files(
    directory: JobDirectory,
    name: str,
    savepoint: Savepoint | None,
    theirs: str,
    *,
    skips_in_flight: bool = False,
) -> Iterator[ReadFiles]:
    """Yield what each file source of a query has read.

    Args:
        directory: the job that is set to the savepoint.
        name: its query.
        savepoint: None for the job's very beginning.
        theirs: the savepoint's query; "" for the beginning of this one.
        skips_in_flight: whether the savepoint's batch in flight counts as read.
    """
    found = _checkpoint_since(directory, name, savepoint, theirs)
    now = _logs(found.checkpoint, _last_entry(found.checkpoint)) if found is not None else {}
    saved: Mapping[str, Mapping[str, int]] = {}
    entry: OffsetEntry | None = None
    names = found.sources if found is not None else ()
    if savepoint is not None and theirs:
        query = savepoint.record.queries[theirs]
        names = query.topology.sources
        batch = query.batch + (query.planned and skips_in_flight)
        entry = saved_offsets(savepoint, theirs, batch)
        last = saved_offsets(savepoint, theirs, query.batch + query.planned)
        saved = _logs(SavedLogs(savepoint, theirs), last)
    for folder in {**now, **saved}:
        files = ReadFiles(
            _source_of(folder, names),
            now.get(folder, {}),
            saved.get(folder, {}),
            _position_of(folder, entry),
        )
        yield files


@dataclasses.dataclass(frozen=True)
class _Since:
    checkpoint: Storage
    directory: JobDirectory | None = None
    query: str = ""

    @property
    def sources(self) -> Sequence[str | None]:
        kept = kept_topology(self.directory, self.query) if self.directory is not None else None
        return kept.sources if kept is not None else ()


def _checkpoint_since(
    directory: JobDirectory, name: str, savepoint: Savepoint | None, theirs: str
) -> _Since | None:
    """Return the checkpoint that has what was read since the savepoint.

    It is the job's own one, or that of the job which the savepoint was taken from; None if that is
    not there, or another job is there now.
    """
    record = savepoint.record if savepoint is not None else None
    if record is None or record.lineage[:1] == [identity_of(directory.storage)]:
        return _Since(directory.checkpoint(name), directory, name)
    try:
        if record.job is None:
            location = open_storage(record.source)
            saved = record.queries.get(theirs)
            is_same = saved and CheckpointLogs(location).query_id() == saved.query_id
            return _Since(location) if is_same else None
        origin = directory_at(record.source)
        if theirs and record.lineage[:1] == [identity_of(origin.storage)]:
            return _Since(origin.checkpoint(theirs), origin, theirs)
    except (OSError, ConfigError, CheckpointError) as error:
        log.info("%s: not known what was read since the savepoint: %s", record.source, error)
    return None


class SavedLogs:
    """A query in a savepoint, as far as :class:`SourceLog` and its logs read a checkpoint."""

    def __init__(self, savepoint: Savepoint, name: str) -> None:
        self.url = f"{savepoint.url}/queries/{name}"
        self._location, self._name = open_storage(savepoint.url), name
        self._holders = {f.path: f.holder for f in savepoint.record.queries[name].files}

    def list(self, path: str) -> list[str]:
        below = [each[len(path) + 1 :] for each in self._holders if each.startswith(f"{path}/")]
        return sorted({each.partition("/")[0] for each in below})

    def read(self, path: str) -> bytes:
        if path not in self._holders:
            raise FileNotFoundError(path)
        return folder_of(self._location, self._name, self._holders[path]).read(path)


def _last_entry(checkpoint: Storage) -> OffsetEntry | None:
    logs = CheckpointLogs(checkpoint)
    planned = logs.batches("offsets")
    return logs.offsets(planned[-1]) if planned else None


def _logs(
    checkpoint: Storage | SavedLogs, entry: OffsetEntry | None
) -> dict[str, Mapping[str, int]]:
    """Return the logs of the file sources, by their folders in ``sources/``.

    A folder has the name of its source or the number of its line, unless a source is read at
    several locations. Then the folders of others are known by what is in them.
    """
    folders = checkpoint.list("sources")
    by_folder = _by_folder(entry)
    if sorted(folders) == sorted(by_folder):
        folders = [each for each in folders if file_position(by_folder[each]) is not None]
    found: dict[str, Mapping[str, int]] = {}
    for folder in folders:
        source_log = SourceLog(checkpoint, folder)  # type: ignore[arg-type]  # it only reads
        try:
            positions = source_log.positions()
        except CorruptDocumentError as error:
            log.info("%s/sources/%s: no log of files: %s", checkpoint.url, folder, error)
            continue
        found[folder] = {unquote(file): number for file, number in positions.items()}
    return found


def _by_folder(entry: OffsetEntry | None) -> dict[str, str]:
    if entry is None:
        return {}
    if entry.names is not None:
        pairs = zip(entry.names, entry.sources, strict=True)
        return {key_of_source(name): line for name, line in pairs}
    return {str(position): line for position, line in enumerate(entry.sources)}


def _position_of(folder: str, entry: OffsetEntry | None) -> int:
    lines = _by_folder(entry)
    if entry is not None and entry.names is not None and folder not in lines:
        return START  # the source was added later, or is one that was removed
    own = file_position(lines[folder]) if folder in lines else None
    known = [number for line in lines.values() if (number := file_position(line)) is not None]
    return own if own is not None else min(known, default=START)


def _source_of(folder: str, names: Sequence[str | None]) -> str:
    location = int(folder) if folder.isdecimal() and folder not in names else len(names)
    return (names[location] if location < len(names) else None) or name_of_key(folder)
