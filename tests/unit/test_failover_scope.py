"""Failover regions: the shapes of Flink's scenarios.

A result that Flink keeps on disk is a table that only shows what is committed; one that it streams is
a table without commits. In Flink a task that fails takes its results with it; here what a query has
committed stays, so nobody has to produce it again.
"""

from __future__ import annotations

import pytest

from airflow_provider.runtime.failures.restart_strategy import (
    Edge,
    Failover,
    queries_to_restart,
)

SIX = tuple("123456")


def kept(*pairs: str) -> list[Edge]:
    """Return edges over tables that only show what is committed: ``"14"`` is 1 → 4."""
    return [Edge(pair[0], pair[1], committed=True) for pair in pairs]


def streamed(*pairs: str) -> list[Edge]:
    """Return edges over tables that show open batches."""
    return [Edge(pair[0], pair[1], committed=False) for pair in pairs]


CROSSED = kept("14", "15", "24", "25", "36")
JOINED = kept("13", "23")
CHAIN = [*streamed("12", "34", "56"), *kept("23", "45")]
DIAMOND = kept("12", "13", "24", "34")
HYBRID = [*kept("15", "25", "35", "56"), *streamed("45")]


@pytest.mark.parametrize(
    ("edges", "failed", "restarts"),
    [
        (CROSSED, "1", "1"),  # what it has committed stays, so nobody else notices
        (CROSSED, "4", "4"),
        (JOINED, "3", "3"),
        (HYBRID, "5", "45"),  # what it streams from 4 is read again, what 3 has committed is there
        (HYBRID, "6", "6"),
        (CHAIN, "2", "12"),
        (CHAIN, "3", "34"),
        (DIAMOND, "1", "1"),
        (streamed("12", "23"), "1", "123"),
        (streamed("12", "23"), "3", "123"),
        (streamed("13", "23"), "1", "123"),
        ([], "5", "5"),
    ],
)
def test_a_query_that_resumes_disturbs_its_region_only(edges, failed, restarts):
    """A query goes on from its checkpoint: what others have read of its commits does not change."""
    assert tuple(restarts) == queries_to_restart(SIX, edges, failed)


def test_what_has_finished_is_left_alone():
    """A query that was drained does not run again, be it in the region or when all is restarted."""
    assert tuple("34") == queries_to_restart(SIX, CHAIN, "3", finished="12")
    assert ("2",) == queries_to_restart(SIX, CHAIN, "2", finished="1")
    everything = queries_to_restart(SIX, CHAIN, "3", failover=Failover.FULL, finished="12")
    assert tuple("3456") == everything


def test_full_means_all_that_has_not_ended():
    """Flink's RestartAllFailoverStrategy, in the job's order."""
    assert SIX == queries_to_restart(SIX, CROSSED, "6", failover=Failover.FULL)


@pytest.mark.parametrize(
    ("failed", "edges"), [("7", []), ("1", kept("17"))], ids=["the failed one", "an edge"]
)
def test_an_unknown_query_is_a_mistake(failed, edges):
    """A name that is not the job's is not taken for one that needs nothing."""
    with pytest.raises(ValueError, match="'7': no query of '1'"):
        queries_to_restart(SIX, edges, failed)
