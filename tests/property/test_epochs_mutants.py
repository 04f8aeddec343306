"""The model notices when a guard is taken out: each history ends well with it, and not without."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from airflow_provider.runtime.errors import CheckpointError, CorruptDocumentError, SinkError
from airflow_provider.runtime.jobdir.lease import Lease
from airflow_provider.runtime.sinks.committer import EpochCommitter
from tests.property.epochs_model import PAUSE, EpochsMachine
from tests.property.test_epochs_machine import SETTINGS

FOUND = (AssertionError, CheckpointError, CorruptDocumentError, SinkError)
STEPS = {
    name: rule.hypothesis_stateful_rule.function
    for name, rule in vars(EpochsMachine).items()
    if hasattr(rule, "hypothesis_stateful_rule")
}


class Choice:
    """Draws what comes first."""

    def draw(self, strategy):
        return strategy.elements[0]


def play(*steps) -> None:
    """Play a history, each step of which is a rule's name and what it is given; and its end."""
    machine = EpochsMachine()
    try:
        for name, values in steps:
            STEPS[name](machine, **values)
            machine.only_committed_rows_are_visible_and_none_twice()
    finally:
        machine.teardown()


# --- the guards, taken out ------------------------------------------------------------------------


def gives_its_open_batch_up(monkeypatch) -> None:
    """As if a query that is started again removed what its driver has staged for the open batch."""
    real = EpochCommitter.begin_again

    def begin_again(committer) -> None:
        real(committer)
        last_commit = committer._logs.position().last_commit
        for epoch in [e for e in committer._waiting if e > last_commit]:
            for record in committer._waiting.pop(epoch).values():
                committer._abort(record)

    monkeypatch.setattr(EpochCommitter, "begin_again", begin_again)


def looks_only_once(monkeypatch) -> None:
    """As if what others have pre-committed since the start were not looked for."""
    real = EpochCommitter._find

    def find(committer, records, epoch) -> bool:
        return not committer._waiting.get(epoch) or real(committer, records, epoch)

    monkeypatch.setattr(EpochCommitter, "_find", find)


def restores_into_the_same_location(monkeypatch) -> None:
    """As if a restored query were given the checkpoint that it has left."""
    monkeypatch.setattr("airflow_provider.runtime.jobdir.layout.locations", lambda storage: {})


def ends_a_run_without_its_lease(monkeypatch) -> None:
    """As if the final checkpoint were put after a look at the lease, and not by it."""
    monkeypatch.setattr(Lease, "seal", lambda lease, final: lease.check())


A_BATCH = ("run_a_batch", {"fails_at": None, "publish": True})
START = ("start", {"fails_at": None})
TAKE_OVER = ("take_over", {"fails_at": None})
GO_ON = ("a_paused_driver_goes_on", {"data": Choice()})
LATE_COMMIT: tuple[str, dict[str, object]] = ("an_overtaken_drivers_spark_wakes_up_and_commits", {})


def paused(what: str, step: str, hit: int = 1):
    return ("a_driver_is_paused", {"where": (what, (f"{PAUSE} {step}", hit))})


HISTORIES = {
    "a commit that was reported as failed takes effect after the restart": (
        gives_its_open_batch_up,
        [
            START,
            A_BATCH,
            ("a_batch_fails_and_the_query_is_started_again", {"at": "spark.committing"}),
            LATE_COMMIT,
            A_BATCH,
        ],
    ),
    "a record is put after the successor has looked, and its batch committed": (
        looks_only_once,
        [START, A_BATCH, paused("batch", "put_if_absent"), START, GO_ON, A_BATCH],
    ),
    "the Spark of an undone run commits": (
        restores_into_the_same_location,
        [
            START,
            A_BATCH,
            paused("batch", "spark.committing"),
            ("take_the_run_back", {"fails_at": None}),
            START,
            A_BATCH,
            GO_ON,
            A_BATCH,
        ],
    ),
    "a driver is paused before it ends its run": (
        ends_a_run_without_its_lease,
        [START, A_BATCH, paused("finish", "put_if_absent"), START, A_BATCH, GO_ON],
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_that_ends_well_only_with_the_guard(name, monkeypatch):
    """
    What the guard is for ends well with it, and the model finds it when the guard is taken out.
    """
    take_out, history = HISTORIES[name]
    play(*history)

    take_out(monkeypatch)
    with pytest.raises(FOUND):
        play(*history)


@pytest.mark.soak
@pytest.mark.parametrize("take_out", [take_out for take_out, _ in HISTORIES.values()])
def test_the_model_finds_a_missing_guard_by_itself(take_out, monkeypatch):
    """Without the guard, histories that nobody has thought of end badly, too."""
    take_out(monkeypatch)

    with pytest.raises(FOUND):
        run_state_machine_as_test(
            EpochsMachine, settings=settings(SETTINGS, max_examples=5_000, stateful_step_count=50)
        )
