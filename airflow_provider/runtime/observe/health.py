"""Health of a driver: decides whether one with a current heartbeat makes progress; pure.

Each symptom may last for a stated time *on the observer's own monotonic clock*: no report (except
while a request is open), no commit although there is work, too much lag, and no end after a request
to end. Time without polls does not count. A stream with silent input is healthy.

:func:`driver_trouble`, for people and metrics, sees one snapshot and compares wall clocks. No
driver is stopped because of it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.jobdir.run_records import REPORT_S

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, ProgressRecord

NO_PROGRESS: Final = "NO_PROGRESS"
LAG: Final = "LAG"
SILENT_S: Final = 6 * REPORT_S
"""How long a driver may report nothing: a report may be late behind a long batch or an outage."""
_LAST_YEAR: Final = 9999  # the watermark of a drain is no moment of the data
_FIRST_YEAR: Final = 1970  # that of a query that has none yet
_AWAY: Final = 0.5  # of the time allowed: who has not looked for so long has not seen it last


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a healthy driver.

    Attributes:
        progress_timeout_s: how long there may be no progress; None for no limit.
        lag: how much may be unread, by the measure that the source reports.
        lag_time_s: how long more than that may be unread.
    """

    progress_timeout_s: float | None = None
    lag: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lag_time_s: float = 0.0

    @property
    def allow_all(self) -> bool:
        return self.progress_timeout_s is None and not self.lag


@dataclasses.dataclass(frozen=True)
class QuerySample:
    """One sample of a query.

    Attributes:
        planned: its last planned batch, -1 for none.
        committed: its last committed batch, -1 for none.
        backlog: the unread input, by the sources' own measures.
    """

    planned: int
    committed: int
    backlog: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def has_work(self) -> bool:
        return self.planned > self.committed or any(n > 0 for n in self.backlog.values())


@dataclasses.dataclass(frozen=True)
class DriverSample:
    """One sample of a driver.

    Attributes:
        token: its lease.
        report: identifies its last report; None before its first one.
        is_asked: whether it has an open request, such as a stop with a savepoint: meanwhile no
            report is expected.
        is_leaving: whether it has a request to end.
    """

    token: int
    host: str
    report: str | None = None
    queries: Mapping[str, QuerySample] = dataclasses.field(default_factory=dict)
    is_asked: bool = False
    is_leaving: bool = False


@dataclasses.dataclass(frozen=True)
class HealthProblem:
    """A problem of a driver.

    Attributes:
        condition: :data:`NO_PROGRESS` or :data:`LAG`.
        query: the query; None when it is the driver.
        batch: the batch that does not end; None when it is none.
    """

    condition: str
    reason: str
    host: str
    query: str | None = None
    batch: int | None = None

    def failure(self) -> Failure:
        return Failure(
            failure_class=FailureClass.RECOVERABLE,
            reason=self.reason,
            condition=self.condition,
            query=self.query,
            host=self.host,
            batch=self.batch,
            rule="the stream is alive, but makes no progress",
            restartable=False,
        )


class _Symptom(NamedTuple):
    """A symptom of one sample; a commit or a report changes its *key*."""

    key: tuple[str | int | None, ...]
    allowed_s: float
    problem: HealthProblem


@dataclasses.dataclass(frozen=True)
class Health:
    """The health history of one driver.

    Attributes:
        since_s: since when each symptom has been in every sample.
        looked_s: the time of the last sample; None before the first.
    """

    since_s: Mapping[tuple[str | int | None, ...], float] = dataclasses.field(default_factory=dict)
    looked_s: float | None = None

    def after(
        self, sample: DriverSample, limits: Limits, now_s: float
    ) -> tuple[Health, HealthProblem | None]:
        """Return the health after one more sample, and the problem; *now_s* is monotonic time."""
        since: dict[tuple[str | int | None, ...], float] = {}
        found: HealthProblem | None = None
        away_s = now_s - self.looked_s if self.looked_s is not None else 0.0
        for sign in _signs(sample, limits):
            was_away = away_s > sign.allowed_s * _AWAY
            since[sign.key] = now_s if was_away else self.since_s.get(sign.key, now_s)
            if found is None and now_s - since[sign.key] >= sign.allowed_s:
                found = sign.problem
        return Health(since, now_s), found


