"""Facts of a stream for people: ages, its backlog, restarts, and whether its driver is well. Pure.

Ages are by the reader's wall clock, against times that drivers have recorded. They are
shown and measured; nothing is decided by them.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.clock import from_iso, to_iso
from airflow_provider.runtime.errors.failure import Failure
from airflow_provider.runtime.jobdir.run_records import REPORT_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, ProgressRecord

_REPORTS_MISSED: Final = 6  # a report may be late behind a long batch's end or an outage
_LAST_YEAR: Final = 9999  # the watermark of a drain is no moment of the data
_FIRST_YEAR: Final = 1970  # that of a query that has none yet


def age_s(moment: str | None, now: dt.datetime) -> float | None:
    """Return how long ago a stored moment was; None for no moment, and for no moment of data."""
    try:
        then = from_iso(moment) if moment else None
    except ValueError:
        return None
    if then is None or then.year in {_FIRST_YEAR, _LAST_YEAR}:
        return None
    return (now - then).total_seconds()


def largest_backlog(backlog: Mapping[str, int] | None) -> int | None:
    """Return how much is unread; None when no source says.

    Sources report several measures of the same, such as the greatest and the mean distance of
    partitions; the greatest is what people look at.
    """
    return max((backlog or {}).values(), default=None)


def committed_at(began: str | None, took_ms: float | None) -> str | None:
    """Return when a batch ended: its history has its begin, and how long it took."""
    try:
        begin = from_iso(began) if began else None
    except ValueError:
        return None
    return to_iso(begin + dt.timedelta(milliseconds=took_ms or 0)) if begin else None


def restart_count(attempt: AttemptRecord | None) -> int:
    """Return how often a run was started again: drivers after the first, and within the last."""
    if attempt is None:
        return 0
    inside = attempt.restarts["count"] if attempt.restarts else 0
    return attempt.attempt - 1 + int(inside)


def driver_trouble(
    progress: ProgressRecord | None,
    attempt: AttemptRecord | None,
    *,
    now: dt.datetime,
    is_live: bool,
) -> str | None:
    """Return why a running driver is unhealthy, or None.

    Args:
        progress: the run's last report, perhaps of an earlier driver.
        attempt: the run's last attempt.
        now: by the reader's clock.
        is_live: whether its heartbeat is current, so that reports are to be expected.
    """
    # A driver that has just begun has not reported yet: its begin counts as a report.
    seen = (progress.at if progress else None, attempt.started if attempt else None)
    silent_s = _least(age_s(moment, now) for moment in seen) if progress else None
    if is_live and silent_s is not None and silent_s > _REPORTS_MISSED * REPORT_S:
        return f"its driver lives, and has not reported for {_about(silent_s)}"
    restarts = attempt.restarts if attempt else None
    if restarts and restarts["worked_s"] <= 0:
        failure = Failure.from_dict(restarts["failure"])
        return f"a query is started again after {failure.describe()}"
    return None


def _about(seconds: float) -> str:
    """Return a time of a minute or more in words."""
    for unit, unit_s in (("day", 86_400), ("hour", 3600)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def _least(ages: Iterable[float | None]) -> float | None:
    return min((age for age in ages if age is not None), default=None)
