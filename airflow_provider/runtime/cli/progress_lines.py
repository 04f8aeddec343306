"""Progress of a run as lines for people: one of the run, and one or two of each query."""

from __future__ import annotations

import dataclasses
from collections import deque
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.base.clock import utc_text
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.jobdir.batch_history import NO_WATERMARK, UNREAD_FILES
from airflow_provider.runtime.jobdir.query_reports import quarantine_totals
from airflow_provider.runtime.observe.samples import largest_backlog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.batch_history import BatchEntry
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.query_reports import QueryProgress
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

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


def batch_lines(batches: Batches, progress: ProgressRecord | None) -> Iterator[str]:
    """Yield a line for each query that has run batches."""
    for query, found in batches.items():
        reported = progress.queries.get(query) if progress is not None else None
        backlog = reported.backlog if reported is not None else None
        if found is None:
            yield f"{query}: its history of batches is damaged; the next attempt replaces it"
        elif found:
            yield f"{query}: {', '.join(_facts(found, backlog))}"


def _facts(batches: Sequence[BatchEntry], backlog: Mapping[str, int] | None) -> Iterator[str]:
    last = batches[-1]
    yield f"{_rate_of(batches):,.0f} rows/s"
    times = sparkline([batch.time_ms for batch in batches])
    yield f"batch {last.batch:,} took {_seconds_text(last.time_ms)} {times}"
    if last.watermark is not None:
        behind = f" ({length(last.lag_s)} behind)" if last.lag_s is not None else ""
        yield f"watermark {utc_text(last.watermark)}{behind}"
    if last.state_rows:
        yield f"{last.state_rows:,} state rows"
    if backlog:
        yield f"backlog {_backlog_text(backlog)}"


def _rate_of(batches: Sequence[BatchEntry]) -> float:
    took_ms = sum(batch.time_ms for batch in batches)
    return 1000 * sum(batch.rows or 0 for batch in batches) / took_ms if took_ms else 0.0


def _backlog_text(backlog: Mapping[str, int] | None) -> str:
    parts = (
        f"{value:,} files" if key == UNREAD_FILES else f"{key} {value:,}"
        for key, value in (backlog or {}).items()
    )
    return ", ".join(parts) or "-"


def _seconds_text(milliseconds: int) -> str:
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


_WIDTH: Final = 12
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_MINUTE_S: Final = 60.0


class Reading(NamedTuple):
    """A number at a moment of the clock's monotonic time."""

    amount: float
    at_s: float


class _LastMinute:
    def __init__(self) -> None:
        self._seen: deque[Reading] = deque()

    def add(self, amount: float, at_s: float) -> None:
        self._seen.append(Reading(amount, at_s))
        # The last one before the minute stays: from it on the minute is whole.
        while len(self._seen) > 2 and self._seen[1].at_s <= at_s - _MINUTE_S:  # noqa: PLR2004 - one to measure from, one to measure to
            self._seen.popleft()

    def rate(self) -> float:
        if not self._seen:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        seconds = last.at_s - first.at_s
        return (last.amount - first.amount) / seconds if seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class QueryPace:
    """The speed of a query.

    Attributes:
        rows_per_second: in the last minute.
        part: the finished part of its work, from 0 to 1; None if unknown.
        left_s: the remaining time at the speed of the last minute; None if unknown.
    """

    rows_per_second: float = 0.0
    part: float | None = None
    left_s: float | None = None

    def bar(self) -> str | None:
        return None if self.part is None else f"{filled(self.part)} {self.part:.0%}"

    def left(self) -> str | None:
        return None if self.left_s is None else f"about {length(self.left_s)} left"


