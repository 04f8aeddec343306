"""A driver that dies at any point while rows arrive: its run ends where it first found the end."""

from __future__ import annotations

import pytest
from streams import START, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

FIRST = [[(10 * n + i, "abc"[i % 3], 10 * n + i) for i in range(5)] for n in range(9)]
AT_THE_END = ("ends.recorded", "plan.refused", "plan.replaced_one", "plan.replaced")
EVERYWHERE = (
    "ends.recorded",
    "lease.acquired",
    "run.recorded",
    "attempt.recorded",
    "sink.staged",
    "sink.precommitted",
    "files.published_one",
    "sink.published",
    "sink.committed",
    "sink.forgotten",
    "plan.refused",
    "plan.replaced_one",
    "plan.replaced",
    "drain.intended",
    "drain.planned",
    "drain.ended",
    "final.finished",
    "final.sealed",
)


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(AT_THE_END, marks=pytest.mark.whole),
        pytest.param(EVERYWHERE, marks=pytest.mark.soak),
    ],
    ids=["at_the_end", "everywhere"],
)
def test_a_run_that_dies_while_files_arrive_ends_where_it_first_did(location, drivers, deaths):
    """
    After each death another file arrives; the run still ends with the windows of the files that its
    first attempt has found, each row in them once, and none of the others is read or late.
    """
    write_events(location.input, *FIRST)
    truth = windows_of([event for events in FIRST for event in events])
    one_by_one = {"files_per_batch": "1"}

    for number, point in enumerate(deaths, start=len(FIRST)):
        driver = drivers.run("tumbling_window", one_by_one, SPARK_STREAM_FAILPOINT=point)
        assert (point, failpoints.CRASH_EXIT) == (point, driver.wait()), driver.log[-3000:]
        write_events(location.input, [(10 * number, "new", number)], first=number)
    last = drivers.run("tumbling_window", one_by_one)

    assert EXIT_OK == last.wait(), last.log[-3000:]
    assert truth == read_with_pandas(location.output)
    final = last.final()
    read = sum(len(events) for events in FIRST)
    assert ("FINISHED", read, 0) == (final["outcome"], final["rows_read"], final["late_rows"])
    assert max(start for start, *_ in truth) < START + 10 * len(FIRST)
