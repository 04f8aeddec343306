"""Shapes of plans that Spark answers wrongly, each as a question to a query's plan; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.queries.plan_steps import may_be_null
from airflow_provider.runtime.queries.plan_tree import conjuncts, id_of, object_name, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.queries.plan_steps import Rows, Shape, Step
    from airflow_provider.runtime.queries.plan_tree import Node

_DEDUPLICATES: Final = ("Deduplicate", "DeduplicateWithinWatermark")
_FLOATS: Final = frozenset({"float", "double"})
_BOUNDS: Final = frozenset({"LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})


def deduplicates_floats(shape: Shape) -> bool:
    """Whether duplicates are found by a key with floating-point numbers, also nested ones."""
    keys = (
        tree_of(each).values["dataType"]
        for step in _over_streams(shape, *_DEDUPLICATES)
        for each in step.node.values["keys"]
    )
    return any(map(_has_float, keys))


def _has_float(kind: Any) -> bool:
    if isinstance(kind, str):
        return kind in _FLOATS
    nested = (kind.get(name) for name in ("elementType", "keyType", "valueType"))
    fields = (each["type"] for each in kind.get("fields", ()))
    return any(_has_float(each) for each in (*nested, *fields) if each is not None)


class _Join(NamedTuple):
    """A join of streams; *keys* and *bounds* are pairs of the left and the right side."""

    how: str
    left: Rows
    right: Rows
    keys: tuple[tuple[Node, Node], ...]
    bounds: tuple[tuple[Node, Node], ...]


def _joins(shape: Shape) -> Iterator[_Join]:
    for step in _over_streams(shape, "Join"):
        left, right = step.below
        condition = step.node.values.get("condition")
        parts = conjuncts(tree_of(condition)) if condition else ()
        pairs = [
            (kind, pair)
            for part in parts
            for kind, one, two in _comparisons(part)
            for pair in ((one, two), (two, one))
            if _is_across(pair, left, right)
        ]
        yield _Join(
            object_name(step.node.values["joinType"]),
            left,
            right,
            tuple(pair for kind, pair in pairs if kind == "EqualTo"),
            tuple(pair for kind, pair in pairs if kind != "EqualTo"),
        )


def _comparisons(part: Node) -> Iterator[tuple[str, Node, Node]]:
    if part.kind == "EqualTo" or part.kind in _BOUNDS:
        one, two = part.children
        yield part.kind, one, two
    elif part.kind == "Between":  # since Spark 4.1; before, it is two comparisons
        value, low, high = (tree_of(part.values[name]) for name in ("input", "lower", "upper"))
        yield "GreaterThanOrEqual", value, low
        yield "LessThanOrEqual", value, high


def _is_across(pair: tuple[Node, Node], left: Rows, right: Rows) -> bool:
    """Whether the first of a pair is computed from the left side, the second from the right one."""
    one, two = map(_columns_in, pair)
    sides = (one, left.columns.keys()), (two, right.columns.keys())
    return all(refers and refers <= columns for refers, columns in sides)


def _columns_in(expression: Node) -> set[int]:
    within = expression.within()
    return {id_of(each.values) for each in within if each.kind == "AttributeReference"}


def _over_streams(shape: Shape, *kinds: str) -> Iterator[Step]:
    return (step for step in shape.steps if step.node.kind in kinds and step.is_over_streams)


def full_join_of_nulls(shape: Shape) -> bool:
    """Whether a full outer join has a key that can be NULL on both sides."""
    return any(
        may_be_null(one, join.left.columns) and may_be_null(two, join.right.columns)
        for join in _joins(shape)
        if join.how == "FullOuter"
        for one, two in join.keys
    )


def evicts_by_one_watermark(shape: Shape) -> bool:
    """Whether streams are joined on equal event times of which only one has a watermark."""
    return any(
        len({_is_marked(one, join.left), _is_marked(two, join.right)}) > 1
        for join in _joins(shape)
        for one, two in join.keys
    )


def _is_marked(key: Node, rows: Rows) -> bool:
    return key.kind == "AttributeReference" and id_of(key.values) in rows.marked


def evicts_by_another_column(shape: Shape) -> bool:
    """Whether a join bounds a time of a side that has its watermark on another column."""
    return any(_bounds_another_column(join, side) for join in _joins(shape) for side in (0, 1))


def _bounds_another_column(join: _Join, side: int) -> bool:
    rows, others = (join.left, join.right)[side], (join.left, join.right)[1 - side]
    if any(_is_marked(pair[side], rows) for pair in join.keys):
        return False  # rows leave the state by that key
    bounded = [
        _columns_in(pair[side])
        for pair in join.bounds
        if _columns_in(pair[1 - side]) & others.marked
    ]
    return bool(rows.marked and bounded) and not any(each & rows.marked for each in bounded)


def excepts_all(shape: Shape) -> bool:
    """Whether rows of a stream are left out by EXCEPT ALL."""
    return any(
        step.node.kind == "Except" and step.node.values["isAll"] and step.below[0].is_streaming
        for step in shape.steps
    )


def subtotals_over_windows(shape: Shape) -> bool:
    """Whether subtotals leave out the event time, by whose watermark append mode writes rows."""
    return shape.output_mode == "append" and any(
        _nulls_a_mark(step) for step in _over_streams(shape, "Expand")
    )


def _nulls_a_mark(step: Step) -> bool:
    (rows,) = step.below
    by_column = zip(*(map(tree_of, each) for each in step.node.values["projections"]), strict=True)
    return any(
        any(
            each.kind == "AttributeReference" and id_of(each.values) in rows.marked
            for each in column
        )
        and any(each.kind == "Literal" and each.values["value"] is None for each in column)
        for column in map(list, by_column)
    )
