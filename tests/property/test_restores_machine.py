"""The real code beside the reference model of restores: after any history, what the docs promise."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.present import present
from tests.property.restores_walk import search

STEPS = present(settings.default).max_examples * 16


@pytest.mark.long
@pytest.mark.parametrize(
    ("steps", "first"),
    [(STEPS, 0), pytest.param(300_000, 1_000, marks=[pytest.mark.soak, pytest.mark.timeout(0)])],
)
def test_each_command_does_what_the_model_says(steps: int, first: int) -> None:
    """
    Whatever was restored, rewound, begun from a savepoint, started over and removed, and wherever
    that was cut short: what must be done is done, what must be refused is refused for the reason that
    the docs give, and the outputs have the rows of the states.
    """
    done, found = search(steps, first=first)
    assert found is None, f"after {done} steps: {found}"
    assert done >= steps
