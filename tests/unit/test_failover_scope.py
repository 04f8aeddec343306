"""Which queries are started again: Flink's scenarios of regions, and those of our own.

A result that Flink keeps on disk is a table that only shows what is committed; one that it streams is
a table without commits. In Flink a task that fails takes its results with it, so they are lost.
"""

from __future__ import annotations

import pytest

from airflow_provider.runtime.failures.failover_region import (
    Edge,
    Failover,
    FailoverScope,
    failover_scope,
)

SIX = tuple("123456")


def kept(*pairs: str) -> list[Edge]:
    """Return edges over tables that only show what is committed: ``"14"`` is 1 → 4."""
    return [Edge(upstream, downstream, committed=True) for upstream, downstream in pairs]


def streamed(*pairs: str) -> list[Edge]:
    """Return edges over tables that show open batches."""
    return [Edge(upstream, downstream, committed=False) for upstream, downstream in pairs]


CROSSED = kept("14", "15", "24", "25", "36")
JOINED = kept("13", "23")
CHAIN = [*streamed("12", "34", "56"), *kept("23", "45")]
DIAMOND = kept("12", "13", "24", "34")
HYBRID = [*kept("15", "25", "35", "56"), *streamed("45")]


@pytest.mark.parametrize(
    ("edges", "failed", "lost", "restarts"),
    [
        # RestartPipelinedRegionFailoverStrategyTest: errors of a region itself
        (CROSSED, "1", "1", "145"),
        (CROSSED, "2", "2", "245"),
        (CROSSED, "3", "3", "36"),
        (CROSSED, "4", "4", "4"),
        (CROSSED, "5", "5", "5"),
        (CROSSED, "6", "6", "6"),
        # errors of data consumption: what is read is not there
        (CROSSED, "4", "1", "145"),
        (CROSSED, "4", "2", "245"),
        (CROSSED, "5", "1", "145"),
        (CROSSED, "5", "2", "245"),
        (CROSSED, "6", "3", "36"),
        # every combination of results that are there, or not
        (JOINED, "1", "1", "13"),
        (JOINED, "2", "2", "23"),
        (JOINED, "3", "", "3"),
        (JOINED, "2", "12", "123"),
        (JOINED, "3", "1", "13"),
        (JOINED, "1", "12", "123"),
        (JOINED, "3", "2", "23"),
        (JOINED, "3", "12", "123"),
        # regions of several vertices
        (CHAIN, "3", "34", "3456"),
        (CHAIN, "3", "234", "123456"),
        # approximate local recovery: only downstream
        (DIAMOND, "1", "1", "1234"),
        (DIAMOND, "2", "2", "24"),
        (DIAMOND, "3", "3", "34"),
        (DIAMOND, "4", "4", "4"),
        # hybrid results: that of 3 cannot be read twice
        (HYBRID, "5", "35", "3456"),
        (HYBRID, "6", "3", "6"),
    ],
)
def test_flinks_scenarios(edges, failed, lost, restarts):
    """
    Where results are lost with whoever failed, the same is restarted as in Flink.
    """
    scope = failover_scope(SIX, edges, failed, lost=lost)

    assert restarts == "".join(scope.restart)


@pytest.mark.parametrize(
    ("edges", "failed", "restarts"),
    [
        (CROSSED, "1", "1"),  # what it has committed stays, so nobody else notices
        (CROSSED, "4", "4"),
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
    """
    A query goes on from its checkpoint: what others have read of its commits does not change.
    """
    scope = failover_scope(SIX, edges, failed)

    assert FailoverScope(restart=tuple(restarts)) == scope


def test_who_lost_a_table_begins_anew_and_the_failed_one_too():
    """
    A table that is gone is written again from an earlier savepoint; who has read it, read it so.
    """
    scope = failover_scope(SIX, CROSSED, "4", lost="1")

    assert tuple("145") == scope.anew


def test_who_only_shares_a_region_resumes():
    """
    Without a loss everybody goes on from the own checkpoint.
    """
    assert () == failover_scope(SIX, CHAIN, "3").anew


def test_what_has_finished_is_left_alone():
    """
    A query that was drained does not run again, be it in the region or when all is restarted.
    """
    assert tuple("34") == failover_scope(SIX, CHAIN, "3", finished="12").restart
    assert ("2",) == failover_scope(SIX, CHAIN, "2", finished="1").restart
    everything = failover_scope(SIX, CHAIN, "3", failover=Failover.FULL, finished="12")
    assert tuple("3456") == everything.restart


def test_what_a_finished_query_has_lost_cannot_be_healed():
    """
    Its table would have to be written again, and it has ended: that is for whoever runs the job.
    """
    scope = failover_scope(SIX, CROSSED, "4", finished="1", lost="1")

    assert (("4", "5"), ("1",)) == (scope.restart, scope.impossible)


def test_full_means_all_that_has_not_ended():
    """
    Flink's RestartAllFailoverStrategy, in the job's order.
    """
    assert SIX == failover_scope(SIX, CROSSED, "6", failover=Failover.FULL).restart


@pytest.mark.parametrize(
    ("failed", "edges"), [("7", []), ("1", kept("17"))], ids=["the failed one", "an edge"]
)
def test_an_unknown_query_is_a_mistake(failed, edges):
    """
    A name that is not the job's is not taken for one that needs nothing.
    """
    with pytest.raises(ValueError, match="'7': no query of '1'"):
        failover_scope(SIX, edges, failed)
