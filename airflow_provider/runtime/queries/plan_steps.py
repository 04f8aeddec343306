"""Steps of an analyzed plan, with the columns and watermarks that each gets; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.queries.plan_tree import Node, conjuncts, id_of, object_name, tree_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider.runtime.queries.plan_tree import Values

_STREAMS: Final = frozenset({"StreamingRelation", "StreamingRelationV2"})
_OF_WINDOWS: Final = "PreciseTimestampConversion"
"""What Spark computes the bounds of windows with."""
_NAMED: Final = {"Project": "projectList", "Aggregate": "aggregateExpressions"}
_BOUNDS: Final = frozenset({"LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual"})
_UNITED: Final = frozenset({"Union", "Except", "Intersect"})
_OF_THE_LEFT: Final = frozenset({"LeftSemi", "LeftAnti"})


Pair = tuple[Node, Node]
Act = Callable[[Node, "Mapping[int, Column]", "Sequence[Rows]"], "Mapping[int, Column]"]


class Column(NamedTuple):
    """A column of a step's rows.

    Attributes:
        is_marked: whether it is an event time that has a watermark.
        is_held: whether it is an event time of rows that a join holds for ever, so that they come
            out long after the watermark has passed them.
    """

    is_marked: bool = False
    is_held: bool = False


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
    if node.kind in _UNITED:
        return _united(below)
    if node.kind == "WithCTE":
        return below[-1].columns
    known = {number: each for rows in below for number, each in rows.columns.items()}
    return _ACTS.get(node.kind, _others)(node, known, below)


def _others(node: Node, known: Mapping[int, Column], _: Sequence[Rows]) -> Mapping[int, Column]:
    own = node.values.get("output") or node.values.get("outputAttrs")
    added = node.values.get("generatorOutput", ())
    return {**({} if own else known), **dict(_declared(own or added, known))}


def _projected(node: Node, known: Mapping[int, Column], _: Sequence[Rows]) -> Mapping[int, Column]:
    return dict(_named(map(tree_of, node.values[_NAMED[node.kind]]), known))


def _marked(node: Node, known: Mapping[int, Column], _: Sequence[Rows]) -> Mapping[int, Column]:
    number = id_of(tree_of(node.values["eventTime"]).values)
    return {**known, number: known.get(number, Column())._replace(is_marked=True)}


def _declared(
    attributes: Iterable[Any], known: Mapping[int, Column]
) -> Iterator[tuple[int, Column]]:
    for values in (tree_of(each).values for each in attributes):
        yield id_of(values), known.get(id_of(values), Column())


def _named(
    expressions: Iterable[Node], known: Mapping[int, Column]
) -> Iterator[tuple[int, Column]]:
    for each in expressions:
        value = each.children[0] if each.kind == "Alias" else each
        yield id_of(each.values), _computed(value, known)


def _computed(value: Node, known: Mapping[int, Column]) -> Column:
    if value.kind == "AttributeReference" and id_of(value.values) in known:
        return known[id_of(value.values)]
    times = [known[each] for each in columns_in(value) if each in known and known[each].is_marked]
    is_window = any(each.kind == _OF_WINDOWS for each in value.within())
    return Column(
        is_marked=is_window and bool(times),
        is_held=is_window and any(each.is_held for each in times),
    )


def columns_in(expression: Node) -> set[int]:
    """Return the ids of the columns that an expression is computed from."""
    within = expression.within()
    return {id_of(each.values) for each in within if each.kind == "AttributeReference"}


def _expanded(node: Node, known: Mapping[int, Column], _: Sequence[Rows]) -> Mapping[int, Column]:
    """Return the columns of rows that are there several times, such as by sliding windows."""
    own = (id_of(tree_of(each).values) for each in node.values["output"])
    columns = (
        [_computed(tree_of(each), known) for each in values]
        for values in zip(*node.values["projections"], strict=True)
    )
    return {number: _any_of(each) for number, each in zip(own, columns, strict=True)}


def _any_of(columns: Sequence[Column]) -> Column:
    return Column(*(any(flags) for flags in zip(*columns, strict=True)))


class Join(NamedTuple):
    """A join: its type, and the comparisons of a column of the left side with one of the right.

    Attributes:
        keys: the pairs that must be equal.
        lower: by side, the pairs whose column of that side must not be below that of the other one.
    """

    how: str
    left: Rows
    right: Rows
    keys: tuple[Pair, ...]
    lower: tuple[tuple[Pair, ...], tuple[Pair, ...]]

    def holds(self, side: int) -> bool:
        """Whether no watermark moves the rows of a side out of the state."""
        if any(is_marked(one, self.left) or is_marked(two, self.right) for one, two in self.keys):
            return False
        others = (self.left, self.right)[1 - side].marked
        return not any(columns_in(pair[1 - side]) & others for pair in self.lower[side])


def join_of(node: Node, left: Rows, right: Rows) -> Join:
    """Return what a join compares."""
    condition = node.values.get("condition")
    keys: list[Pair] = []
    lower: tuple[list[Pair], list[Pair]] = ([], [])
    for part in conjuncts(tree_of(condition)) if condition else ():
        for kind, one, two in _comparisons(part):
            for is_turned, pair in ((False, (one, two)), (True, (two, one))):
                if not _is_across(pair, left, right):
                    continue
                if kind == "EqualTo":
                    keys.append(pair)
                else:
                    lower[kind.startswith("Less") != is_turned].append(pair)
    how = object_name(node.values["joinType"])
    return Join(how, left, right, tuple(keys), (tuple(lower[0]), tuple(lower[1])))


def is_marked(key: Node, rows: Rows) -> bool:
    """Whether a key is an event time with a watermark."""
    return key.kind == "AttributeReference" and id_of(key.values) in rows.marked


def _comparisons(part: Node) -> Iterator[tuple[str, Node, Node]]:
    if part.kind == "EqualTo" or part.kind in _BOUNDS:
        one, two = part.children
        yield part.kind, one, two
    elif part.kind == "Between":  # since Spark 4.1; before, it is two comparisons
        value, low, high = (tree_of(part.values[name]) for name in ("input", "lower", "upper"))
        yield "GreaterThanOrEqual", value, low
        yield "LessThanOrEqual", value, high


def _is_across(pair: Pair, left: Rows, right: Rows) -> bool:
    """Whether the first of a pair is computed from the left side, the second from the right one."""
    one, two = map(columns_in, pair)
    sides = (one, left.columns.keys()), (two, right.columns.keys())
    return all(refers and refers <= columns for refers, columns in sides)


def _joined(node: Node, _: Mapping[int, Column], below: Sequence[Rows]) -> Mapping[int, Column]:
    join = join_of(node, *below)
    are_streams = join.left.is_streaming and join.right.is_streaming
    given = (join.left,) if join.how in _OF_THE_LEFT else (join.left, join.right)
    return {
        number: each._replace(
            is_held=each.is_held or (are_streams and each.is_marked and join.holds(side))
        )
        for side, rows in enumerate(given)
        for number, each in rows.columns.items()
    }


def _united(below: Sequence[Rows]) -> Mapping[int, Column]:
    """Return the columns of a union: they have the ids of the first side's, and its watermark."""
    if len({len(rows.columns) for rows in below}) > 1:  # not all columns are known
        return below[0].columns
    sides = zip(*(rows.columns.values() for rows in below), strict=True)
    return {
        number: _any_of(each)._replace(is_marked=each[0].is_marked)
        for number, each in zip(below[0].columns, sides, strict=True)
    }


_ACTS: Final[Mapping[str, Act]] = {
    "Project": _projected,
    "Aggregate": _projected,
    "Expand": _expanded,
    "EventTimeWatermark": _marked,
    "Join": _joined,
}
"""By kind of a node, what makes its columns of those below; others keep them, or declare theirs."""
