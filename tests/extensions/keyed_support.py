"""Tables by key: a model in plain Python, and staging that stands in for Spark's reduction."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider.runtime.sinks.keyed_rows import DELETED, KeyedRows

CHANGES = pa.schema(
    [("id", pa.int64()), ("at", pa.int64()), ("name", pa.string()), ("op", pa.string())]
)
KEYED: dict[str, Any] = {"keys": "id", "sequence_by": "at", "delete_when": "op = 'd'"}


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of a key: its row, or its delete."""

    id: int
    at: int
    name: str = ""
    deletes: bool = False

    @property
    def row(self) -> tuple[Any, ...]:
        return (self.id, self.at, self.name, "d" if self.deletes else "u")


class ConflictError(Exception):
    """Two changes of a key of which neither is newer."""


def _check_same(change: Change, counts: Change) -> None:
    is_same = change == counts or (change.deletes and counts.deletes)
    if change.at == counts.at and not is_same:
        raise ConflictError(f"{change} and {counts}")


class KeyedModel:
    """What a table by key has, by the rules alone: for each key its newest change."""

    def __init__(self) -> None:
        self.newest: dict[int, Change] = {}

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply an epoch, completely or not at all.

        Its own newest changes must not differ, also where the table knows a newer one: they are
        staged without a look at the table.
        """
        after = dict(self.newest)
        for known in ({}, after):
            for change in changes:
                if change.id not in known or change.at > known[change.id].at:
                    known[change.id] = change
            for change in changes:
                _check_same(change, known[change.id])
        self.newest = after

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(c.row for c in self.newest.values() if not c.deletes)


def newest_of(rows: Sequence[dict[str, Any]], keyed: KeyedRows) -> list[dict[str, Any]]:
    """Return the changes of an epoch that Spark stages: the newest of each key, equal ones too."""
    if not keyed.sequence_by:
        return list(rows)
    best: dict[Any, Any] = {}
    for row in rows:
        key, at = _values(row, keyed.keys), _values(row, keyed.sequence_by)
        best[key] = max(best.get(key, at), at)
    return [
        row for row in rows if _values(row, keyed.sequence_by) == best[_values(row, keyed.keys)]
    ]


def _values(row: dict[str, Any], columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[column] for column in columns)


def write_changes(folder: Path, rows: pa.Table, keyed: KeyedRows) -> list[tuple[str, int]]:
    """Stage *rows* in two files under *folder*, as Spark stages them; return paths and bytes."""
    if not len(rows):
        return []
    changes = newest_of(rows.to_pylist(), keyed)
    for change in changes:
        change[DELETED] = keyed.delete_when is not None and change.get("op") == "d"
    table = pa.Table.from_pylist(changes, rows.schema.append(pa.field(DELETED, pa.bool_())))
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number in range(2):
        part = table.take(pa.array(range(number, len(table), 2), pa.int64()))
        target = folder / f"part-{number:05d}-x.parquet"
        pq.write_table(part, target)
        found.append((target.name, target.stat().st_size))
    return found


def table_of(changes: Sequence[Change]) -> pa.Table:
    """Return changes as the rows of a query."""
    names = CHANGES.names
    return pa.Table.from_pylist(
        [dict(zip(names, change.row, strict=True)) for change in changes], CHANGES
    )
