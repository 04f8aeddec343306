"""Moments as they are written into documents."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_provider.runtime.base.clock import SystemClock, millis_to_iso, to_iso


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (dt.datetime(2026, 1, 2, 3, 4, 5, 678_900, dt.timezone.utc), "2026-01-02T03:04:05.678Z"),
        (
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "2026-01-02T01:04:05.000Z",
        ),
    ],
)
def test_a_moment_is_written_in_utc(moment, text):
    """Every moment is written in UTC with milliseconds and a final Z."""
    assert text == to_iso(moment)


@pytest.mark.parametrize(
    ("millis", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_357_016_400_123, "2013-01-01T05:00:00.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "+10000-01-01T00:00:00.000Z"),
        (9_223_372_036_854_775, "+294247-01-10T04:00:54.775Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, "0000-12-31T23:59:59.999Z"),
        (-62_198_755_200_000, "-0001-01-01T00:00:00.000Z"),
    ],
)
def test_sparks_milliseconds_are_written_alike(millis, text):
    """A watermark is written to the millisecond, also of years that a datetime cannot hold."""
    assert text == millis_to_iso(millis)


def test_the_machines_clock_is_in_utc_and_only_grows():
    """The real clock gives aware UTC times and seconds that never go back."""
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0)

    assert dt.timedelta(0) == clock.now().utcoffset()
    assert before <= clock.monotonic()
