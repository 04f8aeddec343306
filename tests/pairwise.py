"""A choice of the cases of a product in which any two values still meet."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pytest


def choose_pairwise(cases: Sequence[Sequence[Any]]) -> list[int]:
    """Return the locations of a few cases in which all pairs of values are that are in any.

    Greedy: the case with most pairs that are still missing is next, the first one of equals. So the
    choice is the same wherever and whenever it is made, and close to the smallest.

    Args:
        cases: for each case its values, one of each dimension; the product may have gaps.
    """
    pairs = [_pairs_of(case) for case in cases]
    missing = set().union(*pairs)
    chosen = []
    while missing:
        best = max(range(len(cases)), key=lambda location: len(pairs[location] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return sorted(chosen)


def _pairs_of(case: Sequence[Any]) -> set[tuple[tuple[int, Any], ...]]:
    """Return the pairs of values with their dimensions; of one dimension its values."""
    return set(itertools.combinations(enumerate(case), min(2, len(case))))


def mark_whole(
    cases: Sequence[Sequence[Any]], chosen: Collection[int], *, ids: Iterable[str] | None = None
) -> list[Any]:
    """Return all cases as parameters, those at other locations than *chosen* marked ``whole``.

    Args:
        cases: for each case its values.
        chosen: locations, :func:`choose_pairwise`'s or one's own.
        ids: what the cases are called.
    """
    names = [None] * len(cases) if ids is None else list(ids)
    return [
        pytest.param(*case, id=name, marks=[] if position in chosen else [pytest.mark.whole])
        for position, (case, name) in enumerate(zip(cases, names, strict=True))
    ]
