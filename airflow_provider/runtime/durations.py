"""The one parser of durations: ``"10 seconds"``, ``"PT10S"``, or a number of seconds."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Read a duration.

    Args:
        value: ``"10 seconds"``, ``"1 minute 30 seconds"``, ISO 8601 such as ``"PT1M30S"``, or
            seconds as a number or as its text. Calendar units (months, years) have no fixed length
            and are refused.
        name: what the duration is for, named in the error.

    Returns:
        Seconds, zero or more.

    Raises:
        ConfigError: the text is not a duration, or it is negative or infinite.
    """
    try:
        seconds = _seconds_of(value)
    except OverflowError:
        seconds = None
    if seconds is None or not 0 <= seconds <= _LONGEST_S:
        msg = (
            f"{name}: {value!r} is not a duration; write for example '10 seconds', "
            "'1 minute 30 seconds', 'PT10S' or a number of seconds"
        )
        raise ConfigError(msg)
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