class Rates:
    """Follows the queries of a run: their speed, and their remaining work."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most: dict[str, float] = {}
        self._done: dict[str, _LastMinute] = {}
        self._rows: dict[str, _LastMinute] = {}

    def update(self, record: ProgressRecord) -> dict[str, QueryPace]:
        now_s = self._clock.monotonic()
        return {name: self._pace_of(name, query, now_s) for name, query in record.queries.items()}

    def _pace_of(self, name: str, query: QueryProgress, now_s: float) -> QueryPace:
        rows = self._rows.setdefault(name, _LastMinute())
        rows.add(query.rows_read or 0, now_s)
        rate = max(rows.rate(), 0.0)
        work = self._work_of(name, query)
        if work is None:
            return QueryPace(rate)
        done, whole = work
        minute = self._done.setdefault(name, _LastMinute())
        minute.add(done, now_s)
        left, speed = whole - done, minute.rate()
        return QueryPace(
            rate, done / whole if whole else 1.0, left / speed if left and speed > 0 else None
        )

    def _work_of(self, name: str, query: QueryProgress) -> tuple[float, float] | None:
        if (tasks := query.tasks) is not None:
            return tasks.tasks_done, tasks.tasks
        unread = largest_backlog(query.backlog)
        if unread is None:
            return None
        most = self._most[name] = max(self._most.get(name, 0), unread)
        return most - unread, most


def filled(part: float) -> str:
    """Return a bar of which that part is filled."""
    eighths = round(max(0.0, min(part, 1.0)) * _WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_WIDTH, "░")


_DRAINED: Final = "9999-12-31"
_NOTHING: Final = QueryPace()


def progress_lines(
    record: ProgressRecord,
    paces: Mapping[str, QueryPace] = MappingProxyType({}),
    *,
    columns: int,
    batches: Batches | None = None,
) -> list[str]:
    """Return the lines of a run for a terminal."""
    lines = _folded(record.phase, list(_run_parts(record, paces)), columns - 1, after_head=" · ")
    for name, query in record.queries.items():
        parts = list(_work_parts(query, paces.get(name, _NOTHING)))
        if len(record.queries) > 1 and query.rows_read:
            parts.append(f"{query.rows_read:,} rows")
        parts += _state_parts(query)
        parts += _batch_parts(batches.get(name) if batches is not None else None)
        lines += _folded(f"{name}  {query.phase}", parts, columns - 1)
    return lines


def plain_line(record: ProgressRecord) -> str:
    """Return a line of a run's progress where nothing is drawn."""
    rate = f"{record.rows_per_second:,.0f} rows/s"
    return f"{utc_text(record.at)} {record.phase}, {record.rows_read:,} rows read, {rate}"


def _run_parts(record: ProgressRecord, paces: Mapping[str, QueryPace]) -> Iterator[str]:
    yield f"attempt {record.attempt}"
    # A batch job's rows are known when it has ended; until then none is no number, but unknown.
    if record.rows_read or not any(query.tasks for query in record.queries.values()):
        yield f"{record.rows_read:,} rows read"
        if paces:
            rate = sum(pace.rows_per_second for pace in paces.values())
            yield f"{rate:,.0f} rows/s in the last minute"
    if record.late_rows:
        yield f"{'at least ' if record.late_minimum else ''}{record.late_rows:,} late"
    quarantined = quarantine_totals(record.queries)
    if quarantined.has_any:
        yield str(quarantined)
    if record.lost_rows:
        yield f"{record.lost_rows:,} expired before they were read"


def _state_parts(query: QueryProgress) -> Iterator[str]:
    if query.batch is not None:
        yield f"batch {query.batch:,}"
    if (watermark := watermark_text(query.watermark)) is not None:
        yield f"watermark {watermark}"
    if query.state_rows:
        yield f"{query.state_rows:,} state rows"


def _work_parts(query: QueryProgress, pace: QueryPace) -> Iterator[str]:
    if (bar := pace.bar()) is not None:
        yield bar
    if (tasks := query.tasks) is not None:
        yield (
            f"stage {min(tasks.stages_done + 1, tasks.stages)} of {tasks.stages}, "
            f"{tasks.tasks_done:,} of {tasks.tasks:,} tasks"
        )
    if query.backlog:
        yield f"{_backlog_text(query.backlog)} to read"
    if (left := pace.left()) is not None:
        yield left


def _batch_parts(batches: Sequence[BatchEntry] | None) -> Iterator[str]:
    if not batches:
        return
    last = batches[-1]
    yield f"{_rate_of(batches):,.0f} rows/s in a batch"
    yield f"last batch {_seconds_text(last.time_ms)}"
    if last.lag_s is not None:
        yield f"{length(last.lag_s)} behind"
    yield f"batch times {sparkline([batch.time_ms for batch in batches])}"


def _folded(head: str, parts: Sequence[str], columns: int, *, after_head: str = "  ") -> list[str]:
    lines, separator = [head], after_head
    for part in parts:
        longer = f"{lines[-1]}{separator}{part}"
        if len(longer) <= columns:
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
