"""Batches of queries in words: rate, last batch, watermark, state, backlog, and a sparkline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.clock import utc_text
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.batch_history import UNREAD_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.batch_history import BatchEntry
    from airflow_provider.runtime.jobdir.layout import RunDirectory

    Batches = Mapping[str, Sequence[BatchEntry] | None]
    """The last batches of each query; None for a history that cannot be read."""

LAST: Final = 20
"""So many batches are shown."""
_BARS: Final = "▁▂▃▄▅▆▇█"
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"))


def last_batches(run: RunDirectory, queries: Iterable[str]) -> dict[str, list[BatchEntry] | None]:
    """Return the last batches of each query, oldest first; None for a history that is damaged."""
    return {query: _last_of(run, query) for query in queries}


def _last_of(run: RunDirectory, query: str) -> list[BatchEntry] | None:
    try:
        history = run.history(query)
    except CheckpointError:  # the run is in order without it
        return None
    return history.batches[-LAST:] if history is not None else []


def batch_lines(batches: Batches, progress: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each query that has run batches.

    Args:
        batches: the last ones of each query.
        progress: the run's progress record, as plain values; empty without one.
    """
    for query, found in batches.items():
        backlog = progress.get("queries", {}).get(query, {}).get("backlog")
        if found is None:
            yield f"{query}: its history of batches is damaged; the next attempt replaces it"
        elif found:
            yield f"{query}: {', '.join(_facts(found, backlog))}"


def _facts(batches: Sequence[BatchEntry], backlog: Mapping[str, int] | None) -> Iterator[str]:
    last = batches[-1]
    yield f"{rate_of(batches):,.0f} rows/s"
    times = sparkline([batch.time_ms for batch in batches])
    yield f"batch {last.batch:,} took {seconds_text(last.time_ms)} {times}"
    if last.watermark is not None:
        behind = f" ({length(last.lag_s)} behind)" if last.lag_s is not None else ""
        yield f"watermark {utc_text(last.watermark)}{behind}"
    if last.state_rows:
        yield f"{last.state_rows:,} state rows"
    if backlog:
        yield f"backlog {backlog_text(backlog)}"


def rate_of(batches: Sequence[BatchEntry]) -> float:
    """Return the rows a second of these batches, while they ran."""
    took_ms = sum(batch.time_ms for batch in batches)
    return 1000 * sum(batch.rows or 0 for batch in batches) / took_ms if took_ms else 0.0


def backlog_text(backlog: Mapping[str, int] | None) -> str:
    """Return what is unread, by the sources' own measures; a dash when that is not known."""
    parts = (
        f"{value:,} files" if key == UNREAD_FILES else f"{key} {value:,}"
        for key, value in (backlog or {}).items()
    )
    return ", ".join(parts) or "-"


def seconds_text(milliseconds: int) -> str:
    """Return a time in seconds with one digit after the point."""
    return f"{milliseconds / 1000:,.1f} s"


def length(seconds: float) -> str:
    """Return a length of time in its largest unit: ``3 min``."""
    for size, unit in _UNITS:
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, in proportion to the largest."""
    most = max(values, default=0)
    steps = len(_BARS) - 1
    return "".join(_BARS[round(steps * value / most) if most else 0] for value in values)
