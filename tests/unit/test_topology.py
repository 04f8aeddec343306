"""What a checkpoint and a query have in common: every difference is named with both its sides."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.checkpoint import (
    OperatorShape,
    Topology,
    mismatches,
    provider_name,
)

COUNT, JOIN = OperatorShape(0, "stateStoreSave"), OperatorShape(1, "symmetricHashJoin")
BOTH = Topology(("shown", "clicked"), (COUNT, JOIN), "rocksdb")
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
            ["expected 2 sources (shown, clicked), found 2 sources (clicked, shown)"],
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
            BOTH,
            Topology((), BOTH.operators, "hdfs"),
            [
                "expected 2 sources (shown, clicked), found 0 sources",
                "expected state in rocksdb, found that hdfs is asked for",
            ],
        ),
    ],
)
def test_differences_are_named_with_both_sides(expected, found, said):
    """
    A source or operator more, less, or in another place; what is not known is not judged.
    """
    assert said == mismatches(expected, found)


def test_providers_have_short_names():
    """
    Those that savepoints know, wherever Spark keeps their classes; others keep theirs.
    """
    place = "org.apache.spark.sql.execution.streaming.state"
    assert "rocksdb" == provider_name(f"{place}.RocksDBStateStoreProvider")
    assert "hdfs" == provider_name(f"{place}.HDFSBackedStateStoreProvider")
    assert "com.acme.OurStore" == provider_name("com.acme.OurStore")
