"""No late write of an earlier driver's Spark loses a row or doubles one."""

from __future__ import annotations

import pytest

from tests.property.late_writes_model import search


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "first"),
    [(2_000, 0), pytest.param(100_000, 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_late_writes_change_no_result(steps, first):
    """Held, repeated and late writes of every file of Spark's, over any takeovers and deaths."""
    found = search(steps, first=first)
    print(found)
    assert [] == found.wrong
    kinds = {"takeovers", "deaths", "late writes", "repeated writes", "writes of the dead"}
    assert kinds == set(found.seen)


def test_without_the_two_measures_rows_are_lost_or_doubled():
    """The model finds what it is for: without places of their own and records of the logs."""
    found = search(1_000, locations=False, logs=False)
    print(found)
    assert found.wrong
