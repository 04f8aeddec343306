"""The table of operator kinds: a row each, what it leaves behind a drain, and kinds without a row."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.extensions.state_tools.contents import tables_of
from airflow_provider.runtime.checkpoint.operator_kinds import (
    KINDS,
    Setting,
    StateLayout,
    kind_named,
    kind_of_node,
)
from airflow_provider.runtime.queries.query import QueryDefinition

NO_FRAME: Any = None


def test_each_row_is_found():
    """No two rows have one name or one class of nodes, so none hides another."""
    assert list(KINDS) == [kind_named(kind.name) for kind in KINDS]
    assert [k for k in KINDS if k.node] == [kind_of_node(k.node) for k in KINDS if k.node]


def test_a_kind_without_a_row_is_keyed_state_and_nothing_else():
    """
    Its state is read; it is neither repartitioned nor waited for, and keeps no job from BATCH.
    """
    kind = kind_named("a kind of the future")

    assert StateLayout.KEYED is kind.layout
    assert not kind.is_repartitionable
    assert ({}, {}) == (kind.waiting, kind.in_batch)
    assert kind_of_node("Project") is None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_layout_has_tables(kind):
    """Keyed state is one table, a join has two sides, and what has variables has only theirs."""
    expected = {StateLayout.SIDES: ["left", "right"], StateLayout.VARIABLES: []}

    found = [table.name for table in tables_of(kind.name, (), {})]

    assert expected.get(kind.layout, ["keyed_state"]) == found


@pytest.mark.parametrize(
    ("name", "setting", "expected"),
    [
        ("stateStoreSave", "append", ["groups whose rows are to come"]),
        ("stateStoreSave", "update", []),
        ("sessionWindowStateStoreSaveExec", "append", ["groups whose rows are to come"]),
        ("sessionWindowStateStoreSaveExec", "complete", []),
        ("dedupe", "append", []),
        ("dedupeWithinWatermark", "append", []),
        ("globalLimit", "append", []),
        ("symmetricHashJoin", "Inner", []),
        ("symmetricHashJoin", "LeftSemi", []),
        ("symmetricHashJoin", "LeftOuter", ["rows of its left side"]),
        ("symmetricHashJoin", "RightOuter", ["rows of its right side"]),
        ("symmetricHashJoin", "FullOuter", ["rows of its left side", "rows of its right side"]),
        ("applyInPandasWithState", "EventTimeTimeout", ["timeouts"]),
        ("flatMapGroupsWithState", "ProcessingTimeTimeout", []),
        ("flatMapGroupsWithState", "NoTimeout", []),
        ("transformWithStateExec", "EventTime", ["timers"]),
        ("transformWithStateInPandasExec", "EventTime", ["timers"]),
        ("transformWithStateInPySparkExec", "ProcessingTime", []),
        ("transformWithStateInPySparkExec", "NoTime", []),
    ],
)
def test_the_rows_that_wait_for_a_watermark(name, setting, expected):
    """What a watermark sets off waits for it, and nothing else that an operator keeps."""
    assert expected == [rows.what for rows in kind_named(name).waiting.get(setting, ())]


@pytest.mark.parametrize(("timing", "expected"), [("ProcessingTime", True), ("EventTime", False)])
def test_timers_and_timeouts_of_the_clock(timing, expected):
    """A query goes by the clock when time alone sets off what one of its operators emits."""
    nodes = [kind.node for kind in KINDS if kind.setting is Setting.TIME_MODE]
    operations = [*(f"{node}:{timing}" for node in nodes), f"{timing}Timeout"]

    queries = [
        QueryDefinition("q", NO_FRAME, (), "append", (), (), operations=(operation,))
        for operation in operations
    ]

    assert [expected] * 4 == [query.goes_by_clock for query in queries]
