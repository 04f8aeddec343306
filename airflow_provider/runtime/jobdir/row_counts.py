"""The account of a query's rows in a run: where the rows that it has read are.

:func:`imbalance` is the check: numbers that were counted in different locations have to agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping  # noqa: TC003 - what it is read by
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import NonNegative  # noqa: TC001 - as above
from airflow_provider.runtime.jobdir.run_options import QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class RuleCount:
    """Rows at a rule, or a source's records.

    Attributes:
        rows: how many came.
        broken: how many of them broke the rule, or could not be read.
        on: what happens to such a row: ``fail``, ``count`` or ``quarantine``.
    """

    rows: NonNegative
    broken: NonNegative
    on: str


@dataclasses.dataclass(frozen=True)
class RecordLines:
    """How a file has records of a source, so that the source can read it.

    Attributes:
        encoding: of its text, by Java's name.
        line_sep: ends a record.
        header: its first line; None without one.
    """

    encoding: str
    line_sep: str
    header: str | None


@dataclasses.dataclass(frozen=True)
class RowCounts:
    """The rows of one query in a run.

    Attributes:
        rows_read: what the scans have given; None if unknown.
        sources: the same by source.
        checked: by source, what was read of it and its corrected records, which is to be what
            :attr:`rejected` has seen; None if that is not comparable.
        rejected: by source, the records that could not be read.
        lines: by source, how a file has such records.
        rules: by name.
        taken: rows that rules have taken out, each once.
        quarantined: rows in the sink for quarantined rows; None if it does not count.
        late: rows dropped as late, by the operator's name; None if unknown.
        late_quarantined: how many of them were quarantined.
        lost: messages that had expired before they were read.
        written: by sink, without that for quarantined rows; None if a sink does not count.
        row_by_row: whether each row that was read and not taken out is one row of the output.
        uncounted: what cannot be counted, a sentence each.
    """

    rows_read: NonNegative | None = 0
    sources: Mapping[str, NonNegative | None] = dataclasses.field(default_factory=dict)
    checked: Mapping[str, NonNegative | None] = dataclasses.field(default_factory=dict)
    rejected: Mapping[str, RuleCount] = dataclasses.field(default_factory=dict)
    lines: Mapping[str, RecordLines] = dataclasses.field(default_factory=dict)
    rules: Mapping[str, RuleCount] = dataclasses.field(default_factory=dict)
    taken: NonNegative = 0
    quarantined: NonNegative | None = 0
    late: Mapping[str, NonNegative | None] = dataclasses.field(default_factory=dict)
    late_quarantined: NonNegative = 0
    lost: NonNegative | None = 0
    written: Mapping[str, NonNegative | None] = dataclasses.field(default_factory=dict)
    row_by_row: bool = False
    uncounted: tuple[str, ...] = ()


def imbalance(row_counts: RowCounts) -> str | None:
    """Return which numbers of an account disagree; None if it adds up as far as it is known."""
    for source, count in row_counts.rejected.items():
        read = row_counts.checked.get(source)
        if read is not None and read != count.rows:
            return (
                f"{read:,} rows of source {source!r} were read, and {count.rows:,} were checked "
                "for rejected records"
            )
    quarantined_records = sum(
        each.broken for each in row_counts.rejected.values() if each.on == QUARANTINE
    )
    to_keep = quarantined_records + row_counts.taken + row_counts.late_quarantined
    if row_counts.quarantined is not None and row_counts.quarantined != to_keep:
        return (
            f"{to_keep:,} rows were taken out to be quarantined ({quarantined_records:,} rejected, "
            f"{row_counts.taken:,} by rules, {row_counts.late_quarantined:,} late), and "
            f"{row_counts.quarantined:,} are in the sink for quarantined rows"
        )
    if not row_counts.row_by_row or row_counts.rows_read is None:
        return None
    rejected = sum(each.broken for each in row_counts.rejected.values())
    left = row_counts.rows_read - rejected - row_counts.taken
    for sink, rows in row_counts.written.items():
        if rows is not None and rows != left:
            return (
                f"{row_counts.rows_read:,} rows were read and {rejected + row_counts.taken:,} "
                f"taken out, and {rows:,} are in sink {sink}"
            )
    return None


@dataclasses.dataclass(frozen=True)
class QuarantineTotals:
    """The quarantined rows of a run.

    Attributes:
        rejected: records that could not be read.
        broken: rows that rules took out, each once.
        late: late rows.
        quarantined: rows in sinks for quarantined rows; None if one does not count.
        has_any: whether the job quarantines rows.
    """

    rejected: int
    broken: int
    late: int
    quarantined: int | None
    has_any: bool

    def __str__(self) -> str:
        quarantined = "unknown" if self.quarantined is None else f"{self.quarantined:,}"
        parts = f"{self.rejected:,} rejected, {self.broken:,} broke a rule, {self.late:,} late"
        return f"{quarantined} quarantined ({parts})"


def add_quarantined(row_counts: Iterable[RowCounts]) -> QuarantineTotals:
    """Return the totals of the quarantined rows of several queries."""
    row_counts = [*row_counts]
    rejected = [each for one in row_counts for each in one.rejected.values()]
    rules = [each for one in row_counts for each in one.rules.values()]
    quarantined = [one.quarantined for one in row_counts]
    return QuarantineTotals(
        rejected=sum(each.broken for each in rejected if each.on == QUARANTINE),
        broken=sum(one.taken for one in row_counts),
        late=sum(one.late_quarantined for one in row_counts),
        quarantined=sum_of(quarantined),
        has_any=any(quarantined) or any(each.on == QUARANTINE for each in (*rejected, *rules)),
    )


def counts_of(row_counts: RowCounts) -> dict[str, int | None]:
    """Return the metrics of an account, without those of what the query does not look at."""
    counted = {"rejected_rows": row_counts.rejected, "broken_rows": row_counts.rules}
    found: dict[str, int | None] = {
        name: sum(each.broken for each in counts.values())
        for name, counts in counted.items()
        if counts
    }
    has_any = bool(found or row_counts.quarantined)
    return {**found, "quarantined_rows": row_counts.quarantined} if has_any else {}


def sum_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None when one of them is not known."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)
