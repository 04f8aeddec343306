"""The account of a query's rows in a run: where the rows that it has read are.

:func:`imbalance` is the check: numbers that were counted in different locations have to agree.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.jobdir.run_options import QUARANTINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class RuleCount:
    """Rows at a rule, or a source's records.

    Attributes:
        rows: how many came.
        broken: how many of them broke the rule, or could not be read.
        on: what happens to such a row: ``fail``, ``count`` or ``quarantine``.
    """

    rows: int
    broken: int
    on: str


@dataclasses.dataclass(frozen=True)
class RecordLines:
    """How a file has records of a source, so that the source can read it.

    Attributes:
        encoding: of its text, by Java's name.
        line_sep: ends a record.
        header: its first line; None without one.
    """

    encoding: str = "UTF-8"
    line_sep: str = "\n"
    header: str | None = None


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

    rows_read: int | None = 0
    sources: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    checked: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    rejected: Mapping[str, RuleCount] = dataclasses.field(default_factory=dict)
    lines: Mapping[str, RecordLines] = dataclasses.field(default_factory=dict)
    rules: Mapping[str, RuleCount] = dataclasses.field(default_factory=dict)
    taken: int = 0
    quarantined: int | None = 0
    late: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    late_quarantined: int = 0
    lost: int | None = 0
    written: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    row_by_row: bool = False
    uncounted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the account as JSON has it."""
        return {**dataclasses.asdict(self), "uncounted": list(self.uncounted)}


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


def describe_quarantined_rows(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run has rejected, and which of its rules rows have broken, a line each."""
    for name, query in document.get("queries", {}).items():
        row_counts = query.get("row_counts") or {}
        for source, each in row_counts.get("rejected", {}).items():
            if each["broken"]:
                what = f"{each['broken']:,} of {each['rows']:,} records of source {source}"
                became = "quarantined" if each["on"] == QUARANTINE else "left out"
                yield f"{what} could not be read, and were {became} (query {name})"
        for rule, each in row_counts.get("rules", {}).items():
            if each["broken"]:
                what = f"{each['broken']:,} of {each['rows']:,} rows"
                became = "were quarantined" if each["on"] == QUARANTINE else "went on"
                yield f"{what} broke the rule {rule}, and {became} (query {name})"


def describe_uncounted(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run cannot count, a line each."""
    for name, query in document.get("queries", {}).items():
        for sentence in (query.get("row_counts") or {}).get("uncounted", ()):
            yield f"not counted of query {name}: {sentence}"


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


def quarantine_totals(queries: Mapping[str, Mapping[str, Any]]) -> QuarantineTotals:
    """Return the totals of the queries of a progress record or a final checkpoint."""
    row_counts = [query.get("row_counts") or {} for query in queries.values()]
    rejected = [each for one in row_counts for each in one.get("rejected", {}).values()]
    rules = [each for one in row_counts for each in one.get("rules", {}).values()]
    quarantined = [one.get("quarantined", 0) for one in row_counts]
    return QuarantineTotals(
        rejected=sum(each["broken"] for each in rejected if each["on"] == QUARANTINE),
        broken=sum(one.get("taken", 0) for one in row_counts),
        late=sum(one.get("late_quarantined", 0) for one in row_counts),
        quarantined=None if None in quarantined else sum(quarantined),
        has_any=any(quarantined) or any(each["on"] == QUARANTINE for each in (*rejected, *rules)),
    )


def counts_of(row_counts: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the metrics of an account, without those of what the query does not look at."""
    found: dict[str, int | None] = {}
    for name, key in (("rejected_rows", "rejected"), ("broken_rows", "rules")):
        if counts := row_counts.get(key):
            found[name] = sum(each["broken"] for each in counts.values())
    return (
        {**found, "quarantined_rows": row_counts["quarantined"]}
        if found or row_counts.get("quarantined")
        else {}
    )


def run_counts(queries: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """Return the same of all queries of a run."""
    counts = [counts_of(query.get("row_counts") or {}) for query in queries.values()]
    found: dict[str, int | None] = {}
    for name in dict.fromkeys(name for each in counts for name in each):
        known = [each.get(name, 0) for each in counts]
        found[name] = None if None in known else sum(each or 0 for each in known)
    return found


def output_sinks(query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a query's sinks in a progress record or a final checkpoint, without the quarantine."""
    return [sink for sink in query.get("sinks") or () if not sink.get("quarantine")]
