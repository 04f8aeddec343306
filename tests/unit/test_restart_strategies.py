"""Restart strategies, by Flink's own scenarios and with a clock of the test's."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from airflow_provider.runtime.failures.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    RestartDecision,
    RestartState,
    RestartStrategy,
)


class Run:
    """A run that fails when the test says so, and whose working time is the test's."""

    def __init__(self, strategy: RestartStrategy, seed: int = 0) -> None:
        self.strategy = strategy
        self.state = RestartState()
        self.now_s = 0.0
        self.dice = random.Random(seed)

    def fails(self, after_s: float = 0.0) -> RestartDecision:
        self.now_s += after_s
        decision = self.strategy.decide(self.state, self.now_s, dice=self.dice)
        self.state = decision.state
        return decision

    def fails_again_and_again(self, times: int) -> list[float | None]:
        """Fail *times* times, each a moment after the restart that the last one was granted."""
        delays: list[float | None] = []
        for _ in range(times):
            decision = self.fails()
            delays.append(decision.delay_s)
            self.now_s += decision.delay_s or 0.0
        return delays


def ms(**parameters: Any) -> ExponentialDelay:
    """Return an exponential delay whose times are given in milliseconds, as Flink's tests do."""
    times = {name: value / 1000 for name, value in parameters.items() if name.endswith("_s")}
    return ExponentialDelay(**{**parameters, **times})


def in_ms(delay_s: float | None) -> int | None:
    return None if delay_s is None else int(delay_s * 1000 + 1e-9)


# --- none, fixed delay ----------------------------------------------------------------------------


def test_none_restarts_nothing():
    """The first failure ends the attempt."""
    assert not Run(NoRestart()).fails().restarts


def test_the_fourth_failure_of_three_allowed_ends_the_job():
    """Fixed delay: three restarts, each after the same delay, and no fourth."""
    run = Run(FixedDelay(attempts=3, delay_s=10))

    assert [10, 10, 10, None] == run.fails_again_and_again(4)
    assert "all 3 restarts of fixed-delay(attempts=3, delay=10" in run.fails().reason
    assert 3 == run.state.restarts


def test_a_fixed_delay_never_forgets():
    """However long the run was stable, a restart that was used is used."""
    run = Run(FixedDelay(attempts=1, delay_s=1))
    run.fails()

    assert not run.fails(after_s=1e6).restarts


def test_a_fixed_delay_may_go_on_for_ever():
    """Without a number of attempts there is always another one."""
    assert [1.0] * 500 == Run(FixedDelay(attempts=None)).fails_again_and_again(500)


@pytest.mark.parametrize(
    "strategy",
    [FixedDelay(attempts=1, delay_s=5), FailureRate(1, 60, 5), ms(initial_backoff_s=5000)],
)
def test_asking_twice_counts_once(strategy):
    """
    Failures before the restart that the first was granted belong to it: less of the same delay.
    """
    run = Run(strategy)
    first = run.fails()
    again, later = run.fails(), run.fails(after_s=2)

    assert [True, False, False] == [first.is_new, again.is_new, later.is_new]
    assert first.delay_s == again.delay_s
    assert later.delay_s == pytest.approx((first.delay_s or 0) - 2)
    assert (1, first.state) == (run.state.restarts, run.state)


# --- failure rate ---------------------------------------------------------------------------------


def test_the_fourth_failure_within_the_interval_ends_the_job():
    """Failure rate: three failures within the interval are borne, the fourth is not."""
    run = Run(FailureRate(max_failures_per_interval=3, interval_s=10, delay_s=0))

    assert [0, 0, 0] == run.fails_again_and_again(3)
    assert "4 failures within the interval of failure-rate(" in run.fails().reason


def test_failures_below_the_rate_are_borne_for_ever():
    """One failure at a time, each a little more than the interval after the last."""
    run = Run(FailureRate(max_failures_per_interval=1, interval_s=0.001, delay_s=0))

    assert all(run.fails(after_s=0.002).restarts for _ in range(300))
    assert 1 == len(run.state.failures_s)  # what no longer counts is forgotten


def test_a_failure_rate_looks_back_over_a_moving_interval():
    """What counts are the failures of the last interval, wherever it begins."""
    run = Run(FailureRate(max_failures_per_interval=2, interval_s=10, delay_s=1))
    granted = [run.fails(after_s=gap).restarts for gap in (0, 6, 6, 6, 2)]

    assert [True, True, True, True, False] == granted


# --- exponential delay ----------------------------------------------------------------------------


def test_delays_grow_by_the_multiplier():
    """4, 9 and 21 milliseconds for 4 ms times 2.3."""
    run = Run(ms(initial_backoff_s=4, max_backoff_s=300, backoff_multiplier=2.3, jitter_factor=0))

    assert [4, 9, 21] == [in_ms(delay) for delay in run.fails_again_and_again(3)]


