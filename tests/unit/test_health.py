"""Health of a driver with a current heartbeat: observations and a clock in, a judgement out."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.observe.health import (
    LAG,
    NO_PROGRESS,
    DriverSample,
    Health,
    HealthProblem,
    Limits,
    QuerySample,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SILENCE = Limits(progress_timeout_s=60)
LAGGING = Limits(lag={"maxOffsetsBehindLatest": 100}, lag_time_s=60)
IDLE = QuerySample(planned=4, committed=4)
OPEN = QuerySample(planned=5, committed=4)
BEHIND = QuerySample(planned=4, committed=4, backlog={"maxOffsetsBehindLatest": 101})


def sample(
    query: QuerySample | None = None, *, token: int = 1, report: str | None = ""
) -> DriverSample:
    queries = {} if query is None else {"daily": query}
    return DriverSample(token, "worker-7", report, queries)


def judged(
    samples: Iterable[tuple[float, DriverSample]], limits: Limits = SILENCE
) -> list[tuple[float, HealthProblem]]:
    """Return the problems of a series of samples, and when each was found."""
    health, found = Health(), []
    for at, each in samples:
        # A driver that works reports something new each time, unless the test says otherwise.
        seen = each if each.report != "" else dataclasses.replace(each, report=f"at {at}")
        health, problem = health.after(seen, limits, at)
        if problem is not None:
            found.append((at, problem))
    return found


def every(
    step: int, until: int, of: DriverSample, *, begin: int = 0
) -> list[tuple[float, DriverSample]]:
    return [(float(at), of) for at in range(begin, until + 1, step)]


STUCK = HealthProblem(
    NO_PROGRESS,
    "batch 5 is planned, and no batch was committed for 60 seconds",
    "worker-7",
    "daily",
    5,
)


def of_driver(reason: str) -> HealthProblem:
    return HealthProblem(NO_PROGRESS, f"the driver with lease {reason}", "worker-7")


COMMITS = [
    (float(at), sample(QuerySample(planned=at // 50 + 1, committed=at // 50)))
    for at in range(0, 5000, 10)
]
UNWATCHED = [*every(10, 20, sample(OPEN)), *every(10, 3650, sample(OPEN), begin=3600)]
AT_LIMIT = QuerySample(4, 4, {"maxOffsetsBehindLatest": 100, "numBytesOutstanding": 10**9})
MADE_UP = [
    *every(10, 50, sample(BEHIND)),
    (55.0, sample(AT_LIMIT)),
    *every(10, 110, sample(BEHIND), begin=60),
]
SAVING = dataclasses.replace(sample(IDLE, report="the same"), is_asked=True)
HEALTHY: dict[str, tuple[list[tuple[float, DriverSample]], Limits]] = {
    "nothing planned and nothing unread": (every(10, 100_000, sample(IDLE)), SILENCE),
    "a commit now and then, however many batches are planned": (COMMITS, SILENCE),
    "a savepoint, which may take longer than a silence is allowed to": (
        every(10, 600, SAVING),
        SILENCE,
    ),
    "another driver, which has all the time again": (
        [*every(10, 50, sample(OPEN)), *every(10, 110, sample(OPEN, token=2), begin=60)],
        SILENCE,
    ),
    "an hour without samples, which does not count": (UNWATCHED, SILENCE),
    "a lag that was made up for once, to the limit; another measure is not limited": (
        MADE_UP,
        LAGGING,
    ),
    "no limits": (every(1000, 100_000, sample(OPEN, report=None)), Limits()),
    "no news for less time than reports are apart": (
        every(1, 59, sample(IDLE, report="the same")),
        Limits(progress_timeout_s=5),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", HEALTHY)
def test_a_driver_is_healthy(case: str) -> None:
    """Nothing of this gives a reason to end it."""
    assert [] == judged(*HEALTHY[case])


PROBLEMS: dict[str, tuple[list[tuple[float, DriverSample]], Limits, float, HealthProblem]] = {
    "a batch that does not end, from the first sample that has shown it": (
        every(10, 300, sample(IDLE)) + every(10, 370, sample(OPEN), begin=310),
        SILENCE,
        370.0,
        STUCK,
    ),
    "a backlog of which nothing is read": (
        every(10, 60, sample(BEHIND)),
        SILENCE,
        60.0,
        HealthProblem(
            NO_PROGRESS,
            "there is more to read (maxOffsetsBehindLatest 101), and no batch was committed for 60 "
            "seconds",
            "worker-7",
            "daily",
        ),
    ),
    "a driver that hangs before its first batch": (
        every(10, 60, sample(IDLE, report=None)),
        SILENCE,
        60.0,
        of_driver("1 has not begun its queries for 60 seconds"),
    ),
    "a driver that hangs before its first batch, however short the limit": (
        every(1, 5, sample(report=None)),
        Limits(progress_timeout_s=5),
        5.0,
        of_driver("1 has not begun its queries for 5 seconds"),
    ),
    "a driver whose loop hangs": (
        every(10, 60, sample(IDLE, report="the same")),
        SILENCE,
        60.0,
        of_driver("1 has reported nothing for 60 seconds"),
    ),
    "no news for longer than reports are apart, with a shorter limit": (
        every(1, 60, sample(IDLE, report="the same")),
        Limits(progress_timeout_s=5),
        60.0,
        of_driver("1 has reported nothing for 60 seconds"),
    ),
    "a batch in flight while a savepoint is taken": (
        every(10, 60, dataclasses.replace(SAVING, queries={"daily": OPEN})),
        SILENCE,
        60.0,
        STUCK,
    ),
    "a driver that was asked to end and does not, which only a person can end": (
        every(10, 60, DriverSample(3, "worker-7", is_leaving=True)),
        SILENCE,
        60.0,
        of_driver("3 was requested to end, and has not in 60 seconds; end its process on worker-7"),
    ),
    "a batch that does not end, after an hour without samples": (
        [*UNWATCHED, (3660.0, sample(OPEN))],
        SILENCE,
        3660.0,
        STUCK,
    ),
    "a lag over the limit that lasts, of a query that commits": (
        [
            (float(at), sample(dataclasses.replace(BEHIND, planned=at, committed=at)))
            for at in range(0, 70, 10)
        ],
        LAGGING,
        60.0,
        HealthProblem(
            LAG,
            "maxOffsetsBehindLatest is 101, and was over 100 for 60 seconds",
            "worker-7",
            "daily",
        ),
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_a_driver_is_not_healthy(case: str) -> None:
    """What lasts too long is found when its time is over, and not a moment before."""
    samples, limits, at, problem = PROBLEMS[case]

    assert (at, problem) == judged(samples, limits)[0]


def test_what_is_wrong_is_a_failure_that_a_retry_may_heal() -> None:
    """The task that reports it is tried again, with another driver."""
    (_, problem), *_ = judged(every(10, 60, sample(OPEN)))
    failure = problem.failure()

    assert (
        "RECOVERABLE: query 'daily', batch 5: NO_PROGRESS: batch 5 is planned" in failure.describe()
    )
    assert not failure.restartable
    assert Limits(lag_time_s=300).allow_all
