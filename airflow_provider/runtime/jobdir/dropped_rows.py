"""Rows that a run dropped, lost, quarantined or cannot count, in sentences for people."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from airflow_provider.runtime.jobdir.query_reports import output_sinks, quarantine_totals
from airflow_provider.runtime.jobdir.run_options import QUARANTINE
from airflow_provider.runtime.jobdir.run_records import FINISHED, FinalCheckpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.query_reports import QueryReport

log = logging.getLogger(__name__)


class RunReport(Protocol):
    """A document that counts the rows of a run: progress, the final checkpoint, a stream's report.

    Attributes:
        late_minimum: whether more rows than *late_rows* may have come late.
    """

    @property
    def rows_read(self) -> int | None: ...
    @property
    def late_rows(self) -> int | None: ...
    @property
    def late_minimum(self) -> bool: ...
    @property
    def lost_rows(self) -> int | None: ...
    @property
    def queries(self) -> Mapping[str, QueryReport]: ...


def describe_dropped_rows(report: RunReport) -> list[str]:
    """Return the rows that a run dropped or lost, and the timers that it ignored, a line each.

    For a FINISHED run also that nothing was written of the rows read: with a wrong separator or
    column order all times are NULL, and no window has such a row.
    """
    final = report if isinstance(report, FinalCheckpoint) else None
    late = describe_late_rows(report)
    found = [*_describe_quarantined_rows(report), *([late] if late is not None else [])]
    if report.lost_rows:
        lost = f"{report.lost_rows:,} messages had expired before they were read"
        found.append(f"{lost} (failOnDataLoss=false)")
    if final is not None and final.ignored_timers:
        found.append(_describe_ignored_timers(final))
    if not found and final is not None and _has_written_nothing(final):
        found.append(
            f"{final.rows_read:,} rows were read and none was written: see that the schema, "
            "the times and the filters fit the data"
        )
    return found


def _describe_ignored_timers(final: FinalCheckpoint) -> str:
    operators = [
        f"{operator.ignored_timers:,} of operator {operator.name} of query {name}"
        for name, query in final.queries.items()
        for operator in query.operators
        if operator.ignored_timers
    ]
    return (
        f"{final.ignored_timers:,} timers that callbacks registered while the job was drained "
        f"never fire: {', '.join(operators)}"
    )


def _has_written_nothing(final: FinalCheckpoint) -> bool:
    if final.outcome != FINISHED or not final.rows_read or final.rows_minimum:
        return False
    sinks = output_sinks(final.queries)
    return bool(sinks) and all(sink.rows == 0 for sink in sinks)


def describe_late_rows(report: RunReport) -> str | None:
    """Return in words what a run has dropped as late; None when it has dropped nothing."""
    late, rows = report.late_rows, report.rows_read
    if not late:
        return None
    share = f" of {rows:,} read ({100 * late / rows:.3g} %)" if rows else ""
    operators = [
        f"{operator.late_rows:,} by operator {operator.name} of query {name}"
        for name, query in report.queries.items()
        for operator in query.operators
        if operator.late_rows
    ]
    at_least = "at least " if report.late_minimum else ""
    quarantined = quarantine_totals(report.queries).late
    became = (
        f"were dropped, and {quarantined:,} of them quarantined" if quarantined else "were dropped"
    )
    return f"{at_least}{late:,} rows{share} came late and {became}: {', '.join(operators)}"


def _describe_quarantined_rows(report: RunReport) -> Iterator[str]:
    for name, query in report.queries.items():
        for source, each in query.row_counts.rejected.items():
            if each.broken:
                what = f"{each.broken:,} of {each.rows:,} records of source {source}"
                became = "quarantined" if each.on == QUARANTINE else "left out"
                yield f"{what} could not be read, and were {became} (query {name})"
        for rule, each in query.row_counts.rules.items():
            if each.broken:
                what = f"{each.broken:,} of {each.rows:,} rows"
                became = "were quarantined" if each.on == QUARANTINE else "were kept"
                yield f"{what} broke the rule {rule}, and {became} (query {name})"


def describe_uncounted(report: RunReport) -> Iterator[str]:
    """Yield what a run cannot count, a line each."""
    for name, query in report.queries.items():
        for sentence in query.row_counts.uncounted:
            yield f"not counted of query {name}: {sentence}"


class LateWarnings:
    """Warns of late rows in the log: of the first ones, and whenever they have doubled."""

    def __init__(self) -> None:
        self._logged_rows = 0

    def look(self, report: RunReport) -> None:
        late = report.late_rows or 0
        if late and late >= 2 * self._logged_rows:
            self._logged_rows = late
            log.warning("%s", describe_late_rows(report))