def test_the_first_delay_is_the_initial_one():
    """Before anything has grown."""
    run = Run(ms(initial_backoff_s=42, max_backoff_s=45, backoff_multiplier=2.0, jitter_factor=0))

    assert 42 == in_ms(run.fails().delay_s)


def test_no_delay_is_longer_than_the_longest():
    """Neither growth nor jitter exceeds it, however many restarts there were."""
    run = Run(ms(initial_backoff_s=1, max_backoff_s=6, backoff_multiplier=2.0, jitter_factor=0.25))
    delays = run.fails_again_and_again(2000)  # 2.0 to that power is no number any more

    assert 0.006 == max(delay for delay in delays if delay is not None)
    assert {0.006} == set(delays[10:])


def test_the_restarts_before_a_reset_may_be_limited():
    """Thirteen restarts, and then none."""
    strategy = ms(
        initial_backoff_s=1,
        max_backoff_s=3,
        backoff_multiplier=1.2,
        jitter_factor=0.25,
        attempts_before_reset_backoff=13,
    )
    delays = Run(strategy).fails_again_and_again(14)

    assert [True] * 13 + [False] == [delay is not None for delay in delays]


def test_a_stable_time_resets_the_delay():
    """
    So long after the restart the delay is the initial one again; a moment less, and it grows on.
    """
    run = Run(
        ms(
            initial_backoff_s=1,
            max_backoff_s=5,
            backoff_multiplier=2.0,
            reset_backoff_threshold_s=8,
            jitter_factor=0.25,
            attempts_before_reset_backoff=2,
        )
    )
    first = run.fails().delay_s or 0.0
    second = run.fails(after_s=first + 0.0079).delay_s or 0.0

    assert 0.0015 <= second <= 0.0025
    assert run.fails(after_s=second + 0.0081).restarts  # the third, of two allowed before a reset
    assert 1 == run.state.attempts


def test_several_settings_together():
    """Flink's long scenario: initial, initial again after a stable time, growth, reset, growth."""
    run = Run(
        ms(
            initial_backoff_s=1,
            max_backoff_s=9,
            backoff_multiplier=2.0,
            reset_backoff_threshold_s=80,
            jitter_factor=0,
        )
    )
    delays = [run.fails(after_s=gap / 1000).delay_s for gap in (0, 82, 4, 92, 10)]

    assert [1, 1, 2, 1, 2] == [in_ms(delay) for delay in delays]


@pytest.mark.parametrize(
    ("failures", "least_ms", "most_ms"),
    [(1, 2.0, 2.5), (2, 3.0, 5.0), (3, 6.0, 7.0), (4, 7.0, 7.0)],
)
def test_jitter_stays_within_its_bounds(failures, least_ms, most_ms):
    """
    A quarter around 2, 4, 8 and 16 ms, and never less than the initial or more than the longest.
    """
    strategy = ms(initial_backoff_s=2, max_backoff_s=7, backoff_multiplier=2.0, jitter_factor=0.25)
    seen = [Run(strategy, seed).fails_again_and_again(failures)[-1] or 0 for seed in range(400)]

    assert least_ms <= min(seen) * 1000 + 1e-9
    assert max(seen) * 1000 <= most_ms + 1e-9
    spread_ms = (max(seen) - min(seen)) * 1000
    assert spread_ms >= 0.9 * (most_ms - least_ms) - 1e-9  # it does vary, over the whole range


def test_the_same_dice_give_the_same_delays():
    """Nothing but the dice is left to chance."""
    delays = [Run(ExponentialDelay(), seed=7).fails_again_and_again(20) for _ in range(2)]

    assert delays[0] == delays[1]


# --- what is remembered ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        FixedDelay(attempts=4, delay_s=2),
        FailureRate(max_failures_per_interval=4, interval_s=100, delay_s=2),
        ExponentialDelay(attempts_before_reset_backoff=4),
    ],
)
@pytest.mark.parametrize("died_after", range(5))
def test_a_drivers_death_forgets_nothing(strategy, died_after):
    """With its state written down and read again, a run gets as many restarts as without."""
    whole, broken = Run(strategy), Run(strategy)
    expected = whole.fails_again_and_again(6)

    found = broken.fails_again_and_again(died_after)
    broken.state = RestartState.from_dict(json.loads(json.dumps(broken.state.to_dict())))
    found += broken.fails_again_and_again(6 - died_after)

    assert expected == found


def test_the_state_of_another_version_is_read():
    """What a newer version has added is left out, and what an older one did not have is empty."""
    assert RestartState(restarts=2) == RestartState.from_dict({"restarts": 2, "mood": "bad"})
