"""Clock: time behind one small interface, so that tests control it; durations as texts."""

from __future__ import annotations

import datetime as dt
import logging
import re
import time
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_CALENDAR_YEARS: Final = 400  # after so many the Gregorian calendar repeats
_CALENDAR_MS: Final = 146_097 * 86_400_000
_STORED: Final = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:Z|\+00:00)")


class Clock(Protocol):
    """The runtime's source of time."""

    def now(self) -> dt.datetime:
        """Return the wall clock's time in UTC; for people and documents, never for decisions."""

    def monotonic(self) -> float:
        """Return seconds that only grow, comparable within this process."""

    def sleep(self, seconds: float) -> None:
        """Wait for *seconds*."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.timezone.utc)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def to_iso(moment: dt.datetime) -> str:
    """Write *moment* as ISO 8601 in UTC with milliseconds and a final ``Z``."""
    text = moment.astimezone(dt.timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def from_iso(text: str) -> dt.datetime:
    """Read ISO 8601 with ``Z`` or an offset; raise ValueError for anything else."""
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 reads no Z


def utc_text(text: str | None) -> str:
    """Return a stored time for people, with its zone: ``2026-11-23 01:00:05 UTC``."""
    if text is None:
        return "-"
    found = _STORED.fullmatch(text)
    return f"{found[1]} {found[2]} UTC" if found is not None else text


LOG_TIME: Final = r"(?:\d{4}-\d\d-\d\d|\d\d/\d\d/\d\d) \d\d:\d\d:\d\d(?:\.\d+)?(?: UTC)?"
"""The time of a line in a driver's log or in Spark's, also in a user's configuration."""


def log_formatter() -> logging.Formatter:
    """Return the format of the log's lines, with the time in UTC and the zone."""
    formatter = logging.Formatter(
        "%(asctime)s UTC %(levelname)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S"
    )
    formatter.converter = time.gmtime
    return formatter


def millis_to_iso(epoch_ms: int) -> str:
    """Write milliseconds since 1970 in UTC like :func:`to_iso`."""
    cycles, within_ms = divmod(epoch_ms, _CALENDAR_MS)
    moment = _EPOCH + dt.timedelta(milliseconds=within_ms)
    year = moment.year + cycles * _CALENDAR_YEARS
    text = to_iso(moment)[4:]
    return f"{year:04}{text}" if 0 <= year <= dt.MAXYEAR else f"{year:+05}{text}"


class Due:
    """True on the first call, and then once in each interval of *every_s* seconds."""

    def __init__(self, clock: Clock, every_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._next: float | None = None

    def __call__(self) -> bool:
        now = self._clock.monotonic()
        if self._next is not None and now < self._next:
            return False
        self._next = now + self._every_s
        return True


_UNITS = {
    "ms": "milliseconds",
    "millisecond": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "second": "seconds",
    "m": "minutes",
    "min": "minutes",
    "minute": "minutes",
    "h": "hours",
    "hour": "hours",
    "d": "days",
    "day": "days",
    "w": "weeks",
    "week": "weeks",
}
_ISO = re.compile(
    r"P(?=.)(?:(?P<weeks>N)W)?(?:(?P<days>N)D)?"
    r"(?:T(?=.)(?:(?P<hours>N)H)?(?:(?P<minutes>N)M)?(?:(?P<seconds>N)S)?)?".replace(
        "N", r"\d+(?:[.,]\d+)?"
    )
)
_LONGEST_S = 1e10  # some 300 years: longer, and a typing error is likelier than the wish
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?")


def parse_duration(value: str | float, *, name: str = "duration") -> float:
    """Read a duration in seconds, zero or more; errors name *name*.

    *value* is ``"10 seconds"``, ``"1 minute 30 seconds"``, ISO 8601 such as ``"PT1M30S"``, or
    seconds as a number or as its text. Calendar units (months, years) have no fixed length and are
    refused.

    Raises:
        ConfigError: the text is not a duration, or it is negative or infinite.
    """
    try:
        seconds = _seconds_of(value)
    except OverflowError:
        seconds = None
    if seconds is None or not 0 <= seconds <= _LONGEST_S:
        raise ConfigError(
            f"{name}: {value!r} is not a duration; write for example '10 seconds', "
            "'1 minute 30 seconds', 'PT10S' or a number of seconds"
        )
    return seconds


def _seconds_of(value: str | float) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value)
    text = value.strip()
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    if text[:1] in {"P", "p"}:
        return _iso_seconds(text.upper())
    return _words_seconds(text.lower())


def _iso_seconds(text: str) -> float | None:
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    parts = {unit: part.replace(",", ".") for unit, part in match.groupdict().items() if part}
    if any("." in part for part in [*parts.values()][:-1]):
        return None  # only the last may have a fraction
    return _total_s({unit: float(part) for unit, part in parts.items()})


def _words_seconds(text: str) -> float | None:
    parts: dict[str, float] = {}
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        unit = match and (_UNITS.get(match[2]) or _UNITS.get(match[2].removesuffix("s")))
        if match is None or not unit or unit in parts:
            return None
        parts[unit] = float(match[1])
        position = match.end()
    return _total_s(parts) if parts else None


def _total_s(parts: Mapping[str, float]) -> float:
    # Not pendulum's duration: a driver on a cluster has PySpark and fsspec, and nothing of Airflow.
    return dt.timedelta(**parts).total_seconds()
