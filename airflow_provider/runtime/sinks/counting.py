"""What is counted of a run from epoch to epoch; what is not known once, stays unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping

CountInput = Callable[[], "int | None"]
LateRows = Mapping[str, int]
"""Rows by the id of the stateful operator that has dropped them as late."""
CountLate = Callable[[], "LateRows | None"]


def add_rows(before: int | None, more: int | None) -> int | None:
    """Return how many rows that makes together."""
    return None if before is None or more is None else before + more


def add_late(before: LateRows | None, more: LateRows | None) -> dict[str, int] | None:
    """Return how many rows that makes together, by operator."""
    if before is None or more is None:
        return None
    both = {**before, **more}
    return {operator: before.get(operator, 0) + more.get(operator, 0) for operator in both}
