"""Positions of an Iceberg table's reader: which snapshot is read, and how far.

A position is an offset of Spark, as JSON::

    {"uuid": "…", "sequence": 7, "snapshot": 123}                            all of snapshot 123
    {"uuid": "…", "sequence": 7, "snapshot": 123, "index": 2}                2 files that it added
    {"uuid": "…", "sequence": 7, "snapshot": 123, "index": 2, "full": true}  2 files of the table

Files are counted in the order of their paths. Sequence numbers grow with every commit, so positions
are ordered without asking the table.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Final

from airflow_provider.runtime.api.errors import CorruptDocumentError, LostInputError
from airflow_provider.runtime.api.kit.typed_json import read_json

NONE: Final = "-"
"""Spark's text for no offset, before the first batch of a query."""


@dataclasses.dataclass(frozen=True)
class Position:
    """A place between two files of a table's history.

    Attributes:
        uuid: the table's uuid; a table that was made again has another one.
        sequence: the snapshot's sequence number; 0 for a table without a snapshot.
        snapshot: the snapshot's id; None for a table without a snapshot.
        index: the number of files that are read; None for all of the snapshot.
        is_full: whether *index* counts all files of the table as of the snapshot, and not only the
            files that the snapshot added.
    """

    uuid: str
    sequence: int
    snapshot: int | None
    index: int | None = None
    is_full: bool = False

    @property
    def order(self) -> tuple[int, bool, int]:
        """The key by which positions of one table are ordered."""
        return (self.sequence, self.index is None, self.index or 0)

    def to_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "uuid": self.uuid,
            "sequence": self.sequence,
            "snapshot": self.snapshot,
        }
        if self.index is not None:
            value["index"] = self.index
        if self.is_full:
            value["full"] = True
        return value

    def to_text(self) -> str:
        """Return the offset as Spark's worker writes it."""
        return json.dumps(self.to_json())

    @classmethod
    def from_json(cls, value: Any) -> Position:
        """Read what :meth:`to_json` has written; further keys are ignored.

        Raises:
            CorruptDocumentError: *value* is not a position.
        """
        try:
            uuid, snapshot, index = value["uuid"], value["snapshot"], value.get("index")
            position = cls(uuid, value["sequence"], snapshot, index, bool(value.get("full")))
        except (AttributeError, KeyError, TypeError):
            raise CorruptDocumentError(f"not a position in an Iceberg table: {value!r}") from None
        numbers = [position.sequence, *(n for n in (snapshot, index) if n is not None)]
        if not isinstance(uuid, str) or not all(type(n) is int and n >= 0 for n in numbers):
            raise CorruptDocumentError(f"not a position in an Iceberg table: {value!r}")
        if position.is_full and index is None:
            raise CorruptDocumentError(f"not a position in an Iceberg table: {value!r}")
        return position

    @classmethod
    def from_text(cls, text: str) -> Position:
        try:
            return cls.from_json(read_json(text))
        except ValueError:
            raise CorruptDocumentError(f"not a position in an Iceberg table: {text!r}") from None


def limited(planned: str, committed: str, end: str) -> str:
    """Return how far a batch may read that was planned up to *planned*: not beyond *end*.

    An end before *committed* counts as *committed*. The result for a result is that result.
    """
    if NONE in {planned, end}:
        return planned
    if committed != NONE and _compare(end, committed) < 0:
        return committed
    return end if _compare(planned, end) > 0 and committed != NONE else planned


def is_reached(committed: str, end: str) -> bool:
    """Whether a query that has committed *committed* has read up to *end*."""
    if end == NONE:
        return True
    return committed != NONE and _compare(committed, end) >= 0


def _compare(one: str, other: str) -> int:
    first, second = Position.from_text(one), Position.from_text(other)
    if first.uuid != second.uuid:
        raise LostInputError(
            f"offsets of two tables, {first.uuid} and {second.uuid}: the table was dropped and "
            "made again; start a new query"
        )
    return (first.order > second.order) - (first.order < second.order)
