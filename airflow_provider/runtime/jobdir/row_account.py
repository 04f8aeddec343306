"""The account of a query's rows in a run: where the rows that it has read are.

:func:`imbalance` is the check: numbers that were counted in different places have to agree.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.jobdir.run_options import KEEP

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclasses.dataclass(frozen=True)
class RuleCount:
    """Rows at a rule, or a source's records.

    Attributes:
        rows: how many came.
        broken: how many of them broke the rule, or could not be read.
        on: what happens to such a row: ``fail``, ``count`` or ``keep``.
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
class RowAccount:
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
        kept: rows in the sink for kept rows; None if it does not count.
        late: rows dropped as late, by the operator's name; None if unknown.
        late_kept: how many of them were kept.
        lost: messages that had expired before they were read.
        written: by sink, without that for kept rows; None if a sink does not count.
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
    kept: int | None = 0
    late: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    late_kept: int = 0
    lost: int | None = 0
    written: Mapping[str, int | None] = dataclasses.field(default_factory=dict)
    row_by_row: bool = False
    uncounted: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the account as JSON has it."""
        return {**dataclasses.asdict(self), "uncounted": list(self.uncounted)}


def imbalance(account: RowAccount) -> str | None:
    """Return which numbers of an account disagree; None if it adds up as far as it is known."""
    for source, count in account.rejected.items():
        read = account.checked.get(source)
        if read is not None and read != count.rows:
            return (
                f"{read:,} rows of source {source!r} were read, and {count.rows:,} were checked "
                "for rejected records"
            )
    kept_records = sum(each.broken for each in account.rejected.values() if each.on == KEEP)
    to_keep = kept_records + account.taken + account.late_kept
    if account.kept is not None and account.kept != to_keep:
        return (
            f"{to_keep:,} rows were taken out to be kept ({kept_records:,} rejected, "
            f"{account.taken:,} by rules, {account.late_kept:,} late), and {account.kept:,} are "
            "in the sink for kept rows"
        )
    if not account.row_by_row or account.rows_read is None:
        return None
    rejected = sum(each.broken for each in account.rejected.values())
    left = account.rows_read - rejected - account.taken
    for sink, rows in account.written.items():
        if rows is not None and rows != left:
            return (
                f"{account.rows_read:,} rows were read and {rejected + account.taken:,} taken "
                f"out, and {rows:,} are in sink {sink}"
            )
    return None


def describe_kept_rows(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run has rejected, and which of its rules rows have broken, a line each."""
    for name, query in document.get("queries", {}).items():
        account = query.get("account") or {}
        for source, each in account.get("rejected", {}).items():
            if each["broken"]:
                what = f"{each['broken']:,} of {each['rows']:,} records of source {source}"
                became = "kept" if each["on"] == KEEP else "left out"
                yield f"{what} could not be read, and were {became} (query {name})"
        for rule, each in account.get("rules", {}).items():
            if each["broken"]:
                what = f"{each['broken']:,} of {each['rows']:,} rows"
                became = "were kept" if each["on"] == KEEP else "went on"
                yield f"{what} broke the rule {rule}, and {became} (query {name})"


def describe_uncounted(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a run cannot count, a line each."""
    for name, query in document.get("queries", {}).items():
        for sentence in (query.get("account") or {}).get("uncounted", ()):
            yield f"not counted of query {name}: {sentence}"


@dataclasses.dataclass(frozen=True)
class KeptTotals:
    """The kept rows of a run.

    Attributes:
        rejected: records that could not be read.
        broken: rows that rules took out, each once.
        late: late rows.
        kept: rows in sinks for kept rows; None if one does not count.
        has_any: whether anything in the job keeps rows.
    """

    rejected: int
    broken: int
    late: int
    kept: int | None
    has_any: bool

    def __str__(self) -> str:
        kept = "unknown" if self.kept is None else f"{self.kept:,}"
        parts = f"{self.rejected:,} rejected, {self.broken:,} broke a rule, {self.late:,} late"
        return f"{kept} kept ({parts})"


def kept_totals(queries: Mapping[str, Mapping[str, Any]]) -> KeptTotals:
    """Return the totals of the queries of a progress record or a final checkpoint."""
    accounts = [query.get("account") or {} for query in queries.values()]
    rejected = [each for one in accounts for each in one.get("rejected", {}).values()]
    rules = [each for one in accounts for each in one.get("rules", {}).values()]
    kept = [one.get("kept", 0) for one in accounts]
    return KeptTotals(
        rejected=sum(each["broken"] for each in rejected if each["on"] == KEEP),
        broken=sum(one.get("taken", 0) for one in accounts),
        late=sum(one.get("late_kept", 0) for one in accounts),
        kept=None if None in kept else sum(kept),
        has_any=any(kept) or any(each["on"] == KEEP for each in (*rejected, *rules)),
    )


def counts_of(account: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the metrics of an account, without those of what the query does not look at."""
    found: dict[str, int | None] = {}
    for name, key in (("rejected_rows", "rejected"), ("broken_rows", "rules")):
        if counts := account.get(key):
            found[name] = sum(each["broken"] for each in counts.values())
    return {**found, "kept_rows": account["kept"]} if found or account.get("kept") else {}


def run_counts(queries: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """Return the same of all queries of a run."""
    counts = [counts_of(query.get("account") or {}) for query in queries.values()]
    found: dict[str, int | None] = {}
    for name in dict.fromkeys(name for each in counts for name in each):
        known = [each.get(name, 0) for each in counts]
        found[name] = None if None in known else sum(each or 0 for each in known)
    return found


def output_sinks(query: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a query's sinks in a progress record or a final checkpoint, but that of kept rows."""
    return [sink for sink in query.get("sinks") or () if not sink.get("keeps")]
