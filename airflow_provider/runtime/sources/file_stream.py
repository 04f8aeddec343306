"""Spark's file source, as the JVM has it: which files it has listed, read, and left."""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.source_end import (
    SourceEnd,
    SourceLog,
    by_folder,
    position_of,
)
from airflow_provider.runtime.sources.planned import PlannedStream
from airflow_provider.runtime.spark.versions import file_entry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.sources import PlannedSource

log = logging.getLogger(__name__)

FILE_SOURCE: Final = "FileStreamSource"
LISTED: Final = "allFilesForTriggerAvailableNow"
"""The field of a file source with the files that it has listed for a run that ends."""
MOST_FILES: Final = 1_000_000  # their names are some 100 MB, which one document can have


def private_field(instance: Any, name: str) -> Any:
    """Return a readable private field of a JVM object."""
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def private_value(instance: Any, name: str) -> Any:
    """Return the value of a private field of a JVM object."""
    return private_field(instance, name).get(instance)


def listed_files(listed: Any) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of each file of a listing, in one call."""
    return map(file_entry, filter(None, str(listed.mkString("\n")).split("\n")))


def files_end(planned: PlannedSource, wanted: Any) -> SourceEnd | None:
    """Return the files that a run reads of Spark's file source, by their addresses.

    Raises:
        ValueError: they are not listed, or too many.
    """
    if not isinstance(planned, PlannedStream) or not is_file_stream(planned.stream):
        raise ValueError("it is not read by Spark's file source")
    stream = planned.stream
    listed = private_value(stream, LISTED)
    if listed is None:
        raise ValueError("Spark has not listed its files")
    if int(listed.size()) > MOST_FILES:
        raise ValueError(f"it has more than {MOST_FILES:,} files")
    end = SourceEnd(
        planned.name,
        planned.position,
        log=str(private_value(stream, "metadataLog").metadataPath().getName()),
        by_name=bool(private_value(stream, "fileNameOnly")),
    )
    purged_ms = int(private_value(private_value(stream, "seenFiles"), "lastPurgeTimestamp"))
    first, last = position_of(planned.committed), position_of(planned.line)
    files = SourceLog(planned.checkpoint, str(end.log))
    read = {end.key_of(file.path) for file in files.read_through(first)}
    found = {
        path: modified_ms
        for path, modified_ms in listed_files(listed)
        if modified_ms >= purged_ms and end.key_of(path) not in read
    }
    for number in range(first + 1, last + 1):
        found |= {file.path: file.modified_ms for file in files.files(number)}
    if isinstance(wanted, dt.datetime):
        before_ms = wanted.timestamp() * 1000
        found = {path: at_ms for path, at_ms in found.items() if at_ms < before_ms}
    return dataclasses.replace(end, files=by_folder(found.items()))


def is_file_stream(stream: Any) -> bool:
    """Whether a stream of the JVM's is Spark's file source."""
    return str(stream.getClass().getSimpleName()) == FILE_SOURCE


_MOST: Final = 100_000  # the names of so many files are 15 MB


class UnreadFiles:
    """Counts the files that one start of a query has not read, once a batch has been planned."""

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self._sources: list[_FileSource] | None = None

    def count(self) -> int | None:
        """Return the number of unread files; None without a limit, for too many, or if unknown."""
        from py4j.protocol import Py4JError

        try:
            if self._sources is None:
                self._sources = list(_file_sources(self._execution))
            counts = [n for source in self._sources if (n := source.count()) is not None]
        except (Py4JError, ValueError) as error:  # too many, or another version of Spark
            log.debug("it is not known how many files are unread: %s", error)
            self._sources = []
            return None
        return sum(counts) if counts else None


class _FileSource:
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._fields: dict[str, Any] = {}
        self._has_kept = False
        self._reaches: int | None = None  # so many files are seen when all are read

    def count(self) -> int | None:
        listed = self._value(LISTED)
        if listed is not None:
            if int(listed.size()) > _MOST:
                raise ValueError(f"more than {_MOST:,} files are listed")
            seen = self._value("seenFiles")
            if self._reaches is None:
                self._reaches = int(seen.size()) + _unseen(listed, seen)
            return max(self._reaches - int(seen.size()), 0)
        kept = self._value("unreadFiles")
        self._has_kept = self._has_kept or kept is not None
        if not self._has_kept:  # each batch reads all there is
            return None
        return int(kept.size()) if kept is not None else 0

    def _value(self, name: str) -> Any:
        if name not in self._fields:  # each look is some calls of the JVM, in each batch
            self._fields[name] = private_field(self._stream, name)
        return self._fields[name].get(self._stream)


def _file_sources(execution: Any) -> Iterator[_FileSource]:
    streams = execution.sources().distinct()
    for stream in map(streams.apply, range(streams.size())):
        if is_file_stream(stream):
            yield _FileSource(stream)


def _unseen(listed: Any, seen: Any) -> int:
    purged_ms = int(private_value(seen, "lastPurgeTimestamp"))
    known = set(private_value(seen, "map").keySet().toString().strip("[]").split(", "))
    return sum(
        modified_ms >= purged_ms and path not in known and path.rpartition("/")[2] not in known
        for path, modified_ms in listed_files(listed)
    )
