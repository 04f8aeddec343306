"""A run is FINISHED only when its sources have nothing more to read."""

from __future__ import annotations

import itertools

import pytest
from streams import read_with_pandas

from airflow_provider.runtime.errors import RunFailedError

pytestmark = pytest.mark.spark

NUMBERS = [(n,) for n in range(3000)]


@pytest.mark.whole
def test_a_source_that_tells_its_end_by_reads_is_read_to_its_end(spark, location):
    """A simple reader of 700 rows at a time is read until it has no more."""
    final = location.run(spark, "paging")

    assert NUMBERS == read_with_pandas(location.output)
    assert ("FINISHED", 3000, True) == (
        final.outcome,
        final.rows_read,
        final.queries["out"].sources[0].finished,
    )


@pytest.mark.long
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.whole)])
def test_a_driver_that_died_between_the_reads_is_followed_by_one_that_reads_on(
    spark, location, monkeypatch, times
):
    """
    Without an intent to drain, the next attempt goes on with the rows that were not asked for.
    """
    from airflow_provider.runtime.queries.streaming import StreamQuery

    starts = itertools.count()
    start = StreamQuery.start

    def die(query, how):
        if next(starts) == times:
            raise OSError("drivers die")
        start(query, how)

    with monkeypatch.context() as patch:
        patch.setattr(StreamQuery, "start", die)
        with pytest.raises(RunFailedError, match="drivers die"):
            location.run(spark, "paging", run_id="r")
    final = location.run(spark, "paging", run_id="r")

    assert NUMBERS == read_with_pandas(location.output)
    assert ("FINISHED", 3000) == (final.outcome, final.rows_read)
