"""A batch job that dies anywhere: the same command again, and every row lands exactly once."""

from __future__ import annotations

import pytest
from deaths import check_deaths_of_a_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

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
    check_deaths_of_a_batch(location, drivers, before, after)
