"""Positions in a Delta table: the offsets of the source that reads it, and their order. Pure.

A position lies in the snapshot of one version, or in the log after it. Both count data files in
the order of their paths, so that every attempt of a batch reads the same files.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.errors import CorruptDocumentError
from airflow_provider.runtime.api.kit.typed_json import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_OFFSET: Final = "-"
"""In Spark's offset log: the source had no offset yet."""


class Position(NamedTuple):
    """How far a query has read a table.

    Attributes:
        table_id: the id in the table's metadata; a table that was recreated has another one.
        version: of the snapshot, or of the log entry that is read next.
        is_snapshot: whether the files of the version's snapshot are read, or those that its log
            entry adds. The snapshot of a version follows its log entry.
        files: how many of its files are read; ``index`` in Spark's offsets.
    """

    table_id: str
    version: int
    is_snapshot: bool
    files: int

    @property
    def order(self) -> tuple[int, bool, int]:
        return self.version, self.is_snapshot, self.files

    @property
    def next_version(self) -> int:
        """The version whose log entry follows; that of a snapshot's own version is part of it."""
        return self.version + 1

    def to_json(self) -> dict[str, Any]:
        phase = {"snapshot": True} if self.is_snapshot else {}
        return {"id": self.table_id, "version": self.version, **phase, "index": self.files}

    def to_text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    def describe(self) -> str:
        """Return the position for people."""
        if self.is_snapshot:
            return f"file {self.files} of the snapshot of version {self.version}"
        return f"file {self.files} of version {self.version}"


def at_version(table_id: str, version: int) -> Position:
    """Return the position before the log entry of *version*."""
    return Position(table_id, version, is_snapshot=False, files=0)


def at_snapshot(table_id: str, version: int) -> Position:
    """Return the position before the first file of the snapshot of *version*."""
    return Position(table_id, version, is_snapshot=True, files=0)


def from_json(offset: Mapping[str, Any]) -> Position:
    """Read a position as Spark keeps it.

    Raises:
        CorruptDocumentError: it is not one.
    """
    try:
        table_id, version, index = offset["id"], offset["version"], offset["index"]
    except (KeyError, TypeError) as error:
        raise _corrupt(offset) from error
    if not isinstance(table_id, str) or not _is_count(version) or not _is_count(index):
        raise _corrupt(offset)
    return Position(table_id, version, offset.get("snapshot") is True, index)


def from_text(text: str) -> Position | None:
    """Read a position from Spark's offset log; None for no offset, or that before the first one.

    Raises:
        CorruptDocumentError: it is neither.
    """
    if text == NO_OFFSET:
        return None
    try:
        offset = read_json(text)
    except ValueError as error:
        raise _corrupt(text) from error
    return from_json(offset) if offset != {} else None


def limited(planned: str, committed: str, end: str) -> str:
    """Return how far a batch may read: *planned*, but not beyond *end*; offsets are texts.

    An end before *committed* counts as *committed*: nothing is read, and nothing is read again.
    """
    to, before, last = from_text(planned), from_text(committed), from_text(end)
    if before is not None and (last is None or last.order < before.order):
        last = before
    if to is None or last is None or to.order <= last.order:
        return planned
    return last.to_text()


def is_reached(committed: str, end: str) -> bool:
    """Whether a query that has committed this offset has read everything up to *end*."""
    read, last = from_text(committed), from_text(end)
    return last is None or (read is not None and read.order >= last.order)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _corrupt(offset: Any) -> CorruptDocumentError:
    return CorruptDocumentError(f"not a position in a Delta table: {str(offset)[:80]!r}")
