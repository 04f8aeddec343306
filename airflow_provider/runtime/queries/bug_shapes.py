"""Shapes of plans that Spark answers wrongly, each as a question to a query's plan; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.plan_steps import (
    columns_in,
    is_marked,
    join_of,
)
from airflow_provider.runtime.queries.plan_tree import id_of, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.queries.plan_steps import Column, Join, Shape, Step

_DEDUPLICATES: Final = ("Deduplicate", "DeduplicateWithinWatermark")
_KEYS: Final = {"Aggregate": "groupingExpressions", **dict.fromkeys(_DEDUPLICATES, "keys")}
_STATEFUL: Final = ("Join", "Distinct", *_KEYS)
_WHOLE: Final = frozenset({"byte", "short", "integer", "long"})
_FLOATS: Final = frozenset({"float", "double"})


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


def _joins(shape: Shape) -> Iterator[Join]:
    return (join_of(step.node, *step.below) for step in _over_streams(shape, "Join"))


def _over_streams(shape: Shape, *kinds: str) -> Iterator[Step]:
    return (step for step in shape.steps if step.node.kind in kinds and step.is_over_streams)


def evicts_by_one_watermark(shape: Shape) -> bool:
    """Whether streams are joined on equal event times of which only one has a watermark."""
    return any(
        is_marked(one, join.left) != is_marked(two, join.right)
        for join in _joins(shape)
        for one, two in join.keys
    )


def evicts_by_another_column(shape: Shape) -> bool:
    """Whether a join bounds a time of a side that has its watermark on another column."""
    return any(_bounds_another_column(join, side) for join in _joins(shape) for side in (0, 1))


def _bounds_another_column(join: Join, side: int) -> bool:
    rows, others = (join.left, join.right)[side], (join.left, join.right)[1 - side]
    if any(is_marked(one, join.left) or is_marked(two, join.right) for one, two in join.keys):
        return False  # rows leave the state by that key
    bounded = [
        columns_in(pair[side])
        for pair in join.lower[side]
        if columns_in(pair[1 - side]) & others.marked
    ]
    return bool(rows.marked and bounded) and not any(each & rows.marked for each in bounded)


def aggregates_held_rows(shape: Shape) -> bool:
    """Whether append mode groups by the event time of rows that a join holds for ever."""
    found = _keys(shape, "Aggregate")
    return shape.output_mode == "append" and any(column.is_held for _, column in found)


def deduplicates_held_rows(shape: Shape) -> bool:
    """Whether rows that a join holds for ever are deduplicated, with their event time."""
    return any(
        column.is_held
        for step in _over_streams(shape, *_DEDUPLICATES)
        for column in step.below[0].columns.values()
    )


def bounds_by_cast(shape: Shape) -> bool:
    """Whether a join bounds event times that are cast to whole numbers, such as seconds."""
    return any(
        any(each.kind == "Cast" and each.values["dataType"] in _WHOLE for each in side.within())
        for join in _joins(shape)
        for pairs in join.lower
        for pair in pairs
        for side, rows in zip(pair, (join.left, join.right), strict=True)
        if columns_in(side) & rows.marked
    )


def marks_results(shape: Shape) -> bool:
    """Whether a watermark is set on the result of a stateful operator."""
    stateful = [step.node for step in _over_streams(shape, *_STATEFUL)]
    return any(
        any(each is other for each in step.node.within() for other in stateful)
        for step in _over_streams(shape, "EventTimeWatermark")
    )


def _keys(shape: Shape, *kinds: str) -> Iterator[tuple[Step, Column]]:
    """Yield what groups are made of, and duplicates are found by, with the columns below."""
    for kind in kinds:
        for step in _over_streams(shape, kind):
            columns = step.below[0].columns
            for each in step.node.values[_KEYS[kind]]:
                found = columns_in(tree_of(each)) & columns.keys()
                yield from ((step, columns[number]) for number in found)


def joins_held_rows(shape: Shape) -> bool:
    """Whether rows that a join holds for ever are joined with another stream."""
    return any(
        column.is_held
        for join in _joins(shape)
        for rows in (join.left, join.right)
        for column in rows.columns.values()
    )


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
