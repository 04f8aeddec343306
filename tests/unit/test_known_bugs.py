"""Shapes of plans that Spark answers wrongly, and those next to them, which it answers rightly."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.queries import bug_shapes
from airflow_provider.runtime.queries.known_bugs import (
    KNOWN_BUGS,
    KnownBug,
    Range,
    bugs_of,
    check_allowed,
    check_bug_names,
    describe,
)
from airflow_provider.runtime.queries.plan_steps import Shape, steps_of

PAGE = Path(__file__).parents[2] / "docs" / "known-spark-bugs.md"
Nodes = list[dict[str, Any]]
_ids = itertools.count(1)


# --- plans, as Spark writes them: a node, then its children ----------------------------------------


def node(kind: str, *children: Nodes, **values: Any) -> Nodes:
    first = {"class": f"org.apache.spark.{kind}", "num-children": len(children), **values}
    return [first, *itertools.chain.from_iterable(children)]


def column(
    name: str, dtype: Any = "string", *, nullable: bool = True, number: int | None = None
) -> Nodes:
    number = next(_ids) if number is None else number
    values = {"dataType": dtype, "nullable": nullable, "metadata": {}, "exprId": {"id": number}}
    return node("AttributeReference", name=name, **values)


def literal(value: Any) -> Nodes:
    return node("Literal", value=value, dataType="string")


def stream(*columns: Nodes) -> Nodes:
    return node("StreamingRelation", output=[*columns])


def table(*columns: Nodes) -> Nodes:
    return node("LogicalRelation", output=[*columns])


def marked(below: Nodes, event_time: Nodes) -> Nodes:
    return node("EventTimeWatermark", below, eventTime=event_time)


def join(how: str, left: Nodes, right: Nodes, *parts: Nodes) -> Nodes:
    condition = parts[0]
    for each in parts[1:]:
        condition = node("And", condition, each)
    kind = {"object": f"org.apache.spark.sql.catalyst.plans.{how}$"}
    return node("Join", left, right, joinType=kind, condition=condition)


def alias(name: str, value: Nodes) -> Nodes:
    return node("Alias", value, name=name, exprId={"id": next(_ids)}, explicitMetadata={})


def project(below: Nodes, *named: Nodes) -> Nodes:
    return node("Project", below, projectList=[*named])


def shape(plan: Nodes, mode: str = "append") -> Shape:
    return Shape(steps_of(plan), mode)


K1, T1, U1 = column("k1"), column("t1", "timestamp"), column("u1", "timestamp")
K2, T2 = column("k2"), column("t2", "timestamp")
LEFT, RIGHT = stream(K1, T1, U1), stream(K2, T2)
TABLE = table(K2, T2, column("u2", "timestamp"))
MARKED_LEFT, MARKED_RIGHT = marked(LEFT, T1), marked(RIGHT, T2)
SAME_KEY, SAME_TIME = node("EqualTo", K1, K2), node("EqualTo", T1, T2)


def between(value: Nodes, other: Nodes) -> list[Nodes]:
    """Return a bound on both sides, as Spark has it before 4.1."""
    interval = node("Literal", value=5, dataType="interval second")
    return [
        node("GreaterThanOrEqual", value, node("TimeAdd", other, interval)),
        node("LessThanOrEqual", value, node("TimeAdd", other, interval)),
    ]


def grouped(window: Nodes, *, time_is_left_out: bool) -> Nodes:
    group = literal(None) if time_is_left_out else window
    below = marked(stream(K1, window), window)
    kept = column("k"), column("w")
    expand = node("Expand", below, projections=[[K1, window], [K1, group]], output=[*kept])
    return node("Aggregate", expand, groupingExpressions=[*kept], aggregateExpressions=[*kept])


def deduplicated(below: Nodes, *keys: Nodes) -> Nodes:
    return node("Deduplicate", below, keys=[*keys])


FLOAT = column("f", "double")
NESTED = column("s", {"type": "struct", "fields": [{"name": "f", "type": "float"}]})
LISTED = column("l", {"type": "array", "elementType": "double", "containsNull": True})


def aggregated(below: Nodes, *keys: Nodes) -> Nodes:
    return node("Aggregate", below, groupingExpressions=[*keys], aggregateExpressions=[*keys])


def cast(value: Nodes) -> Nodes:
    return node("Cast", value, dataType="long")


K3, T3 = column("k3"), column("t3", "timestamp")
THIRD = marked(stream(K3, T3), T3)
UNBOUND = join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY)
HALF_BOUND = join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, node("LessThan", T1, T2))
BOUND = join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, *between(T2, T1))
BY_SECONDS = join(
    "Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, node("GreaterThan", cast(T1), cast(T2))
)

Question = Callable[[Shape], bool]
FOUND: list[tuple[Question, Nodes, str]] = [
    (bug_shapes.deduplicates_floats, deduplicated(stream(K1, FLOAT), K1, FLOAT), "append"),
    (bug_shapes.deduplicates_floats, deduplicated(stream(NESTED), NESTED), "append"),
    (bug_shapes.deduplicates_floats, deduplicated(stream(LISTED), LISTED), "update"),
    (bug_shapes.subtotals_over_windows, grouped(T1, time_is_left_out=True), "append"),
    (bug_shapes.excepts_all, node("Except", LEFT, TABLE, isAll=True), "append"),
    (bug_shapes.marks_results, marked(aggregated(MARKED_LEFT, T1), T1), "append"),
    (bug_shapes.marks_results, marked(join("Inner", LEFT, RIGHT, SAME_KEY), T2), "append"),
    (bug_shapes.bounds_by_cast, BY_SECONDS, "append"),
    (bug_shapes.aggregates_held_rows, aggregated(UNBOUND, T1), "append"),
    (bug_shapes.deduplicates_held_rows, deduplicated(UNBOUND, K1, T2), "append"),
    (bug_shapes.deduplicates_held_rows, deduplicated(project(UNBOUND, K1, T1), K1), "append"),
    (bug_shapes.aggregates_held_rows, aggregated(HALF_BOUND, T1), "append"),
    (
        bug_shapes.joins_held_rows,
        join("Inner", UNBOUND, THIRD, node("EqualTo", K1, K3), *between(T3, T1)),
        "append",
    ),
    *(
        (
            bug_shapes.evicts_by_one_watermark,
            join(how, MARKED_LEFT, RIGHT, SAME_KEY, SAME_TIME),
            "append",
        )
        for how in ("Inner", "LeftOuter", "RightOuter", "FullOuter", "LeftSemi")
    ),
    (
        bug_shapes.evicts_by_one_watermark,
        join("Inner", LEFT, MARKED_RIGHT, SAME_KEY, SAME_TIME),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, *between(U1, T2)),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join(
            "LeftOuter",
            MARKED_LEFT,
            MARKED_RIGHT,
            SAME_KEY,
            node("Between", literal("replaced"), input=U1, lower=T2, upper=T2),
        ),
        "append",
    ),
]
NEAR: list[tuple[Question, Nodes, str]] = [
    (bug_shapes.marks_results, aggregated(MARKED_LEFT, T1), "append"),
    (
        bug_shapes.marks_results,
        marked(join("Inner", LEFT, aggregated(table(K2), K2), SAME_KEY), T1),
        "append",
    ),
    (
        bug_shapes.bounds_by_cast,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, *between(T2, T1)),
        "append",
    ),
    (bug_shapes.aggregates_held_rows, aggregated(UNBOUND, K1), "append"),
    (bug_shapes.deduplicates_held_rows, deduplicated(project(UNBOUND, K1, U1), K1), "append"),
    (bug_shapes.deduplicates_held_rows, deduplicated(BOUND, K1, T1), "append"),
    (bug_shapes.aggregates_held_rows, aggregated(HALF_BOUND, T2), "append"),
    (bug_shapes.aggregates_held_rows, aggregated(BOUND, T1), "append"),
    (
        bug_shapes.joins_held_rows,
        join("Inner", BOUND, THIRD, node("EqualTo", K1, K3), *between(T3, T1)),
        "append",
    ),
    (bug_shapes.deduplicates_floats, deduplicated(stream(K1, FLOAT), K1), "append"),
    (bug_shapes.deduplicates_floats, deduplicated(table(K1, FLOAT), K1, FLOAT), "append"),
    (bug_shapes.excepts_all, node("Except", LEFT, TABLE, isAll=False), "append"),
    (bug_shapes.excepts_all, node("Except", table(K1, T1, U1), TABLE, isAll=True), "append"),
    (bug_shapes.subtotals_over_windows, grouped(T1, time_is_left_out=False), "append"),
    (bug_shapes.subtotals_over_windows, grouped(T1, time_is_left_out=True), "complete"),
    (
        bug_shapes.evicts_by_one_watermark,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, SAME_TIME),
        "append",
    ),
    (bug_shapes.evicts_by_one_watermark, join("Inner", LEFT, RIGHT, SAME_TIME), "append"),
    (
        bug_shapes.evicts_by_one_watermark,
        join("Inner", MARKED_LEFT, RIGHT, SAME_KEY, *between(T2, T1)),
        "append",
    ),
    (
        bug_shapes.evicts_by_one_watermark,
        join("Inner", MARKED_LEFT, table(K2, T2), SAME_KEY, SAME_TIME),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, *between(T1, T2)),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_TIME, *between(U1, T2)),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join("Inner", LEFT, MARKED_RIGHT, SAME_KEY, *between(U1, T2)),
        "append",
    ),
    (
        bug_shapes.evicts_by_another_column,
        join("Inner", MARKED_LEFT, MARKED_RIGHT, SAME_KEY, *between(U1, T2), *between(T1, T2)),
        "append",
    ),
]


@pytest.mark.parametrize(("question", "plan", "mode"), FOUND)
def test_a_plan_that_spark_answers_wrongly_is_found(question, plan, mode):
    """Each shape is found in a plan of streams, whatever is around it."""
    assert question(shape(plan, mode))
    around = node("SubqueryAlias", node("Filter", plan, condition=literal("true")), identifier={})
    assert question(shape(around, mode))


@pytest.mark.parametrize(("question", "plan", "mode"), NEAR)
def test_a_plan_next_to_it_is_not_found(question, plan, mode):
    """A plan that differs in what makes it right is not refused."""
    assert not question(shape(plan, mode))


def test_each_shape_has_plans_on_both_sides():
    """No entry of the table is without a plan that it finds, and one that it does not."""
    asked = {bug.finds for bug in KNOWN_BUGS}
    assert asked == {each[0] for each in FOUND} == {each[0] for each in NEAR}


# --- the table -------------------------------------------------------------------------------------

BUG = KnownBug(
    "SPARK-1",
    (Range((3, 5), (3, 5, 4)), Range((4, 0), (4, 2))),
    "each plan",
    lambda shape: shape.output_mode == "append",
    "rows are lost",
    "sort them",
)


@pytest.mark.parametrize(
    ("version", "is_concerned"),
    [
        ("3.4.9", False),
        ("3.5.0", True),
        ("3.5.3-amzn-1", True),
        ("3.5.4", False),
        ("4.0.0", True),
        ("4.1.4.dev1", True),
        ("4.2.0-SNAPSHOT", False),
        ("", False),
    ],
)
def test_an_entry_has_ranges_of_versions_by_patch_release(version, is_concerned):
    """A fix in a patch release ends a range; the next minor version may begin another one."""
    assert is_concerned == BUG.concerns(version)


def test_one_error_has_all_bugs_with_their_fixes(monkeypatch):
    """All queries and bugs are named at once, then what both ways around them cost."""
    other = BUG._replace(name="SPARK-2", goes_wrong="rows come twice", fix="count them")
    found = {"a": (BUG, other), "b": (), "c": (BUG,)}
    with pytest.raises(ConfigError) as refused:
        check_allowed(found, (), "4.0.5")
    assert (
        "query 'a': Spark 4.0.5 gives it wrong rows (SPARK-1): rows are lost; sort them; "
        "query 'a': Spark 4.0.5 gives it wrong rows (SPARK-2): rows come twice; count them; "
        "query 'c': Spark 4.0.5 gives it wrong rows (SPARK-1): rows are lost; sort them; or run it "
        "as a batch job, which has no such bug (--mode batch), or accept the wrong rows "
        "(--allow-known-bug SPARK-1 --allow-known-bug SPARK-2)" == str(refused.value)
    )
    assert 2 == refused.value.exit_code
    with pytest.raises(ConfigError, match=r"query 'a': Spark 4.0.5 .*\(SPARK-2\): rows come twice"):
        check_allowed(found, ("SPARK-1",), "4.0.5")
    check_allowed(found, ("SPARK-1", "SPARK-2", "SPARK-3"), "4.0.5")


def test_an_allowed_bug_must_be_known():
    """A mistyped name is refused with those that are known; one of another version has no effect."""
    for bug in KNOWN_BUGS:
        check_bug_names([bug.name])
    with pytest.raises(ConfigError, match=rf"--allow-known-bug SPARK-5: .*{KNOWN_BUGS[0].name}, "):
        check_bug_names([KNOWN_BUGS[0].name, "SPARK-5"])


def test_the_account_names_what_was_allowed():
    """What goes wrong stands beside the rows that are counted."""
    assert ["SPARK-1, a bug of Spark that was allowed: rows are lost"] == list(describe([BUG]))


def test_bugs_of_a_plan_are_those_of_the_version():
    """A plan with a bug is right on a version that does not have it."""
    plan = shape(FOUND[0][1])
    assert ["SPARK-56280"] == [bug.name for bug in bugs_of(plan, "4.1.4")]
    assert () == bugs_of(plan, "4.2.0")


def test_the_page_has_each_entry():
    """The table of the page has a row for each entry, and no other."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert [bug.as_row() for bug in KNOWN_BUGS] == rows[1:]
