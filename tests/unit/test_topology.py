"""Topologies of a checkpoint and a query: every difference is named with both its sides."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint.drain_step import FinishState, finish_states_of
from airflow_provider.runtime.checkpoint.inventory import provider_name
from airflow_provider.runtime.checkpoint.topology import (
    BY_POSITION,
    OperatorShape,
    Topology,
    mismatches,
)

COUNT, JOIN = OperatorShape(0, "stateStoreSave"), OperatorShape(1, "symmetricHashJoin")
BOTH = Topology(("shown", "clicked"), (COUNT, JOIN), "rocksdb")
KNOWN = f"({BY_POSITION}, so each keeps its place)"
SOME = "the stateful operators 0 stateStoreSave, 1 symmetricHashJoin"


@pytest.mark.parametrize(
    ("expected", "found", "said"),
    [
        (BOTH, BOTH, []),
        (Topology((None, None), (JOIN, COUNT)), BOTH, []),
        (Topology(BOTH.sources, None), BOTH, []),
        (BOTH, Topology(BOTH.sources, None), []),
        (BOTH, Topology(BOTH.sources, BOTH.operators, None), []),
        (Topology(("a",), (), "rocksdb"), Topology(("a",), (), "hdfs"), []),
        (
            Topology((None,), BOTH.operators),
            BOTH,
            ["expected 1 source, found 2 sources (shown, clicked)"],
        ),
        (
            BOTH,
            Topology(("clicked", "shown"), BOTH.operators),
            [f"expected 2 sources (shown, clicked), found 2 sources (clicked, shown) {KNOWN}"],
        ),
        (BOTH, Topology(BOTH.sources, ()), [f"expected {SOME}, found no stateful operator"]),
        (
            BOTH,
            Topology(BOTH.sources, (COUNT,)),
            [f"expected {SOME}, found the stateful operators 0 stateStoreSave"],
        ),
        (
            BOTH,
            Topology(BOTH.sources, (COUNT._replace(id=1), JOIN._replace(id=0))),
            [
                f"expected {SOME}, found the stateful operators 0 symmetricHashJoin, "
                "1 stateStoreSave"
            ],
        ),
        (
            Topology(BOTH.sources, (COUNT._replace(sources=("shown",)), JOIN)),
            Topology(BOTH.sources, (COUNT._replace(sources=("clicked",)), JOIN)),
            [
                "expected the stateful operator 0 stateStoreSave to have rows of shown, found that "
                "it has those of clicked"
            ],
        ),
        (
            Topology(BOTH.sources, (COUNT._replace(sources=("shown", None)), JOIN)),
            Topology(BOTH.sources, (COUNT._replace(sources=("clicked",)), JOIN)),
            [],
        ),
        (
            BOTH,
            Topology((), BOTH.operators, "hdfs"),
            [
                f"expected 2 sources (shown, clicked), found 0 sources {KNOWN}",
                "expected state in rocksdb, found that hdfs is configured",
            ],
        ),
    ],
)
def test_differences_are_named_with_both_sides(expected, found, said):
    """A source or operator more, less, or in another location; what is not known is not judged."""
    assert said == mismatches(expected, found)


RUN, PART, DONE = FinishState.RUNNING, FinishState.PARTLY_FINISHED, FinishState.FINISHED
JOINED = Topology(
    ("a", "b"),
    (OperatorShape(0, "dedupe", ("a",)), OperatorShape(1, "symmetricHashJoin", ("a", "b"))),
)


@pytest.mark.parametrize(
    ("ended", "drained", "sources", "operators"),
    [
        ((), False, [RUN, RUN], [RUN, RUN]),
        (("a",), False, [DONE, RUN], [PART, PART]),
        (("b",), False, [RUN, DONE], [RUN, PART]),
        (("a", "b"), False, [DONE, DONE], [PART, PART]),
        (("a", "b"), True, [DONE, DONE], [DONE, DONE]),
        (("a",), True, [DONE, RUN], [DONE, PART]),
        (("x",), True, [RUN, RUN], [RUN, RUN]),
    ],
)
def test_marks_follow_from_the_sources_and_the_drain(ended, drained, sources, operators):
    """
    An operator is finished when all sources above it are and it was drained; before that, partly as
    soon as one of them is.
    """
    marks = finish_states_of(JOINED, ended, drained=drained)

    assert sources == [mark for _, mark in marks.sources]
    assert operators == [marks.of_operator(0), marks.of_operator(1)]


@pytest.mark.parametrize("topology", [Topology(("a", "b"), None), Topology(("a", "b"), (COUNT,))])
def test_an_operator_of_which_little_is_known_has_all_sources_above_it(topology):
    """It is not said to have ended while one of them may still send it rows."""
    assert [RUN, PART, PART, DONE] == [
        finish_states_of(topology, ended, drained=drained).of_operator(0)
        for ended, drained in (((), False), (("a",), True), (("a", "b"), False), (("a", "b"), True))
    ]


@pytest.mark.parametrize(("drained", "mark"), [(False, RUN), (True, DONE)])
def test_an_operator_over_a_table_alone_ends_with_the_drain(drained, mark):
    """No source lies above it."""
    alone = Topology(("a",), (COUNT._replace(sources=()),))
    assert mark is finish_states_of(alone, ("a",), drained=drained).of_operator(0)


def test_providers_have_short_names():
    """Those that savepoints know, wherever Spark keeps their classes; others keep theirs."""
    location = "org.apache.spark.sql.execution.streaming.state"
    assert "rocksdb" == provider_name(f"{location}.RocksDBStateStoreProvider")
    assert "hdfs" == provider_name(f"{location}.HDFSBackedStateStoreProvider")
    assert "com.acme.OurStore" == provider_name("com.acme.OurStore")
