"""Rows in state: when Spark looks rows up to count them, and what a report then says."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.runtime.checkpoint.topology import OperatorShape
from airflow_provider.runtime.queries import state_rows
from airflow_provider.runtime.queries.planned_operators import PlannedOperator
from airflow_provider.runtime.queries.state_rows import StateRows, follows_from_changes


def operator(kind, setting="append", keys=("bigint",)):
    return PlannedOperator(OperatorShape(0, kind, None), setting, frozenset(), keys, None)


GROUPS = operator("stateStoreSave")
OUTER = operator("symmetricHashJoin", "LeftOuter")
REPORT: dict[str, Any] = {
    "batchId": 4,
    "stateOperators": [{"operatorName": "stateStoreSave", "numRowsTotal": 0}],
}


@pytest.mark.parametrize(
    ("planned", "follows"),
    [
        (GROUPS, True),
        (operator("stateStoreSave", keys=()), False),  # its only row is updated without input, too
        (operator("stateStoreSave", keys=None), False),
        (operator("dedupe"), True),
        (operator("symmetricHashJoin", "Inner"), True),
        (OUTER, False),
        (operator("symmetricHashJoin", "LeftSemi"), False),
        (operator("sessionWindowStateStoreSaveExec"), False),
        (operator("globalLimit"), False),
        (operator("transformWithStateExec"), False),
        (operator("a later one of Spark's"), False),
    ],
)
def test_only_some_operators_report_all_of_their_changes(planned, follows):
    """Aggregations with keys, deduplications and inner joins do; others have Spark count."""
    assert follows == follows_from_changes(planned)


@pytest.mark.parametrize(
    ("committed", "recorded", "planned", "asked", "looks_up"),
    [
        pytest.param(-1, None, (GROUPS,), None, False, id="a new query has no rows"),
        pytest.param(4, {"0": 7}, (GROUPS,), None, False, id="the last epoch says how many"),
        pytest.param(4, None, (GROUPS,), None, True, id="it does not"),
        pytest.param(-1, None, (GROUPS, OUTER), None, True, id="one operator does not report all"),
        pytest.param(-1, None, None, None, True, id="operators are not known"),
        pytest.param(-1, None, (), None, False, id="no state"),
        pytest.param(-1, None, (GROUPS,), True, True, id="lookups are asked for"),
        pytest.param(4, None, (GROUPS,), False, False, id="no lookups are asked for"),
    ],
)
def test_spark_looks_rows_up_where_nothing_else_counts(
    committed, recorded, planned, asked, looks_up
):
    """It depends on the operators, on what is known of the rows before, and on the user's setting."""
    assert looks_up == StateRows().starts(committed, recorded, planned, asked=asked)


def test_reports_of_spark_are_left_where_it_counts():
    """A number that Spark has looked up is not replaced."""
    rows = StateRows()
    rows.starts(3, None, (GROUPS,))

    assert rows.spark_counts
    assert REPORT == rows.in_report(REPORT)


def test_unknown_rows_are_not_reported_as_none_at_all():
    """Without lookups Spark reports 0, whatever is there."""
    rows = StateRows()
    rows.starts(3, None, (OUTER,), asked=False)

    assert not rows.spark_counts
    assert rows.ran(4, []) is None
    assert [None] == [each["numRowsTotal"] for each in rows.in_report(REPORT)["stateOperators"]]
    assert 0 == REPORT["stateOperators"][0]["numRowsTotal"]


def test_a_query_that_waits_reports_the_rows_of_its_last_batch():
    """Spark reports it under the number of the batch to come."""
    rows = StateRows()
    rows.starts(3, {"0": 7}, (GROUPS,))

    assert [7] == [each["numRowsTotal"] for each in rows.in_report(REPORT)["stateOperators"]]


def test_a_reset_query_begins_without_rows():
    """The rows of a batch that was counted before are not those of the new checkpoint."""
    rows = StateRows()
    rows.starts(0, {"0": 7}, (GROUPS,))
    rows.starts(-1, None, (GROUPS,))

    assert rows.in_report({**REPORT, "batchId": 0})["stateOperators"][0]["numRowsTotal"] is None


def test_a_count_that_is_lost_is_not_begun_again_at_zero(monkeypatch):
    """After a batch whose changes could not be read, the rows stay unknown until another start."""
    counts = iter([None, {"0": 8}])
    monkeypatch.setattr(state_rows, "_rows_after", lambda *_: next(counts))
    rows = StateRows()
    rows.starts(3, {"0": 7}, (GROUPS,))

    assert rows.ran(4, []) is None
    assert rows.in_report(REPORT)["stateOperators"][0]["numRowsTotal"] is None
    assert rows.ran(5, []) is None
    assert rows.starts(5, None, (GROUPS,))
