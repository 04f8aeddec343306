"""Rows at the end of event time are flushed as all others, or the run says which it cannot flush."""

from __future__ import annotations

import pytest
from streams import FORMATS, START, read_with_pandas, state_of, windows_of, write_events

from airflow_provider.runtime.checkpoint.drain_step import END_OF_TIME_MS
from airflow_provider.runtime.errors import NotAStreamError, RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage

pytestmark = pytest.mark.spark

LAST = 253_402_300_797 - START  # 9999-12-31T23:59:57Z: its window of ten seconds ends in 10000
EVENTS = [(1, "a", 1), (12, "b", 2), (LAST, "a", 3), (LAST, "c", 4)]
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    )
}
BUCKETS = [(k, start, n) for start, k, n, _ in windows_of(EVENTS)]
TRUTHS = {
    "tumbling_window": windows_of(EVENTS),
    "session_window": [(START + t, START + t + 4, k, 1) for t, k, _ in EVENTS],
    "outer_join": [(k, START + t, -1) for t, k, _ in EVENTS],
    "timers": BUCKETS,
    "timeouts_in_the_year_10000": [(k, 253_402_300_790, 1) for k in "ab"],
}
CHOSEN = {"timers"}


@pytest.mark.long
@pytest.mark.parametrize(
    "job",
    [pytest.param(job, marks=[] if job in CHOSEN else [pytest.mark.whole]) for job in TRUTHS],
)
def test_rows_at_the_end_of_time_are_flushed(spark, location, job):
    """
    What ends after the year 9999 is written, for every kind of operator, and no state is left.
    """
    write_events(location.input, EVENTS[:2] if job.startswith("timeouts") else EVENTS)
    params = {}
    if job == "outer_join":
        clicked = write_events(location.root / "clicked", [(2, "z", 0)])
        params = {"shown": str(location.input), "clicked": str(clicked)}

    final = location.run(spark, job, params=params, conf=ROCKSDB)

    assert sorted(TRUTHS[job]) == read_with_pandas(location.output)
    assert "FINISHED" == final.outcome
    assert "+294147-02-03T04:00:54.775Z" == final.queries["out"].watermark
    assert {0} == set(state_of(spark, location.checkpoint()).values())


@pytest.mark.long
def test_rows_that_spark_does_not_count_are_flushed(spark, location):
    """
    With a setting that speeds RocksDB up Spark reports no rows of state; the drain reads them.
    """
    write_events(location.input, EVENTS)
    uncounted = {"spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false"}

    location.run(spark, "tumbling_window", conf={**ROCKSDB, **uncounted})

    assert sorted(TRUTHS["tumbling_window"]) == read_with_pandas(location.output)
    assert {0} == set(state_of(spark, location.checkpoint()).values())


def test_a_batch_run_writes_the_same_rows(spark, location):
    """BATCH and STREAMING agree about windows that end after the year 9999."""
    write_events(location.input, EVENTS)

    location.run(spark, "tumbling_window", mode="batch")

    assert sorted(TRUTHS["tumbling_window"]) == read_with_pandas(location.output)


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "params", "complaint"),
    [
        (
            "counted_moments",
            {},
            r"operator 0 \(stateStoreSave\) keeps 1 groups whose rows are to come.* in mode BATCH",
        ),
        pytest.param(
            "renewed_timers",
            {"after": "timer", "at_ms": str(END_OF_TIME_MS + 1)},
            r"operator 0 \(transformWithState\w*\) keeps 2 timers\. They have a later event time "
            r"or none\. Set timers and timeouts to an earlier time and run the job again$",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_what_no_watermark_flushes_is_no_end(spark, location, job, params, complaint):
    """
    Rows without event time, and timers after the last watermark, fail the run by their operator.
    """
    write_events(location.input, [(1, "a", 1), (12, "b", 2)])
    (location.input / "001.csv").write_text(",a,3\n", encoding="utf-8")

    for _ in range(2):  # the second finds a query that is drained
        with pytest.raises(RunFailedError, match=complaint) as caught:
            location.run(spark, job, run_id="r", params=params, conf=ROCKSDB)
        assert FailureClass.NON_RECOVERABLE is caught.value.failure.failure_class

    assert JobDirectory(open_storage(str(location.job_dir))).run("r").final() is None


RENEWED = [
    (job, {"form": form, "after": after}, store)
    for job in ("renewed_timers", "chained_timers")
    for form in ("rows", "pandas")
    for after in ("timer", "watermark")
    for store in ("rocksdb", "changelogs")
]
RENEWED += [("windowed_timers", {"after": "watermark"}, "rocksdb")]
RENEWED += [("renewed_timeouts", {}, store) for store in ("hdfs", "rocksdb")]
CHOSEN_RENEWED = ("chained_timers", {"form": "rows", "after": "timer"}, "rocksdb")


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=" ".join([case[0], *case[1].values(), case[2]]),
            marks=[] if case == CHOSEN_RENEWED else [pytest.mark.whole],
        )
        for case in RENEWED
    ],
)
def test_a_timer_that_renews_itself_fires_once_in_the_drain(spark, location, caplog, case):
    """
    The drain fires each timer that is set, counts the renewals, and ends. What rows of a renewed
    alarm set after its watermark is counted, too: another batch would fire the renewals.
    """
    job, params, store = case
    write_events(location.input, [(1, "a", 1), (12, "b", 2)])

    final = location.run(spark, job, params=params, conf=FORMATS[store])

    operators = final.queries["out"].operators
    ignored = [each.ignored_timers for each in operators]
    renewed = [2, 0] if job == "windowed_timers" else [2] * len(operators)
    assert ("FINISHED", renewed) == (final.outcome, ignored)
    assert sum(ignored) == final.ignored_timers
    assert f"{sum(ignored)} timers that callbacks registered while the job" in caplog.text
    fired = [] if job == "chained_timers" and params["after"] == "watermark" else ["a", "b"]
    assert len(fired) == final.queries["out"].sinks[0].rows
    if fired:
        assert fired == sorted(row[0] for row in read_with_pandas(location.output))


@pytest.mark.parametrize(
    ("job", "params", "said"),
    [
        ("full_join_bounded_once", {}, "its left side (source one) that have no match are never"),
        ("full_join_with_a_condition", {}, "ON does not say until when they can match"),
        ("half_marked_join", {"how": "leftOuter"}, "left side (source one) that have no match"),
        ("half_marked_join", {"how": "rightOuter"}, "right side (source two) that have no match"),
        ("half_marked_join", {"how": "fullOuter"}, "because that side has no watermark: give its"),
    ],
)
def test_a_join_that_never_writes_its_rows_without_a_match_is_refused(
    spark, location, job, params, said
):
    """
    Spark takes it, and keeps rows of a side for ever: it is refused before the first row, with the
    side, its source and the fix.
    """
    shown = write_events(location.root / "shown", [(1, "a", 1), (2, "b", 1)])
    clicked = write_events(location.root / "clicked", [(2, "a", 0), (3, "c", 0)])
    params = {"shown": str(shown), "clicked": str(clicked), **params}

    with pytest.raises(NotAStreamError) as refused:
        location.run(spark, job, params=params)

    assert said in str(refused.value)
    assert not location.job_dir.exists()


def test_state_that_waits_for_nothing_is_an_end(spark, location):
    """What is known for ever, without a watermark, stays in state when the run is FINISHED."""
    write_events(location.input, EVENTS)

    final = location.run(spark, "known_for_ever", conf=ROCKSDB)

    assert ("FINISHED", [3]) == (
        final.outcome,
        [operator.state_rows for operator in final.queries["out"].operators],
    )
