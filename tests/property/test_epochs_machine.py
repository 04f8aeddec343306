"""After any history, what readers see is what Spark has committed, once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.present import present
from tests.property.epochs_model import EpochsMachine

# Without shrinking, which takes minutes here: a failing history is short enough to be read whole.
SETTINGS = settings(
    max_examples=present(settings.default).max_examples * 3 // 5,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


@pytest.mark.slow
def test_what_readers_see_after_any_history():
    """
    Rows that Spark has committed are visible once, and no run has ended without all of its own.
    """
    run_state_machine_as_test(EpochsMachine, settings=SETTINGS)


@pytest.mark.soak
def test_what_readers_see_after_a_million_steps():
    """The same, in histories that are twice as long, as many as make a million steps."""
    many = settings(SETTINGS, max_examples=20_000, stateful_step_count=50)
    run_state_machine_as_test(EpochsMachine, settings=many)
