"""The one parser of durations."""

from __future__ import annotations

import pendulum
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from airflow_provider.runtime.base.clock import parse_duration
from airflow_provider.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0.0),
        (10, 10.0),
        (2.5, 2.5),
        ("10", 10.0),
        ("2.5", 2.5),
        ("0 seconds", 0.0),
        ("10 seconds", 10.0),
        ("10 s", 10.0),
        ("10s", 10.0),
        ("  10   Seconds ", 10.0),
        ("1 second", 1.0),
        ("250 ms", 0.25),
        ("1.5 hours", 5400.0),
        ("1 minute 30 seconds", 90.0),
        ("1 min, 30 sec", 90.0),
        ("2 hours", 7200.0),
        ("1 day", 86_400.0),
        ("2 weeks", 1_209_600.0),
        ("PT10S", 10.0),
        ("pt10s", 10.0),
        ("PT1M30S", 90.0),
        ("PT0.5S", 0.5),
        ("P1D", 86_400.0),
        ("P1DT2H", 93_600.0),
        ("P1W", 604_800.0),
    ],
)
def test_a_duration_is_read(value, seconds):
    """Words, ISO 8601 and plain seconds all come to the same seconds."""
    assert seconds == parse_duration(value)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "   ",
        "seconds",
        "ten seconds",
        "10 bananas",
        "10 secondss",
        "10 seconds!",
        "-5 s",
        "-5",
        "1e3",
        "1 minute 1 minute",
        "1 minute 1 min",
        "1 month",
        "1 year",
        "P1M",
        "P1Y",
        "P",
        "PT-5S",
        "PTS",
        "2026-01-01",
        "PT0.5H30M",
        "P1D1D",
        True,
        False,
        -1,
        -0.5,
        float("nan"),
        float("inf"),
        "nan",
        "inf",
    ],
)
def test_what_is_not_a_duration_is_refused(value):
    """Anything else is refused by what it is for, with examples of what to write."""
    with pytest.raises(ConfigError) as raised:
        parse_duration(value, name="--trigger")

    assert str(raised.value).startswith(f"--trigger: {value!r} is not a duration")
    assert "'10 seconds'" in str(raised.value)
    assert "'PT10S'" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        "PT",
        "P1D/P2D",
        "PT1H/2026-01-01",
        "99999999999999999999 days",
        "PT99999999999999999999H",
        pytest.param(10**400, id="10**400"),
    ],
)
def test_a_duration_out_of_all_bounds_is_refused(value):
    """An empty, doubled or impossibly long duration is refused like any other mistake."""
    with pytest.raises(ConfigError):
        parse_duration(value)


@given(st.integers(0, 10_000), st.integers(0, 59), st.integers(0, 59))
def test_all_ways_to_write_a_duration_agree(hours, minutes, seconds):
    """The same duration in words, in ISO 8601 and in seconds is the same number."""
    total = hours * 3600 + minutes * 60 + seconds
    words = f"{hours} hours {minutes} minutes {seconds} seconds"

    assert total == parse_duration(words)
    assert total == parse_duration(f"PT{hours}H{minutes}M{seconds}S")
    assert total == parse_duration(total)
    assert total == parse_duration(str(total))


@given(
    st.tuples(*[st.none() | st.integers(0, 9999)] * 4),
    st.none() | st.decimals(0, 9999, places=3),
)
def test_iso_8601_is_read_as_pendulum_reads_it(numbers, seconds):
    """What stands beside Airflow and what travels to a cluster mean the same."""
    weeks, days, hours, minutes = numbers
    day = "".join(f"{n}{unit}" for n, unit in ((weeks, "W"), (days, "D")) if n is not None)
    units = ((hours, "H"), (minutes, "M"), (seconds, "S"))
    time = "".join(f"{n}{unit}" for n, unit in units if n is not None)
    text = f"P{day}T{time}" if time else f"P{day}"
    assume(day or time)
    assume(weeks is None or (days is None and not time))  # pendulum takes weeks alone

    theirs = pendulum.parse(text)
    assert isinstance(theirs, pendulum.Duration)
    assert theirs.total_seconds() == pytest.approx(parse_duration(text))


@pytest.mark.slow
@given(st.text(max_size=30))
def test_no_text_breaks_the_parser(text):
    """Every text is either a number of seconds, zero or more, or refused."""
    try:
        seconds = parse_duration(text)
    except ConfigError:
        return

    assert seconds >= 0
