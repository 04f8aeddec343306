"""A driver that dies between the end of some sources and the word of it."""

from __future__ import annotations

import pytest
from streams import START, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK

pytestmark = [pytest.mark.spark, pytest.mark.whole]

PAST = [(2, "a", 100), (9, "b", 200), (14, "a", 300)]
LIVE = [(3, "a", 1), (11, "c", 3), (22, "b", 4), (33, "c", 6)]


def test_sources_that_have_ended_stay_so_when_the_driver_dies_at_once(location, drivers):
    """
    What was put down before the death holds: the next attempt does not read them again, and the
    others go on without them.
    """
    write_events(location.root / "past", PAST)
    write_events(location.input, LIVE)
    params = {"past": str(location.root / "past")}
    slices = ("--until=available", "--at-end=suspend")
    point = "sources.ended"

    dying = drivers.run("half_bounded", params, *slices, SPARK_STREAM_FAILPOINT=point)
    assert failpoints.CRASH_EXIT == dying.wait(), dying.log[-3000:]
    assert [] == read_with_pandas(location.output)
    write_events(location.root / "past", [(30, "a", 900)], first=7)
    again = drivers.run("half_bounded", params, *slices)

    assert EXIT_OK == again.wait(), again.log[-3000:]
    assert "SUSPENDED" == again.final()["outcome"]
    closed = [row for row in windows_of([*PAST, *LIVE]) if row[0] < START + 20]
    assert closed == read_with_pandas(location.output)
