"""A run whose watermark waits for the end of the data, while its drivers die."""

from __future__ import annotations

import pytest
from streams import read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]

NEWEST_FIRST = [[(100 * n + i, "abc"[i % 3], i) for i in range(20)] for n in reversed(range(4))]


def test_no_row_is_late_whenever_the_driver_dies(location, drivers):
    """
    The newest file is read first. Its driver dies in the second batch and in the drain, each time
    with a watermark that has not moved; the last one flushes every window once, as without a death.
    """
    write_events(location.input, *NEWEST_FIRST)
    one_by_one = {"files_per_batch": "1"}

    for point in ("sink.precommitted", "drain.planned"):
        driver = drivers.run(
            "tumbling_window", one_by_one, "--late=wait", SPARK_STREAM_FAILPOINT=point
        )
        assert failpoints.CRASH_EXIT == driver.wait(), driver.log[-3000:]
    other = drivers.run("tumbling_window", one_by_one)
    assert EXIT_USAGE == other.wait(), other.log[-3000:]
    last = drivers.run("tumbling_window", one_by_one, "--late=wait")

    assert "was begun with --late='wait'" in other.log
    assert EXIT_OK == last.wait(), last.log[-3000:]
    truth = windows_of([event for events in NEWEST_FIRST for event in events])
    assert truth == read_with_pandas(location.output)
    final = last.final()
    assert ("FINISHED", 80, 0) == (final["outcome"], final["rows_read"], final["late_rows"])
