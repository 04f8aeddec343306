"""Progress of a run as the lines of a live block: one of the run, and one or two of each query."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.cli.batch_lines import (
    backlog_text,
    length,
    rate_of,
    seconds_text,
    sparkline,
)
from airflow_provider.runtime.cli.live_block import width_of
from airflow_provider.runtime.cli.rates import QueryPace
from airflow_provider.runtime.clock import utc_text
from airflow_provider.runtime.jobdir.batch_history import NO_WATERMARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.cli.batch_lines import Batches
    from airflow_provider.runtime.jobdir.batch_history import BatchEntry
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

_DRAINED: Final = "9999-12-31"
_NOTHING: Final = QueryPace()


def progress_lines(
    record: ProgressRecord,
    paces: Mapping[str, QueryPace] = MappingProxyType({}),
    *,
    columns: int,
    batches: Batches | None = None,
) -> list[str]:
    """Return what a terminal shows of a run.

    Args:
        record: its progress.
        paces: what :class:`.Rates` says of each query.
        columns: how wide the terminal is; what does not fit into a line begins another one.
        batches: the last ones of each query; None to leave them out.
    """
    lines = _folded(record.phase, list(_run_parts(record, paces)), columns - 1, after_head=" · ")
    for name, query in record.queries.items():
        parts = list(_work_parts(query, paces.get(name, _NOTHING)))
        if len(record.queries) > 1 and query.get("rows_read"):
            parts.append(f"{query['rows_read']:,} rows")
        parts += _state_parts(query)
        parts += _batch_parts(batches.get(name) if batches is not None else None)
        lines += _folded(f"{name}  {query.get('phase', '-')}", parts, columns - 1)
    return lines


def _run_parts(record: ProgressRecord, paces: Mapping[str, QueryPace]) -> Iterator[str]:
    yield f"attempt {record.attempt}"
    # A batch job's rows are known when it has ended; until then none is no number, but unknown.
    if record.rows_read or not any(query.get("tasks") for query in record.queries.values()):
        yield f"{record.rows_read:,} rows read"
        if paces:
            rate = sum(pace.rows_per_second for pace in paces.values())
            yield f"{rate:,.0f} rows/s in the last minute"
    if record.late_rows:
        yield f"{'at least ' if record.late_minimum else ''}{record.late_rows:,} late"
    if record.lost_rows:
        yield f"{record.lost_rows:,} expired before they were read"


def _state_parts(query: Mapping[str, Any]) -> Iterator[str]:
    if (batch := query.get("batch")) is not None:
        yield f"batch {batch:,}"
    if (watermark := watermark_text(query.get("watermark"))) is not None:
        yield f"watermark {watermark}"
    if query.get("state_rows"):
        yield f"{query['state_rows']:,} state rows"


def _work_parts(query: Mapping[str, Any], pace: QueryPace) -> Iterator[str]:
    if (bar := pace.bar()) is not None:
        yield bar
    if (tasks := query.get("tasks")) is not None:
        yield (
            f"stage {min(tasks['stages_done'] + 1, tasks['stages'])} of {tasks['stages']}, "
            f"{tasks['tasks_done']:,} of {tasks['tasks']:,} tasks"
        )
    if query.get("backlog"):
        yield f"{backlog_text(query['backlog'])} to read"
    if (left := pace.left()) is not None:
        yield left


def _batch_parts(batches: Sequence[BatchEntry] | None) -> Iterator[str]:
    if not batches:
        return
    last = batches[-1]
    yield f"{rate_of(batches):,.0f} rows/s in a batch"
    yield f"last batch {seconds_text(last.time_ms)}"
    if last.lag_s is not None:
        yield f"{length(last.lag_s)} behind"
    yield f"batch times {sparkline([batch.time_ms for batch in batches])}"


def _folded(head: str, parts: Sequence[str], columns: int, *, after_head: str = "  ") -> list[str]:
    """Return the parts in as few lines as they fit into, each after the first one indented."""
    lines, separator = [head], after_head
    for part in parts:
        longer = f"{lines[-1]}{separator}{part}"
        if width_of(longer) <= columns:
            lines[-1] = longer
        else:
            lines.append(f"  {part}")
        separator = " · "
    return lines


def watermark_text(text: str | None) -> str | None:
    """Return a watermark for people; None before the first event."""
    if text is None or text == NO_WATERMARK:
        return None
    return "at the end of time" if text.startswith(_DRAINED) else utc_text(text)
