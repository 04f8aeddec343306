"""Steps of an analyzed plan, with the columns and watermarks that each gets; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.queries.plan_tree import Node, conjuncts, id_of, object_name, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.queries.plan_tree import Values

_STREAMS: Final = frozenset({"StreamingRelation", "StreamingRelationV2"})
_OF_WINDOWS: Final = "PreciseTimestampConversion"
"""What Spark computes the bounds of windows with."""
_NAMED: Final = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_NEVER_NULL: Final = frozenset({"CreateNamedStruct", "CreateArray", "CreateMap"})
_OF_THE_LEFT: Final = frozenset({"LeftSemi", "LeftAnti"})


class Column(NamedTuple):
    """A column of a step's rows.

    Attributes:
        is_marked: whether it is an event time that has a watermark.
        is_literal: whether it is one value for all rows.
        may_be_null: whether a row can have no value in it, as far as the plan tells.
    """

    is_marked: bool = False
    is_literal: bool = False
    may_be_null: bool = True


class Rows(NamedTuple):
    """The rows that a step gives: their columns by id, and whether a stream is among its inputs."""

    columns: Mapping[int, Column]
    is_streaming: bool = False

    @property
    def marked(self) -> frozenset[int]:
        return frozenset(number for number, each in self.columns.items() if each.is_marked)


class Shape(NamedTuple):
    """What a query asks Spark to do."""

    steps: tuple[Step, ...]
    output_mode: str


class Step(NamedTuple):
    """A node of a plan, with the rows that it gets from each side, and those that it gives."""

    node: Node
    below: tuple[Rows, ...]
    rows: Rows

    @property
    def is_over_streams(self) -> bool:
        return bool(self.below) and all(each.is_streaming for each in self.below)


def steps_of(plan: Sequence[Values]) -> tuple[Step, ...]:
    """Return the steps of a plan in Spark's JSON, lower ones first."""
    walk = _Walk()
    walk.visit(tree_of(plan))
    return tuple(walk.steps)


class _Walk:
    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._shared: dict[int, Rows] = {}

    def visit(self, node: Node) -> Rows:
        below = tuple(map(self.visit, node.children))
        rows = self._rows_of(node, below)
        if node.kind == "CTERelationDef":
            self._shared[int(node.values["id"])] = rows
        self.steps.append(Step(node, below, rows))
        return rows

    def _rows_of(self, node: Node, below: tuple[Rows, ...]) -> Rows:
        if node.kind == "CTERelationRef":
            return self._referred(node)
        is_streaming = node.kind in _STREAMS or any(each.is_streaming for each in below)
        return Rows(_columns_of(node, below), is_streaming)

    def _referred(self, node: Node) -> Rows:
        shared = self._shared[int(node.values["cteId"])]
        own = [id_of(tree_of(each).values) for each in node.values["output"]]
        return shared._replace(columns=dict(zip(own, shared.columns.values(), strict=True)))


def _columns_of(node: Node, below: tuple[Rows, ...]) -> Mapping[int, Column]:
    if node.kind == "Join":
        return _joined(object_name(node.values["joinType"]), *below)
    if node.kind == "Union":
        return _united(below)
    known = {number: each for rows in below for number, each in rows.columns.items()}
    if node.kind in _NAMED:
        return dict(_named(map(tree_of, node.values[_NAMED[node.kind]]), known))
    if node.kind == "Expand":
        return dict(_expanded(node, known))
    if node.kind == "Filter":
        return _without_null(known, tree_of(node.values["condition"]))
    if node.kind == "EventTimeWatermark":
        number = id_of(tree_of(node.values["eventTime"]).values)
        return {**known, number: known[number]._replace(is_marked=True)}
    own = node.values.get("output") or node.values.get("outputAttrs")
    added = node.values.get("generatorOutput", ())
    return {**({} if own else known), **dict(_declared(own or added, known))}


def may_be_null(expression: Node, columns: Mapping[int, Column]) -> bool:
    """Whether an expression can have no value, as far as the plan tells."""
    if expression.kind == "AttributeReference":
        known = columns.get(id_of(expression.values))
        return known.may_be_null if known is not None else bool(expression.values["nullable"])
    if expression.kind in {"Coalesce", "KnownNotNull"}:
        return all(may_be_null(each, columns) for each in expression.children)
    if expression.kind == "Literal":
        return expression.values.get("value") is None
    return expression.kind not in _NEVER_NULL


def _declared(
    attributes: Iterable[Any], known: Mapping[int, Column]
) -> Iterator[tuple[int, Column]]:
    for values in (tree_of(each).values for each in attributes):
        column = Column(may_be_null=bool(values["nullable"]))
        yield id_of(values), known.get(id_of(values), column)


def _named(
    expressions: Iterable[Node], known: Mapping[int, Column]
) -> Iterator[tuple[int, Column]]:
    for each in expressions:
        value = each.children[0] if each.kind == "Alias" else each
        yield id_of(each.values), _computed(value, known)


def _computed(value: Node, known: Mapping[int, Column]) -> Column:
    if value.kind == "AttributeReference" and id_of(value.values) in known:
        return known[id_of(value.values)]
    return Column(_is_of_event_time(value, known), value.kind == "Literal", may_be_null(value, known))


def _is_of_event_time(value: Node, known: Mapping[int, Column]) -> bool:
    """Whether an expression is a window, or a time of one, by an event time with a watermark."""
    within = list(value.within())
    refers = (id_of(each.values) for each in within if each.kind == "AttributeReference")
    is_marked = any(known[each].is_marked for each in refers if each in known)
    return is_marked and any(each.kind == _OF_WINDOWS for each in within)


def _expanded(node: Node, known: Mapping[int, Column]) -> Iterator[tuple[int, Column]]:
    """Yield the columns of rows that are there several times, such as by sliding windows."""
    own = (id_of(tree_of(each).values) for each in node.values["output"])
    for number, values in zip(own, zip(*node.values["projections"], strict=True), strict=True):
        columns = [_computed(tree_of(each), known) for each in values]
        yield number, Column(
            is_marked=any(each.is_marked for each in columns),
            may_be_null=any(each.may_be_null for each in columns),
        )


def _without_null(known: Mapping[int, Column], condition: Node) -> dict[int, Column]:
    """Return the columns behind a filter: those that it asks to have a value, have one."""
    columns = dict(known)
    for part in conjuncts(condition):
        asked = part.children[0] if part.kind == "IsNotNull" else None
        if asked is not None and asked.kind == "AttributeReference":
            number = id_of(asked.values)
            if number in columns:
                columns[number] = columns[number]._replace(may_be_null=False)
    return columns


def _joined(how: str, left: Rows, right: Rows) -> Mapping[int, Column]:
    if how in _OF_THE_LEFT:
        return left.columns
    padded = {"LeftOuter": (right,), "RightOuter": (left,), "FullOuter": (left, right)}.get(how, ())
    return {
        number: each._replace(may_be_null=each.may_be_null or rows in padded)
        for rows in (left, right)
        for number, each in rows.columns.items()
    }


def _united(below: Sequence[Rows]) -> dict[int, Column]:
    """Return the columns of a union: they have the ids of the first side's."""
    sides = zip(*(rows.columns.values() for rows in below), strict=True)
    return dict(zip(below[0].columns, (each[0] for each in sides), strict=True))
