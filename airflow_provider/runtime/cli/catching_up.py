"""Bars of what a run has read of its backlog, and how long the rest takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.cli.batch_lines import length
from airflow_provider.runtime.control.stream_facts import largest_backlog

if TYPE_CHECKING:
    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.jobdir.run_records import ProgressRecord

_WIDTH: Final = 12
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Unread(NamedTuple):
    """What is unread of a query, by the greatest of its measures.

    Attributes:
        at_s: when, by the clock's monotonic time.
    """

    amount: int
    at_s: float


class CatchingUp:
    """Follows the backlogs of a run's queries.

    Args:
        clock: measures how fast they shrink.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._most: dict[str, Unread] = {}

    def look(self, record: ProgressRecord) -> dict[str, str]:
        """Return a bar for each query whose sources say what is unread.

        Args:
            record: the progress of this moment.
        """
        found = {}
        for name, query in record.queries.items():
            amount = largest_backlog(query.get("backlog"))
            if amount is not None:
                now = Unread(amount, self._clock.monotonic())
                most = self._most.get(name)
                if most is None or now.amount >= most.amount:
                    self._most[name] = most = now
                found[name] = bar(most, now)
        return found


def bar(most: Unread, now: Unread) -> str:
    """Return how much of the most that was unread is read, and below it how long the rest takes.

    The time assumes that it goes on as it went since then.
    """
    read = most.amount - now.amount
    part = read / most.amount if most.amount else 1.0
    text = f"{filled(part)} {part:.0%}"
    if read and now.amount:
        left_s = (now.at_s - most.at_s) / read * now.amount
        text += f"\nabout {length(left_s)} left"
    return text


def filled(part: float) -> str:
    """Return a bar of which that part is filled."""
    eighths = round(max(0.0, min(part, 1.0)) * _WIDTH * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(_WIDTH, "░")
