"""The ``spark_sink`` sink: Spark writes by itself, and the job ends like any other."""

from __future__ import annotations

import pytest
from streams import run_in, windows_of, write_events

from airflow_provider.runtime.errors import ConfigError, RunFailedError

pytestmark = pytest.mark.spark

EVENTS = [(1, "a", 1), (12, "b", 2), (25, "a", 3)]
LATER = [(31, "b", 4), (47, "a", 5)]


def as_spark_reads_it(spark, folder):
    """Return what honours ``_spark_metadata``, the only kind of reader that Spark promises for."""
    return sorted(tuple(row) for row in spark.read.parquet(str(folder)).collect())


@pytest.mark.long
def test_the_last_windows_are_written_before_the_job_is_finished(spark, location):
    """
    The drain flushes through Spark's own sink as through any other; Spark's own reports are counted.
    """
    write_events(location.input, EVENTS, LATER)

    final = location.run(spark, "native_windows", params={"files_per_batch": "1"})

    assert windows_of([*EVENTS, *LATER]) == as_spark_reads_it(spark, location.output)
    query = final.queries["out"]
    assert ("FINISHED", True, 0) == (
        final.outcome,
        query.finished,
        query.operators[0].state_rows,
    )
    assert [len(windows_of([*EVENTS, *LATER]))] == [sink.rows for sink in query.sinks]
    assert [f"spark:parquet:{location.output}"] == [sink.name for sink in query.sinks]
    assert (len([*EVENTS, *LATER]), True, 0) == (
        final.rows_read,
        final.rows_minimum,
        final.late_rows,
    )


@pytest.mark.long
def test_a_suspended_run_goes_on(spark, location):
    """
    Spark's sink knows its batches by the checkpoint, so a second run repeats nothing. Another job
    directory is refused: Spark would take its batches for those that are listed, and skip them.
    """
    write_events(location.input, EVENTS)
    location.run(spark, "native_windows", run_id="first", at_end="suspend")
    write_events(location.input, EVENTS, LATER)

    location.run(spark, "native_windows", run_id="second")

    assert windows_of([*EVENTS, *LATER]) == as_spark_reads_it(spark, location.output)
    with pytest.raises(RunFailedError, match="another job directory has written there"):
        run_in(spark, location, location.root / "another", "native_windows")


def test_one_query_has_one_kind_of_sink(spark, location):
    """A query cannot be written in two phases and in one at the same time."""
    write_events(location.input, EVENTS)

    with pytest.raises(ConfigError, match="one of Spark.s own sinks cannot share epochs"):
        location.run(spark, "native_and_files")
    assert not location.job_dir.exists()
