"""Trying again: which pauses follow from failures, and when it is given up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider.runtime.base.retry import Retries, RetryPolicy
from tests.unit.support import FakeClock

MANY = st.integers(1, 5000)


def test_pauses_are_doubled_up_to_the_longest():
    """
    The first is as long as asked, and none is longer than the longest, after however many failures.
    """
    policy = RetryPolicy(first_s=0.05, longest_s=1.0)

    assert [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == [policy.pause_s(n, 0.5) for n in range(1, 8)]
    assert 1.0 == policy.pause_s(100_000, 0.5)


def test_pauses_stay_the_same_without_a_longest():
    """A policy that says how often is a rhythm."""
    assert {0.5} == {RetryPolicy(first_s=0.5).pause_s(failures, 1.0) for failures in range(1, 9)}


@pytest.mark.slow
@given(MANY, st.floats(0, 1), st.floats(0, 1))
def test_what_is_drawn_shortens_a_pause_by_the_jitter_at_most(failures, jitter, drawn):
    """Two writers that lost at the same moment seldom wait for the same time."""
    steady = RetryPolicy(first_s=0.01, longest_s=2.0)
    drawing = RetryPolicy(first_s=0.01, longest_s=2.0, jitter=jitter)

    longest = steady.pause_s(failures, drawn)
    assert math.isclose(longest * (1 - jitter * drawn), drawing.pause_s(failures, drawn))
    assert longest == drawing.pause_s(failures, 0.0)


@pytest.mark.parametrize(
    ("policy", "failures", "lasted_s", "is_over"),
    [
        (RetryPolicy(first_s=1.0), 10**6, 1e9, False),
        (RetryPolicy(first_s=1.0, for_s=30.0), 10**6, 29.9, False),
        (RetryPolicy(first_s=1.0, for_s=30.0), 1, 30.0, True),
        (RetryPolicy(first_s=1.0, failures=8), 7, 1e9, False),
        (RetryPolicy(first_s=1.0, failures=8), 8, 0.0, True),
    ],
)
def test_the_limits_are_a_time_and_a_number(policy, failures, lasted_s, is_over):
    """Whichever is reached first; a policy without limits never gives up."""
    assert is_over is policy.is_over(failures, lasted_s)


def test_the_time_runs_from_the_first_failure_and_ends_with_a_success():
    """A first try that takes long leaves as much time for others as one that fails at once."""
    clock = FakeClock()
    retries = Retries(RetryPolicy(first_s=4.0, for_s=10.0), clock)
    clock.time = 100.0
    goes_on = []
    for _ in range(3):
        goes_on.append(retries.failed())
        retries.pause()
    assert [True, True, True] == goes_on
    assert (112.0, 12.0) == (clock.time, retries.lasted_s)
    assert retries.failed() is False

    retries.succeeded()
    assert 0.0 == retries.lasted_s
    assert retries.failed() is True


def test_pauses_are_drawn_by_lot():
    """Those of a policy with jitter lie in its range, and differ."""
    clock = FakeClock()
    retries = Retries(RetryPolicy(first_s=1.0, jitter=0.5), clock)
    retries.failed()
    pauses = set()
    for _ in range(20):
        before = clock.time
        retries.pause()
        pauses.add(clock.time - before)

    assert 0.5 <= min(pauses) < max(pauses) <= 1.0
