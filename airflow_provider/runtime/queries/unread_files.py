"""Unread files: how many files the file sources of a running query have yet to read.

Kafka's source reports what it has not read, Spark's file source does not, though it knows: under
``availableNow`` it lists all files at the start, else it keeps those that had no room in a batch.
Both are private fields of its, so that this is for people, and says nothing where it cannot.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.file_source import (
    listed_files,
    private_field,
    private_value,
)
from airflow_provider.runtime.queries.plan import items

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger(__name__)

_SOURCE: Final = "FileStreamSource"
_MOST: Final = 100_000  # the names of so many files are 15 MB


class UnreadFiles:
    """Counts the files that one start of a query has not read, once a batch has been planned.

    Args:
        execution: the JVM's ``MicroBatchExecution``.
    """

    def __init__(self, execution: Any) -> None:
        self._execution = execution
        self._sources: list[_FileSource] | None = None

    def count(self) -> int | None:
        """Return how many are unread.

        Returns:
            None where nothing limits a batch, too many are listed, or nothing is known.
        """
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
    """One file source of Spark's.

    Args:
        stream: the JVM's ``FileStreamSource``.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._fields: dict[str, Any] = {}
        self._has_kept = False
        self._reaches: int | None = None  # so many files are seen when all are read

    def count(self) -> int | None:
        listed = self._value("allFilesForTriggerAvailableNow")
        if listed is not None:
            if int(listed.size()) > _MOST:
                msg = f"more than {_MOST:,} files are listed"
                raise ValueError(msg)
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
    for stream in items(execution.sources().distinct()):
        if stream.getClass().getSimpleName() == _SOURCE:
            yield _FileSource(stream)


def _unseen(listed: Any, seen: Any) -> int:
    """Return how many of the files listed Spark has not seen, in a few calls however many they are.

    What Spark has seen it keeps by the path, or by the name alone where the source goes by names;
    what is older than its last purge it takes for seen.
    """
    purged_ms = int(private_value(seen, "lastPurgeTimestamp"))
    known = set(private_value(seen, "map").keySet().toString().strip("[]").split(", "))
    return sum(
        modified_ms >= purged_ms and path not in known and path.rpartition("/")[2] not in known
        for path, modified_ms in listed_files(listed)
    )
