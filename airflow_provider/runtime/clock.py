"""Time behind one small interface, so that tests own it."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final, Protocol

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_CALENDAR_YEARS: Final = 400  # after so many the Gregorian calendar begins anew
_CALENDAR_MS: Final = 146_097 * 86_400_000


class Clock(Protocol):
    """What the runtime knows of time."""

    def now(self) -> dt.datetime:
        """Return the wall clock's time in UTC; for people and documents, never for decisions."""

    def monotonic(self) -> float:
        """Return seconds that only grow, comparable within this process."""

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> dt.datetime:
        """Return the time in UTC."""
        return dt.datetime.now(dt.timezone.utc)

    def monotonic(self) -> float:
        """Return seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*."""
        time.sleep(seconds)


def to_iso(moment: dt.datetime) -> str:
    """Write *moment* as ISO 8601 in UTC with milliseconds and a final ``Z``."""
    text = moment.astimezone(dt.timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_iso(text: str) -> dt.datetime:
    """Read what :func:`to_iso` has written, or any other ISO 8601, with ``Z`` or an offset.

    Raises:
        ValueError: it is no time.
    """
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z


def millis_to_iso(epoch_ms: int) -> str:
    """Write *epoch_ms* (milliseconds since 1970 in UTC) like :func:`to_iso`.

    A year of more than four digits, which Python's datetime does not know, has a sign, as ISO 8601
    expands years and Spark writes them: ``+10000-01-01T00:00:00.000Z``.
    """
    cycles, within_ms = divmod(epoch_ms, _CALENDAR_MS)
    moment = _EPOCH + dt.timedelta(milliseconds=within_ms)
    year = moment.year + cycles * _CALENDAR_YEARS
    text = to_iso(moment)[4:]
    return f"{year:04}{text}" if 0 <= year <= dt.MAXYEAR else f"{year:+05}{text}"


class Due:
    """Says every so often that it is time, at once to begin with.

    Args:
        clock: time.
        every_s: seconds between.
    """

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._next: float | None = None

    def __call__(self) -> bool:
        """Tell whether it is time; if it is, it is not again for a while."""
        now = self._clock.monotonic()
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._every_s
        return True
