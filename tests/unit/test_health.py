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


def look(
    query: QuerySample | None = None, *, token: int = 1, report: str | None = ""
) -> DriverSample:
    queries = {} if query is None else {"daily": query}
    return DriverSample(token, "worker-7", report, queries)


def judged(
    looks: Iterable[tuple[float, DriverSample]], limits: Limits = SILENCE
) -> list[tuple[float, HealthProblem]]:
    """Look again and again, and return what was wrong, and when."""
    health, found = Health(), []
    for at, each in looks:
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


def test_a_silent_input_is_healthy_for_ever() -> None:
    """
    Nothing planned and nothing unread: a stream without input gives no reason to end it.
    """
    assert [] == judged(every(10, 100_000, look(IDLE)))


def test_a_batch_that_does_not_end_is_noticed_when_the_time_is_over() -> None:
    """
    The time is counted from the first look that has seen the batch, and not a moment less.
    """
    looks = every(10, 300, look(IDLE)) + every(10, 370, look(OPEN), begin=310)

    (at, problem), *_ = judged(looks)

    assert 370.0 == at
    assert (
        HealthProblem(
            NO_PROGRESS,
            "batch 5 is planned, and no batch was committed for 60 seconds",
            "worker-7",
            "daily",
            5,
        )
        == problem
    )


def test_each_commit_begins_the_time_anew() -> None:
    """
    A query that commits a batch now and then gets on, however many are always planned.
    """
    looks = [
        (float(at), look(QuerySample(planned=at // 50 + 1, committed=at // 50)))
        for at in range(0, 5000, 10)
    ]

    assert [] == judged(looks)


def test_a_backlog_that_nobody_reads_is_no_progress() -> None:
    """
    A source that says there is more to read, and no batch in all the time: the query stands still.
    """
    (at, problem), *_ = judged(every(10, 60, look(BEHIND)))

    assert (60.0, NO_PROGRESS, None) == (at, problem.condition, problem.batch)
    assert "there is more to read (maxOffsetsBehindLatest 101)" in problem.reason


@pytest.mark.parametrize(
    ("report", "said"),
    [(None, "has not begun its queries"), ("the same", "has reported nothing")],
)
def test_a_driver_that_says_nothing_of_itself_is_noticed(report: str | None, said: str) -> None:
    """
    A heartbeat is no report: one that hangs before its first batch, or in its loop, still beats.
    """
    (at, problem), *_ = judged(every(10, 60, look(IDLE, report=report)))

    assert (60.0, None) == (at, problem.query)
    assert f"the driver with lease 1 {said} for 60 seconds" == problem.reason


def test_a_driver_that_takes_a_savepoint_need_not_report() -> None:
    """
    It was asked to stop with one, which may take longer than its silence is allowed to; a batch in
    flight has to end all the same.
    """
    asked = dataclasses.replace(look(IDLE, report="the same"), is_asked=True)
    stuck = dataclasses.replace(asked, queries={"daily": OPEN})

    assert [] == judged(every(10, 600, asked))
    assert "batch 5 is planned" in judged(every(10, 60, stuck))[0][1].reason


def test_another_driver_has_all_the_time_again() -> None:
    """
    What the driver before did not do is not held against the next one.
    """
    looks = every(10, 50, look(OPEN)) + every(10, 110, look(OPEN, token=2), begin=60)

    assert [] == judged(looks)


def test_a_driver_that_was_asked_to_end_and_does_not_is_noticed() -> None:
    """
    Its process is named, because nobody but a person can end it.
    """
    leaving = DriverSample(3, "worker-7", is_leaving=True)

    (at, problem), *_ = judged(every(10, 60, leaving))

    assert 60.0 == at
    assert (
        "was requested to end, and has not in 60 seconds; end its process on worker-7"
        in problem.reason
    )


def test_time_in_which_nobody_looked_does_not_count() -> None:
    """
    An observer that was stopped, or had no storage, for an hour has seen nothing last for an hour.
    """
    looks = [*every(10, 20, look(OPEN)), *every(10, 3650, look(OPEN), begin=3600)]

    assert [] == judged(looks)
    assert [3660.0] == [at for at, _ in judged([*looks, (3660.0, look(OPEN))])]


def test_lag_over_the_limit_is_noticed_when_it_lasts() -> None:
    """
    A query that commits, and falls behind all the same, is noticed by its limit alone.
    """
    looks = [
        (float(at), look(dataclasses.replace(BEHIND, planned=at, committed=at)))
        for at in range(0, 70, 10)
    ]

    (at, problem), *_ = judged(looks, LAGGING)

    assert (60.0, LAG, "daily") == (at, problem.condition, problem.query)
    assert "maxOffsetsBehindLatest is 101, and was over 100 for 60 seconds" == problem.reason


def test_lag_that_was_made_up_for_once_begins_anew() -> None:
    """
    At the limit is not over it, and what another source measures is not limited.
    """
    at_limit = QuerySample(4, 4, {"maxOffsetsBehindLatest": 100, "numBytesOutstanding": 10**9})
    looks = [*every(10, 50, look(BEHIND)), (55.0, look(at_limit))]

    assert [] == judged(looks + every(10, 110, look(BEHIND), begin=60), LAGGING)


def test_nothing_is_limited_that_nobody_has_limited() -> None:
    """
    Without limits nothing is ever wrong.
    """
    assert [] == judged(every(1000, 100_000, look(OPEN, report=None)), Limits())
    assert Limits(lag_time_s=300).allow_all


def test_what_is_wrong_is_a_failure_that_a_retry_may_heal() -> None:
    """
    The task that reports it is tried again, with another driver.
    """
    (_, problem), *_ = judged(every(10, 60, look(OPEN)))
    failure = problem.failure()

    assert (
        "RECOVERABLE: query 'daily', batch 5: NO_PROGRESS: batch 5 is planned" in failure.describe()
    )
    assert not failure.restartable


def test_a_driver_is_not_ended_for_having_no_news() -> None:
    """
    It reports every ten seconds when nothing has changed: a shorter silence says nothing of it.
    """
    still = look(IDLE, report="the same")

    assert [] == judged(every(1, 59, still), Limits(progress_timeout_s=5))
    ((at, problem),) = judged(every(1, 60, still), Limits(progress_timeout_s=5))
    assert (60.0, "has reported nothing for 60 seconds") == (at, problem.reason[-35:])
    assert [5.0] == [
        at for at, _ in judged(every(1, 5, look(report=None)), Limits(progress_timeout_s=5))
    ]