def _signs(sample: DriverSample, limits: Limits) -> Iterator[_Symptom]:
    if limits.progress_timeout_s is not None:
        yield from _stalls(sample, limits.progress_timeout_s)
    if not sample.is_leaving:
        yield from _lags(sample, limits)


def _stalls(sample: DriverSample, progress_timeout_s: float) -> Iterator[_Symptom]:
    if sample.is_leaving:
        reason = (
            f"the driver with lease {sample.token} was requested to end, and has not in "
            f"{progress_timeout_s:g} seconds; end its process on {sample.host}"
        )
        yield _Symptom(
            ("end", sample.token),
            progress_timeout_s,
            HealthProblem(NO_PROGRESS, reason, sample.host),
        )
        return
    has_begun = sample.report is not None
    what = "has reported nothing" if has_begun else "has not begun its queries"
    allowed_s = max(progress_timeout_s, SILENT_S) if has_begun else progress_timeout_s
    reason = f"the driver with lease {sample.token} {what} for {allowed_s:g} seconds"
    key = ("report", sample.token, sample.report)
    if not sample.is_asked:
        yield _Symptom(key, allowed_s, HealthProblem(NO_PROGRESS, reason, sample.host))
    for name, query in sample.queries.items():
        if query.has_work:
            yield _no_commit(sample, name, query, progress_timeout_s)


def _no_commit(
    sample: DriverSample, name: str, query: QuerySample, progress_timeout_s: float
) -> _Symptom:
    is_open = query.planned > query.committed
    what = (
        f"batch {query.planned} is planned"
        if is_open
        else f"there is more to read ({_described(query.backlog)})"
    )
    reason = f"{what}, and no batch was committed for {progress_timeout_s:g} seconds"
    batch = query.planned if is_open else None
    problem = HealthProblem(NO_PROGRESS, reason, sample.host, name, batch)
    return _Symptom(("commit", sample.token, name, query.committed), progress_timeout_s, problem)


def _lags(sample: DriverSample, limits: Limits) -> Iterator[_Symptom]:
    for name, query in sample.queries.items():
        for measure, limit in limits.lag.items():
            unread = query.backlog.get(measure, 0)
            if unread > limit:
                reason = (
                    f"{measure} is {unread:,}, and was over {limit:,} for {limits.lag_time_s:g} "
                    "seconds"
                )
                problem = HealthProblem(LAG, reason, sample.host, name)
                yield _Symptom(("lag", sample.token, name, measure), limits.lag_time_s, problem)


def _described(backlog: Mapping[str, int]) -> str:
    return ", ".join(f"{measure} {unread:,}" for measure, unread in sorted(backlog.items()))


def age_s(moment: str | None, now: dt.datetime) -> float | None:
    """Return how long ago a stored moment was; None for no moment, and for no moment of data."""
    try:
        then = from_iso(moment) if moment else None
    except ValueError:
        return None
    if then is None or then.year in {_FIRST_YEAR, _LAST_YEAR}:
        return None
    return (now - then).total_seconds()


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
        is_live: whether its heartbeat is current, so that reports are expected.
    """
    # A driver that has just begun has not reported yet: its begin counts as a report.
    seen = (progress.at if progress else None, attempt.started if attempt else None)
    ages = [age for moment in seen if (age := age_s(moment, now)) is not None]
    silent_s = min(ages, default=None) if progress else None
    if is_live and silent_s is not None and silent_s > SILENT_S:
        return f"its driver lives, and has not reported for {_about(silent_s)}"
    restarts = attempt.restarts if attempt else None
    if restarts and restarts["worked_s"] <= 0:
        failure = Failure.from_dict(restarts["failure"])
        return f"a query is started again after {failure.describe()}"
    return None


def _about(seconds: float) -> str:
    for unit, unit_s in (("day", 86_400), ("hour", 3600)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}s"
    minutes = max(1, round(seconds / 60))
    return f"{minutes} minute{'' if minutes == 1 else 's'}"
