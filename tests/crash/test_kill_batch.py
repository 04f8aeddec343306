"""A batch job that dies anywhere: the same command again, and every row lands exactly once."""

from __future__ import annotations

import pytest
from drivers import Watcher
from streams import START, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

EVENTS = [(1, "a", 1), (2, "b", 2), (13, "a", 3), (21, "b", 4), (22, "a", 5), (35, "c", 6)]
# The points of a stream's start and recovery are died at in test_kill_driver.py. Two queries run
# side by side, so the second hit is where both have staged and nothing is committed.
BEFORE_THE_COMMIT = ("sink.staged", "sink.precommitted:2")
FROM_THE_COMMIT = ("batch.committed", "files.published_one", "sink.committed:2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), FROM_THE_COMMIT[1:2]),  # before it: tests/spark/test_batch.py, a failure of a query
        pytest.param(BEFORE_THE_COMMIT, FROM_THE_COMMIT, marks=pytest.mark.whole),
    ],
    ids=["after the commit", "everywhere"],
)
def test_a_batch_run_that_dies_loses_and_repeats_nothing(location, drivers, before, after):
    """
    Nothing is to be seen before the commit, all of it once at the end, and no other run may begin
    in between; input that comes after the commit is not read.
    """
    write_events(location.input, EVENTS)
    rows = sorted((START + t, k, v) for t, k, v in EVENTS)
    truth = {location.output / "windows": windows_of(EVENTS), location.output / "rows": rows}
    watcher = Watcher(truth)

    with watcher.watching():
        for point in (*before, *after):
            dying = drivers.run("two_queries", {}, "--mode=automatic", SPARK_STREAM_FAILPOINT=point)
            assert (point, failpoints.CRASH_EXIT) == (point, dying.wait()), dying.log[-3000:]
            if point in {*before, "batch.committed"}:
                assert [] == list(location.output.glob("*/part-*"))
            if point == after[0]:
                write_events(location.input, [(500, "late", 1)], first=1)
        other = drivers.run("two_queries", {}, "--run-id=another", JAVA_HOME=str(location.root))
        assert EXIT_USAGE == other.wait(), other.log[-3000:]
        last = drivers.run("two_queries", {}, "--mode=automatic")
        assert EXIT_OK == last.wait(), last.log[-3000:]

    assert "is being drained by run" in other.log
    assert [] == watcher.wrong
    assert truth == {folder: read_with_pandas(folder) for folder in truth}
    final = last.final()
    assert ("FINISHED", "BATCH", 2 * len(EVENTS)) == (
        final["outcome"],
        final["mode"],
        final["rows_read"],
    )
    assert len(before) + len(after) + 1 == final["attempts"]
    assert [] == list(location.output.glob(".*.staging"))
