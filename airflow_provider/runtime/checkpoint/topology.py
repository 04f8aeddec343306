"""Topology of a query: what a checkpoint and the query that resumes from it must have in common.

Spark numbers a query's sources and stateful operators by their places in its plan, and gives each
the positions and the state of that number: when a query has changed, to another one than before.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.checkpoint.operator_kinds import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class OperatorShape(NamedTuple):
    """A stateful operator.

    Attributes:
        id: its number in the query's plan.
        kind: what Spark calls it, such as ``stateStoreSave``.
        sources: the names of the sources whose rows reach it; None when they are not known.
        name: what the job calls it; None when it does not, or that is not known.
        keys: of a join, whose state does not tell, what each column of its key is called in the
            streams; None for all others, and where that is not known.
    """

    id: int
    kind: str
    sources: tuple[str | None, ...] | None = None
    name: str | None = None
    keys: tuple[tuple[str, ...], ...] | None = None

    @classmethod
    def of(cls, raw: Mapping[str, Any], *, kind: str = "kind", name: str = "name") -> OperatorShape:
        """Return it from plain JSON values, in which tuples are lists.

        Args:
            raw: the values; those that older versions of this package did not put are not known.
            kind: where *raw* has the kind.
            name: where it has the name.
        """
        sources, keys = raw.get("sources"), raw.get("keys")
        return cls(
            raw["id"],
            raw[kind],
            None if sources is None else tuple(sources),
            raw.get(name),
            None if keys is None else tuple(tuple(names) for names in keys),
        )


@dataclasses.dataclass(frozen=True)
class Topology:
    """What a query consists of, as far as its checkpoint depends on it.

    Attributes:
        sources: one name for each line in the offset log; None for a name that is not known.
        operators: the stateful ones, by id; None when they are not known.
        provider: the class that keeps their state, as configured; None for Spark's default.
    """

    sources: tuple[str | None, ...]
    operators: tuple[OperatorShape, ...] | None
    provider: str | None = None

    def kind_of(self, number: int, described: str) -> str:
        """Return what Spark calls a stateful operator.

        Args:
            number: the operator's.
            described: what the checkpoint says, which knows it better than the plan if it does.
        """
        planned = {each.id: each.kind for each in self.operators or ()}
        return planned.get(number, described) if described == UNKNOWN else described


def mismatches(expected: Topology, found: Topology) -> list[str]:
    """Compare what a checkpoint was made by with what is to go on from it.

    Args:
        expected: the checkpoint's.
        found: the query's.

    Returns:
        What is not the same, a phrase each that names both sides; empty when the query fits.
    """
    return [
        *_compare_sources(expected.sources, found.sources),
        *_compare_operators(expected.operators, found.operators),
        *_compare_providers(expected, found),
    ]


def _compare_sources(expected: Sequence[str | None], found: Sequence[str | None]) -> Iterable[str]:
    pairs = zip(expected, found, strict=False)
    moved = any(a != b for a, b in pairs if a is not None and b is not None)
    if len(expected) != len(found) or moved:
        yield f"expected {_list_sources(expected)}, found {_list_sources(found)}"


def _list_sources(names: Sequence[str | None]) -> str:
    count = f"{len(names)} source{'' if len(names) == 1 else 's'}"
    known = ", ".join(name for name in names if name is not None)
    return f"{count} ({known})" if known else count


def _compare_operators(
    expected: Sequence[OperatorShape] | None, found: Sequence[OperatorShape] | None
) -> Iterable[str]:
    if expected is None or found is None:
        return
    if _kinds(expected) != _kinds(found):
        yield f"expected {_list_operators(expected)}, found {_list_operators(found)}"
        return
    now = {operator.id: operator for operator in found}
    for operator in sorted(expected, key=_number):
        before, after = operator.sources, now[operator.id].sources
        if _are_known(before) and _are_known(after) and set(before or ()) != set(after or ()):
            yield (
                f"expected the stateful operator {operator.id} {operator.kind} to have rows of "
                f"{_list_names(before)}, found that it has those of {_list_names(after)}"
            )


def _number(operator: OperatorShape) -> int:
    return operator.id


def _kinds(operators: Sequence[OperatorShape]) -> dict[int, str]:
    return {operator.id: operator.kind for operator in operators}


def _are_known(names: Sequence[str | None] | None) -> bool:
    return names is not None and None not in names


def _list_names(names: Sequence[str | None] | None) -> str:
    return ", ".join(sorted(name for name in names or () if name is not None)) or "no source"


def _list_operators(operators: Sequence[OperatorShape]) -> str:
    if not operators:
        return "no stateful operator"
    listed = (f"{each.id} {each.kind}" for each in sorted(operators, key=_number))
    return "the stateful operators " + ", ".join(listed)


def _compare_providers(expected: Topology, found: Topology) -> Iterable[str]:
    asked, kept = found.provider, expected.provider
    if expected.operators and kept is not None and asked is not None and asked != kept:
        yield f"expected state in {kept}, found that {asked} is configured"
