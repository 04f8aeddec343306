"""One parser for restart strategies, on the command line and in a DAG."""

from __future__ import annotations

import re

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.failures.restart_strategy import (
    ExponentialDelay,
    FailureRate,
    FixedDelay,
    NoRestart,
    default_restart,
    parse_restart,
)


@pytest.mark.parametrize(
    ("value", "strategy"),
    [
        ("none", NoRestart()),
        ("off", NoRestart()),
        ({"type": "disable"}, NoRestart()),
        ("fixed-delay", FixedDelay(attempts=1, delay_s=1)),
        ("fixeddelay()", FixedDelay(attempts=1, delay_s=1)),
        ("fixed-delay(attempts=3, delay=10 seconds)", FixedDelay(3, 10)),
        ("Fixed_Delay( attempts = 3 , delay = PT10S )", FixedDelay(3, 10)),
        ("fixed-delay(attempts=infinite, delay=0)", FixedDelay(None, 0)),
        ({"type": "fixed-delay", "attempts": 3, "delay": "10 seconds"}, FixedDelay(3, 10)),
        ({"type": "fixed-delay", "attempts": None, "delay": 0.5}, FixedDelay(None, 0.5)),
        (
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": 3,
                "restart-strategy.failure-rate.failure-rate-interval": "5 min",
                "restart-strategy.failure-rate.delay": "10 s",
            },
            FailureRate(3, 300, 10),
        ),
        ("failure-rate", FailureRate(1, 60, 1)),
        (
            {"type": "failure_rate", "max_failures_per_interval": "2"},
            FailureRate(max_failures_per_interval=2),
        ),
        ("exponential-delay", ExponentialDelay(1, 60, 1.5, 3600, 0.1, None)),
        (
            "exponential-delay(initial-backoff=10 s, max-backoff=2 min, backoff-multiplier=1.4, "
            "reset-backoff-threshold=10 min, jitter-factor=0.2, attempts-before-reset-backoff=10)",
            ExponentialDelay(10, 120, 1.4, 600, 0.2, 10),
        ),
    ],
    ids=str,
)
def test_a_strategy_is_read(value, strategy):
    """Text and mapping, Flink's names and defaults, durations as everywhere else."""
    assert strategy == parse_restart(value)


@pytest.mark.parametrize(
    "strategy",
    [
        NoRestart(),
        FixedDelay(None, 0),
        FixedDelay(3, 10.5),
        FailureRate(3, 300, 10),
        ExponentialDelay(),
        ExponentialDelay(10, 120, 1.4, 600, 0.2, 10),
    ],
)
def test_a_strategy_is_written_as_it_is_read(strategy):
    """The form in which a worker passes it on to a driver says all of it, without units."""
    assert strategy == parse_restart(strategy.to_text())


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("sometimes", "there is no strategy 'sometimes'; use one of none, fixed-delay, "),
        ("", "'' is not a restart strategy; write for example 'fixed-delay(attempts=3, "),
        ("fixed-delay(3)", "'3' has no value; write for example"),
        ("fixed-delay(attempts=3", "is not a restart strategy; write for example"),
        ({"attempts": 3}, "has no 'type'; use one of none, fixed-delay, "),
        (
            "fixed-delay(tries=3)",
            "fixed-delay has no parameter 'tries'; its parameters: attempts, delay",
        ),
        ("none(delay=1)", "none has no parameter 'delay'; its parameters: it has none"),
        ("fixed-delay(attempts=3, attempts=4)", "'attempts' is given twice"),
        (
            "fixed-delay(attempts=0)",
            "attempts: '0' is not a number of 1 or more; for no restart use",
        ),
        ({"type": "fixed-delay", "attempts": 2.5}, "attempts: 2.5 is not a number of 1 or more"),
        ({"type": "fixed-delay", "attempts": True}, "attempts: True is not a number of 1 or more"),
        ("failure-rate(max-failures-per-interval=infinite)", "is not a number of 1 or more"),
        ("fixed-delay(delay=soon)", "restart: delay: 'soon' is not a duration; write for example"),
        ("failure-rate(failure-rate-interval=0)", "failure-rate-interval: '0' is no time"),
        (
            "exponential-delay(backoff-multiplier=1)",
            "backoff-multiplier: '1' is not a number above 1",
        ),
        ("exponential-delay(backoff-multiplier=inf)", "is not a number above 1"),
        (
            "exponential-delay(jitter-factor=1.5)",
            "jitter-factor: '1.5' is not a number from 0 to 1",
        ),
        ("exponential-delay(jitter-factor=much)", "'much' is not a number from 0 to 1"),
        (
            "exponential-delay(initial-backoff=2 min)",
            "initial-backoff (120.0 s) is longer than max-backoff (60.0 s)",
        ),
    ],
)
def test_what_is_no_strategy_is_refused(value, said):
    """The error names the thing and the fix."""
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_restart(value)


def test_runs_without_an_end_restart_for_ever_by_default():
    """Flink's default; a run that ends is tried again by whoever has started it."""
    assert ExponentialDelay() == default_restart("stopped")
    assert {NoRestart()} == {default_restart(until) for until in ("end", "available")}
