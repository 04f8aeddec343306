"""Several processes at one upgrade, in any order of their single reads and writes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider.extensions.upgrades import upgrade_steps
from airflow_provider.runtime.errors import SparkStreamError, StopError
from airflow_provider.runtime.jobdir import upgrade_record
from airflow_provider.runtime.jobdir.upgrade_record import UpgradeRecord, UpgradeStep
from airflow_provider.runtime.storage.local import LocalStorage
from tests.crash.small_upgrade import ALL, NEW, SmallUpgrade, World
from tests.present import present
from tests.property.turns import Actor, Died, ScriptThread, TurnedStorage
from tests.unit.support import NEVER_S, FakeClock

pytestmark = pytest.mark.slow

# Process, how many of its steps, and whether it dies after them.
Turn = tuple[int, int, bool]
TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.booleans()), max_size=12)
GOOD = st.tuples(st.booleans(), st.booleans(), st.booleans())


def process(turns: ScriptThread, root: str, *, is_good: bool) -> Actor:
    """Return a process at the upgrade.

    Its clock passes when it waits for a lease, so that it takes whoever is paused for dead.
    """
    storage = TurnedStorage(root)
    storage.turns = turns
    upgrade = SmallUpgrade(
        World(storage),
        is_good=is_good,
        clock=FakeClock(),
        heartbeat_s=NEVER_S,
        at_once=turns.at_once,
    )
    return Actor(turns, upgrade.run)


def play(root: str, good: Sequence[bool], turns: Sequence[Turn]) -> list[Actor]:
    """Let processes act in turns; then each one alone, and in the end a command that stays alive."""
    World(LocalStorage(root)).begin()
    order = ScriptThread()
    actors = [process(order, root, is_good=each) for each in good]
    for number, steps, dies in turns:
        actors[number].advance(steps, dies=dies)
    actors.append(process(order, root, is_good=True))
    for actor in actors:
        actor.advance(10_000)
        assert actor.has_ended
    # Who was overtaken has ended with an error, so the command is given once more.
    last = process(order, root, is_good=True)
    last.advance(10_000)
    assert last.error is None or isinstance(last.error, StopError)
    return actors


def check(root: str, actors: Sequence[Actor]) -> None:
    world = World(LocalStorage(root))
    steps = [UpgradeStep(step) for step in world.steps()]
    once = [step for step, _ in itertools.groupby(steps)]
    follows = upgrade_record._NEXT
    assert UpgradeStep.STOPPING is once[0]
    assert all(after in follows[before] for before, after in itertools.pairwise(once)), steps
    assert set() == follows[once[-1]]
    assert list(range(ALL)) == world.rows()
    is_new = any(name.endswith(NEW) for name in world.out.list(""))
    assert is_new is (once[-1] is UpgradeStep.ACCEPTED)
    for actor in actors:
        expected = actor.error is None or isinstance(actor.error, (SparkStreamError, Died))
        assert expected, repr(actor.error)


@pytest.mark.long
@settings(
    max_examples=present(settings.default).max_examples * 2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(good=GOOD, turns=TURNS)
def test_any_order_of_three_processes_ends_in_one_decision(
    tmp_path_factory: pytest.TempPathFactory, good: tuple[bool, ...], turns: list[Turn]
) -> None:
    """
    Paused for as long as others like, taken for dead, or dead, between any two reads and writes, and
    of different minds about the new version: the steps follow each other, one version is active,
    and each row is there once.
    """
    root = str(tmp_path_factory.mktemp("world"))
    check(root, play(root, good, turns))


@pytest.mark.long
def test_without_the_condition_a_process_that_was_paused_undoes_a_decision(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The condition is needed: a step that is put whatever is there lets a version that was rejected,
    whose rows are gone, be accepted by who has tried it before.
    """

    def put(directory: Any, record: UpgradeRecord) -> UpgradeRecord:
        record.put(directory.storage, f"upgrades/{record.number}.json")
        return record

    def fails(pauses_after: int, folder: str) -> bool:
        root = str(tmp_path / folder / f"{pauses_after}")
        try:
            check(root, play(root, (True, False), [(0, pauses_after, False), (1, 10_000, False)]))
        except AssertionError:
            return True
        return False

    with monkeypatch.context() as patch:
        patch.setattr(upgrade_steps, "put_upgrade", put)
        wrong = next(steps for steps in itertools.count(1) if fails(steps, "unconditional"))
    assert not fails(wrong, "conditional")
