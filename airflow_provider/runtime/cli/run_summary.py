"""Summary of a run that has ended: rows in, out and late, where they are, and seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.jobdir.late_rows import describe_dropped_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint

_MOST_SINKS: Final = 8  # the others are in the final checkpoint


def summary_lines(final: FinalCheckpoint, *, took_s: float) -> Iterator[str]:
    """Yield the lines with which a run ends on a terminal.

    Args:
        final: its final checkpoint.
        took_s: how long this command has run; earlier attempts are not in it.
    """
    sinks = [(name, sink) for name, query in final.queries.items() for sink in query["sinks"]]
    rows = [
        f"{_number(final.rows_read, final.rows_minimum)} rows in",
        f"{_number(_sum_of([sink for _, sink in sinks]), final.rows_minimum)} out",
        f"{_number(final.late_rows, final.late_minimum)} late",
    ]
    head = f"{final.outcome}: run {final.run_id}, attempt {final.attempts}"
    yield f"{head}, {took_s:,.1f} s: {', '.join(rows)}"
    for name, sink in sinks[:_MOST_SINKS]:
        yield f"  {name} -> {sink['name']}: {_number(sink['rows'])} rows"
    if len(sinks) > _MOST_SINKS:
        yield f"  and {len(sinks) - _MOST_SINKS} more sinks"
    yield from describe_dropped_rows(final.to_dict())


def _sum_of(sinks: list[Mapping[str, Any]]) -> int | None:
    """Return the rows of all sinks together; None when one of them does not know."""
    rows = [sink["rows"] for sink in sinks]
    return None if None in rows else sum(rows)


def _number(value: int | None, is_minimum: bool = False) -> str:  # noqa: FBT001, FBT002 - of a number
    at_least = "at least " if is_minimum else ""
    return "unknown" if value is None else f"{at_least}{value:,}"
