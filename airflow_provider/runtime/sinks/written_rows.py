"""Written rows of a run, and how many of them were reverted: counted from the epochs' records."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.api.storages import Storage


@dataclasses.dataclass(frozen=True)
class Written:
    """The published rows.

    Attributes:
        epochs: how many, of all queries.
        rows: in all sinks together.
        sinks: their names.
        folded: how many of the epochs have no record any more, so that their rows are unknown.
    """

    epochs: int = 0
    rows: int = 0
    sinks: frozenset[str] = frozenset()
    folded: int = 0

    def __add__(self, other: Written) -> Written:
        """Return both together."""
        return Written(
            self.epochs + other.epochs,
            self.rows + other.rows,
            self.sinks | other.sinks,
            self.folded + other.folded,
        )

    def __sub__(self, other: Written) -> Written:
        """Return what is left of it without *other*, which is a part of it."""
        return Written(
            self.epochs - other.epochs,
            self.rows - other.rows,
            self.sinks,
            self.folded - other.folded,
        )

    def __str__(self) -> str:
        """Return it in words."""
        where = f" in {', '.join(sorted(self.sinks))}" if self.sinks else ""
        unknown = f" (and those of {self.folded} folded epochs)" if self.folded else ""
        return f"{self.epochs:,} epoch(s), {self.rows:,} row(s){unknown}{where}"


@dataclasses.dataclass(frozen=True)
class Output:
    """The rows that a run has written.

    Attributes:
        standing: the rows that are visible.
        reverted: the rows that were removed from every sink.
    """

    standing: Written
    reverted: Written


def output_of(committables: Iterable[Storage], run_id: str) -> Output:
    """Return what a run has written to the folders of its queries, under any of their ids."""
    standing, reverted = Written(), Written()
    for storage in committables:
        for query_id in query_ids(storage):
            found = _under_id(EpochRecords(storage, query_id), run_id)
            standing, reverted = standing + found.standing, reverted + found.reverted
    return Output(standing, reverted)


def _under_id(records: EpochRecords, run_id: str) -> Output:
    taken = records.revert()
    is_taken = taken is not None and taken.done is not None and not taken.keep_outputs
    reverted_from = taken.first_epoch if is_taken and taken is not None else None
    standing, reverted = Written(), Written()
    for epoch, written in _published(records, run_id, reverted_from):
        if reverted_from is not None and epoch >= reverted_from:
            reverted += written
        else:
            standing += written
    return Output(standing, reverted)


def _published(
    records: EpochRecords, run_id: str, cut: int | None
) -> Iterable[tuple[int, Written]]:
    """Yield what was published, by first epoch; *cut* divides a stretch of folded epochs."""
    history = records.history()
    for first, last, _, whose in history.ranges:
        if whose == run_id:
            after = last + 1 if cut is None else min(max(cut, first), last + 1)
            for begin, end in ((first, after), (after, last + 1)):
                if begin < end:
                    yield begin, Written(epochs=end - begin, folded=end - begin)
    for record in records.all():
        is_folded = history.token_of(record.epoch) is not None
        if record.run_id == run_id and record.committed is not None and not is_folded:
            names = frozenset(part["name"] for part in record.sinks)
            rows = sum(part["rows"] or 0 for part in record.sinks)
            yield record.epoch, Written(epochs=1, rows=rows, sinks=names)
