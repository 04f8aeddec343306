"""Rates of the last minute, bars of what is read or done, and how long the rest takes."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.cli.batch_lines import length
from airflow_provider.runtime.observe.samples import largest_backlog

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

_WIDTH: Final = 12
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_MINUTE_S: Final = 60.0


class Reading(NamedTuple):
    """A number at a moment.

    Attributes:
        at_s: by the clock's monotonic time.
    """

    amount: float
    at_s: float


class LastMinute:
    """A number's change in the last minute, or since it was first seen if that is later."""

    def __init__(self) -> None:
        self._seen: deque[Reading] = deque()

    def add(self, amount: float, at_s: float) -> None:
        """Take the number of this moment."""
        self._seen.append(Reading(amount, at_s))
        # The last one before the minute stays: from it on the minute is whole.
        while len(self._seen) > 2 and self._seen[1].at_s <= at_s - _MINUTE_S:  # noqa: PLR2004 - one to measure from, one to measure to
            self._seen.popleft()

    def rate(self) -> float:
        """Return by how much it grows in a second; 0 before two moments are known."""
        if not self._seen:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        seconds = last.at_s - first.at_s
        return (last.amount - first.amount) / seconds if seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class QueryPace:
    """How a query goes on.

    Attributes:
        rows_per_second: of the last minute.
        part: how much of its work is done, from 0 to 1; None where nobody knows.
        left_s: how long the rest takes if it goes on as in the last minute; None as before.
    """

    rows_per_second: float = 0.0
    part: float | None = None
    left_s: float | None = None

    def bar(self) -> str | None:
        """Return the part as a bar with its number."""
        return None if self.part is None else f"{filled(self.part)} {self.part:.0%}"

    def left(self) -> str | None:
        """Return the time that is left, in words."""
        return None if self.left_s is None else f"about {length(self.left_s)} left"


class Rates:
    """Follows the queries of a run: what they read, and what they have yet to read or do.

    Args:
        clock: measures how fast.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most: dict[str, float] = {}
        self._done: dict[str, LastMinute] = {}
        self._rows: dict[str, LastMinute] = {}

    def look(self, record: ProgressRecord) -> dict[str, QueryPace]:
        """Return the pace of each query.

        Args:
            record: the progress of this moment.
        """
        now_s = self._clock.monotonic()
        return {name: self._look(name, query, now_s) for name, query in record.queries.items()}

    def _look(self, name: str, query: Mapping[str, Any], now_s: float) -> QueryPace:
        rows = self._rows.setdefault(name, LastMinute())
        rows.add(query.get("rows_read") or 0, now_s)
        rate = max(rows.rate(), 0.0)
        work = self._work_of(name, query)
        if work is None:
            return QueryPace(rate)
        done, whole = work
        minute = self._done.setdefault(name, LastMinute())
        minute.add(done, now_s)
        left, speed = whole - done, minute.rate()
        return QueryPace(
            rate, done / whole if whole else 1.0, left / speed if left and speed > 0 else None
        )

    def _work_of(self, name: str, query: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return what is done of how much, in tasks or in what the sources count."""
        if (tasks := query.get("tasks")) is not None:
            return tasks["tasks_done"], tasks["tasks"]
        unread = largest_backlog(query.get("backlog"))
        if unread is None:
            return None
        most = self._most[name] = max(self._most.get(name, 0), unread)
        return most - unread, most


def filled(part: float) -> str:
    """Return a bar of which that part is filled."""
    eighths = round(max(0.0, min(part, 1.0)) * _WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_WIDTH, "░")
