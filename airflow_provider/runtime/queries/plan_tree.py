"""Plans and expressions of Spark as trees, from the JSON that Spark makes of them; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Values = dict[str, Any]


class Node(NamedTuple):
    """A node of a tree of Spark's."""

    kind: str
    values: Values
    children: tuple[Node, ...]

    def within(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            yield from child.within()


def tree_of(flat: Sequence[Values]) -> Node:
    """Return the tree that a list of nodes encodes."""
    rest = iter(flat)

    def take() -> Node:
        values = next(rest)
        kind = str(values["class"]).rpartition(".")[2].rpartition("$")[2]
        return Node(kind, values, tuple(take() for _ in range(values["num-children"])))

    return take()


def id_of(values: Values) -> int:
    """Return the id of a named expression."""
    return int(values["exprId"]["id"])


def object_name(value: Any) -> str:
    """Return the name of a Scala object that a field holds: ``LeftOuter``; empty for none."""
    if isinstance(value, dict):
        value = value.get("object") or value.get("product-class")
    text = str(value or "")
    return text.rstrip("$").rpartition(".")[2].rpartition("$")[2]


def conjuncts(condition: Node) -> Iterator[Node]:
    """Yield the parts of a condition that must all be true."""
    if condition.kind == "And":
        for child in condition.children:
            yield from conjuncts(child)
    else:
        yield condition
