"""Fingerprints: which change of a query has which verdict, as the page says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.state_rewrite.dropped_operators import fingerprint_without
from airflow_provider.runtime.checkpoint.topology import (
    Change,
    Fingerprint,
    OperatorFingerprint,
    StateColumn,
    Verdict,
    Watermark,
    changes_between,
    side_by_side,
)

PAGE = Path(__file__).parents[2] / "docs" / "change-a-job.md"
OPERATOR = OperatorFingerprint(
    id=0,
    kind="stateStoreSave",
    keys=("k",),
    window="window(time, 10 minutes)",
    functions=("sum(v)",),
    key_types=("string",),
    columns=(StateColumn("sum", "bigint"),),
)
KEPT = Fingerprint(
    spark="4.3",
    output_mode="append",
    operators=(OPERATOR,),
    watermarks=(Watermark("time", "5 seconds"),),
    output=("k", "sum(v)"),
)


def with_operator(**changed: Any) -> Fingerprint:
    return dataclasses.replace(KEPT, operators=(dataclasses.replace(OPERATOR, **changed),))


def with_query(**changed: Any) -> Fingerprint:
    return dataclasses.replace(KEPT, **changed)


# The beginning of a row of the page, and a query that is changed so.
ROWS: dict[str, Fingerprint] = {
    "the columns behind the last operator": with_query(output=("k", "sum(v) as total")),
    "the delay of a watermark": with_query(watermarks=(Watermark("time", "9 seconds"),)),
    "the number of a limit": with_operator(limit="5"),
    "the size, slide or start of a window": with_operator(window="window(time, 20 minutes)"),
    "a key of a group": with_operator(keys=("upper(k)",)),
    "the column or the kind of an aggregate": with_operator(functions=("max(v)",)),
    "a filter, a joined table": with_operator(rows=("(v > 1)",)),
    "the type of a join": with_operator(setting="LeftOuter"),
    "the condition of a join": with_operator(condition=("(left.k = right.k)",)),
    "the name of a function": with_operator(function="count_up"),
    "the column of a watermark": with_query(watermarks=(Watermark("seen", "5 seconds"),)),
    "the output mode": with_query(output_mode="update"),
    "the number or the types of keys": with_operator(key_types=("string", "int")),
    "an aggregate added or removed": with_operator(columns=(StateColumn("sum", "double"),)),
}


def page_rows() -> dict[str, str]:
    """Return the verdict of each row of the page's table, by what has changed."""
    text = PAGE.read_text(encoding="utf-8").partition("## What may be changed")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {row[0]: row[1] for row in cells}


def test_the_page_has_each_change_with_its_verdict():
    """
    The table "What may be changed" has one row for each change that is known here, and no other.
    """
    rows = page_rows()
    assert len(ROWS) == len(rows)
    for begin, now in ROWS.items():
        (verdict,) = [said for what, said in rows.items() if what.startswith(begin)]
        (change,) = changes_between(KEPT, now)
        assert verdict == change.verdict.value, begin


def test_each_attribute_has_a_row():
    """No attribute of a fingerprint is compared without being in the table, or left uncompared."""
    changed = set()
    for now in ROWS.values():
        for kept, found in ((KEPT, now), (KEPT.operators[0], now.operators[0])):
            changed |= {
                field.name
                for field in dataclasses.fields(kept)
                if getattr(kept, field.name) != getattr(found, field.name)
            }
    known = {
        f.name for kind in (Fingerprint, OperatorFingerprint) for f in dataclasses.fields(kind)
    }
    assert known - {"id", "kind", "spark"} == changed


def test_a_column_that_does_not_fit_explains_its_function():
    """An added aggregate is one that does not fit, and not one that would mix results."""
    now = with_operator(
        functions=("sum(v)", "max(v)"),
        columns=(StateColumn("sum", "bigint"), StateColumn("max", "int")),
    )
    assert [
        "functions of operator 0 stateStoreSave: sum(v) -> sum(v), max(v)",
        "columns of state of operator 0 stateStoreSave: sum bigint -> sum bigint, max int",
    ] == list(map(str, changes_between(KEPT, now)))
    assert {Verdict.IMPOSSIBLE} == {each.verdict for each in changes_between(KEPT, now)}


def test_another_spark_may_say_the_same_in_other_words():
    """
    With the plan of another version of Spark, only windows, delays, types and columns are compared.
    """
    for begin, now in ROWS.items():
        later = dataclasses.replace(now, spark="4.4")
        is_text = begin.startswith(
            ("the columns", "a key", "the column ", "a filter", "the condition")
        )
        assert is_text == (not changes_between(KEPT, later)), begin


def test_what_is_not_known_is_not_compared():
    """
    Columns that an older Spark did not tell, a query without state, operators of other kinds: none
    of these is a change here.
    """
    unknown = with_operator(key_types=None, columns=None)
    none = with_query(operators=())
    other = with_operator(kind="dedupe")
    for kept, now in ((KEPT, unknown), (unknown, KEPT), (none, KEPT), (KEPT, other)):
        assert [] == changes_between(kept, now)


@pytest.mark.parametrize(("changes", "lines"), [(1, 2), (25, 22)])
def test_the_table_fits_on_a_screen(changes, lines):
    """Long texts show where they differ, and further changes are counted."""
    long = "concat(" + "a, " * 60
    made = [
        Change("0 stateStoreSave", "keys", f"{long}b)", f"{long}c)", Verdict.MIXES_RESULTS)
    ] * changes
    shown = list(side_by_side(made))
    assert lines == len(shown)
    assert all(len(line) <= 150 for line in (*shown, str(made[0])))
    assert "b)" in shown[1]
    assert "c)" in shown[1]


def test_a_dropped_operator_leaves_the_fingerprint():
    """The operators that stay get the numbers that they have without it."""
    second = dataclasses.replace(OPERATOR, id=1, window="window(time, 1 hour)")
    both = with_query(operators=(OPERATOR, second))
    assert [(0, "window(time, 1 hour)")] == [
        (each.id, each.window) for each in fingerprint_without(both, [0]).operators
    ]
