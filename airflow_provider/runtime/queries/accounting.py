"""The account of a query's rows, from what its definition declares and its batches have counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import RowCountsError
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.jobdir.row_counts import RowCounts, RuleCount, imbalance
from airflow_provider.runtime.queries.known_bugs import describe
from airflow_provider.runtime.sinks.files import FilesSink

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, EpochRecord, LateRows
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.taps import Rule, Tap

_NOT_PUBLISHED: Final = (
    "it is not published; see that nothing changes the input while it is read, and run it again"
)
_PUBLISHED: Final = (
    f"its output is published: compare it with the input, and replay the run, or {FROM_SCRATCH}"
)


def row_counts_of(
    query: QueryDefinition,
    totals: Mapping[str, Any],
    written: Mapping[str, int | None],
    unread_input: Collection[str] = (),
) -> RowCounts:
    """Return the account of a query's rows.

    Args:
        query: as the job declares it.
        totals: the counts of the run so far, as :func:`~.epoch_documents.totals_after` names them.
        written: by sink, the rows of the run.
        unread_input: in words, input that was listed and is not read.
    """
    taps = totals["taps"]
    counted = [(tap, taps[tap.name]) for tap in query.taps if tap.name in taps]
    rules = [
        (tap, rule.name, _rule_count(rule, taps[tap.name]))
        for tap, _ in counted
        for rule in tap.rules
    ]
    known = totals["source_rows"]
    names = dict.fromkeys(source.name for source in query.sources)
    return RowCounts(
        rows_read=totals["rows_read"],
        sources={
            name: None if known is None else known.get(name, 0)
            for name in names
            if not is_marker(name)
        },
        checked={
            str(tap.source): _checked(query, str(tap.source), known)
            for tap, _ in counted
            if tap.source is not None
        },
        rejected={str(tap.source): each for tap, _, each in rules if tap.source is not None},
        lines={str(tap.source): tap.lines for tap, _ in counted if tap.lines is not None},
        rules=_added((name, each) for tap, name, each in rules if tap.source is None),
        taken=sum(count["taken"] for tap, count in counted if tap.source is None),
        quarantined=totals["quarantined_rows"],
        late=_late(query, totals["late_rows"]),
        late_quarantined=totals["late_quarantined"],
        lost=totals["lost_rows"],
        written={sink.name: written.get(sink.name) for sink in query.output_sinks},
        row_by_row=_is_row_by_row(query),
        uncounted=(*_uncounted(query, totals, written), *unread_input),
    )


def check_row_counts(
    query: QueryDefinition,
    totals: Mapping[str, Any],
    written: Mapping[str, int | None],
    *,
    unread_input: Collection[str] = (),
    at: str = "the run",
    fix: str = _PUBLISHED,
) -> RowCounts:
    """Return the account; RowCountsError if it does not add up, *at* a batch, or the run's end."""
    account = row_counts_of(query, totals, written, unread_input)
    wrong = imbalance(account)
    if wrong is not None:
        raise RowCountsError(f"query {query.name!r}: {at} does not add up: {wrong}; {fix}")
    return account


def check_batch(query: QueryDefinition, record: EpochRecord) -> None:
    """Refuse an epoch that is staged and not recorded yet, if the run's rows do not add up."""
    written = {part["name"]: part["run_rows"] for part in record.sinks}
    at = f"batch {record.epoch}"
    check_row_counts(query, vars(record), written, at=at, fix=_NOT_PUBLISHED)


def checked_rows(taps: Sequence[Tap], counts: BatchCounts) -> dict[str, int]:
    """Return the rejected, rule-breaking and quarantined rows of a batch, for its history.

    Without what the query does not look at.
    """
    found: dict[str, int] = {}
    late = counts.late.quarantined if counts.late is not None else 0
    if late or any(tap.quarantines for tap in taps):
        taken = sum(counts.taps[tap.name].taken for tap in taps if tap.quarantines)
        found["quarantined_rows"] = taken + late
    for tap in taps:
        name = "rejected_rows" if tap.source is not None else "broken_rows"
        found[name] = found.get(name, 0) + sum(counts.taps[tap.name].broken.values())
    return found


def _added(counts: Iterable[tuple[str, RuleCount]]) -> dict[str, RuleCount]:
    found: dict[str, RuleCount] = {}
    for name, each in counts:  # a rule may be in several locations of a query
        before = found.get(name, RuleCount(0, 0, each.on))
        found[name] = RuleCount(before.rows + each.rows, before.broken + each.broken, each.on)
    return found


def _rule_count(rule: Rule, count: Mapping[str, Any]) -> RuleCount:
    return RuleCount(count["rows"], count["broken"].get(rule.name, 0), rule.on)


def _checked(query: QueryDefinition, source: str, known: Mapping[str, int] | None) -> int | None:
    scans = query.scans_of(source)
    if known is None or scans is None:
        return None
    return sum(known.get(name, 0) for name in scans)


def _late(query: QueryDefinition, late: LateRows | None) -> dict[str, int | None]:
    if late is None:
        return dict.fromkeys(query.operators, None)
    return {query.operator_name(int(operator)): rows for operator, rows in late.items()}


def _is_row_by_row(query: QueryDefinition) -> bool:
    # Other sinks may combine rows of one key; for several sinks tasks may run again, and scans
    # count their rows again.
    (*more, sink) = query.output_sinks
    return query.is_row_by_row and not more and isinstance(sink, FilesSink)


def _uncounted(
    query: QueryDefinition, totals: Mapping[str, Any], written: Mapping[str, int | None]
) -> Iterator[str]:
    yield from describe(query.known_bugs)
    if query.native is not None:
        yield f"{query.native.name} is Spark's own sink: only the last attempt's rows are counted"
    yield from _unread(query, totals)
    if totals["late_rows"] is None:
        yield "late rows: this Spark does not tell them"
    elif totals["late_minimum"]:
        yield "late rows are a minimum: some were counted by the groups that were dropped"
    if totals["late_dropped"]:
        yield (
            f"{totals['late_dropped']:,} late rows of an operator behind another one: they were "
            "dropped, and cannot be quarantined"
        )
    for sink in query.output_sinks:
        if written.get(sink.name) is None:
            yield f"{sink.name} does not tell how many rows it has written"


def _unread(query: QueryDefinition, totals: Mapping[str, Any]) -> Iterator[str]:
    foreign = [source.name for source in query.sources if not source.is_known]
    for name in foreign:
        yield f"{name}: the job opened this stream itself, so its rows are not counted"
    if totals["rows_read"] is None and not foreign:
        yield "the rows read: Spark's plan of this query does not tell them"
    for name, filters in totals["pushed_filters"].items():
        yield f"source {name}: rows that its files leave out by {filters} are not read"
    names = [source.name for source in query.sources]
    for tap in query.taps:
        if tap.source is not None and (locations := names.count(tap.source)) > 1:
            yield (
                f"source {tap.source} is read in {locations} locations, and its rejected records "
                "are counted at one of them"
            )
