"""Several processes at one upgrade, in any order of their single reads and writes."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Sequence
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
from tests.unit.support import NEVER_S, FakeClock

pytestmark = pytest.mark.slow

# Process, how many of its steps, and whether it dies after them.
Turn = tuple[int, int, bool]
TURNS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60), st.booleans()), max_size=12)
GOOD = st.tuples(st.booleans(), st.booleans(), st.booleans())


class Died(BaseException):
    """Stand-in for the end of a process."""


class ScriptThread:
    """Lets one thread at a time do one step: a read or a write of the storage."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def join(self, actor: Actor) -> None:
        self._mine.actor = actor
        self._mine.is_held = False

    def step(self) -> None:
        """Wait for the next turn of the thread that calls; others, which renew leases, never do."""
        actor = getattr(self._mine, "actor", None)
        if actor is not None and not self._mine.is_held:
            actor.wait()

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        self.step()
        self._mine.is_held = True
        try:
            yield
        finally:
            self._mine.is_held = False


class TurnedStorage(LocalStorage):
    """A storage each of whose reads and writes is a step."""

    turns: ScriptThread

    def at(self, path: str) -> TurnedStorage:
        made = TurnedStorage(super().at(path).url)
        made.turns = self.turns
        return made

    def read(self, path: str) -> bytes:
        self.turns.step()
        return super().read(path)

    def list(self, path: str) -> list[str]:
        self.turns.step()
        return super().list(path)

    def put(self, path: str, data: bytes) -> None:
        self.turns.step()
        super().put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.turns.step()
        return super().put_if_absent(path, data)


class Actor:
    """A process at the upgrade, in a thread that goes on only when it is its turn.

    Its clock passes when it waits for a lease, so that it takes whoever is paused for dead.
    """

    def __init__(self, turns: ScriptThread, root: str, *, is_good: bool) -> None:
        storage = TurnedStorage(root)
        storage.turns = turns
        self._turns = turns
        self._upgrade = SmallUpgrade(
            World(storage),
            is_good=is_good,
            clock=FakeClock(),
            heartbeat_s=NEVER_S,
            at_once=turns.at_once,
        )
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self._dies = self.has_ended = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._be, daemon=True)
        self._thread.start()
        self._paused.acquire()

    def _be(self) -> None:
        self._turns.join(self)
        try:
            self.wait()
            self._upgrade.run()
        except BaseException as error:  # for the test to look at
            self.error = error
        self.has_ended = True
        self._paused.release()

    def wait(self) -> None:
        self._paused.release()
        self._go.acquire()
        if self._dies:
            raise Died

    def advance(self, steps: int, *, dies: bool = False) -> None:
        """Let it do so many steps, and then die if that is asked for."""
        for _ in range(steps):
            self._one()
        if dies:
            self._dies = True
            while not self.has_ended:  # whatever it would still write
                self._one()

    def _one(self) -> None:
        if not self.has_ended:
            self._go.release()
            self._paused.acquire()


def play(root: str, good: Sequence[bool], turns: Sequence[Turn]) -> list[Actor]:
    """Let processes act in turns; then each one alone, and in the end a command that stays alive."""
    World(LocalStorage(root)).begin()
    order = ScriptThread()
    actors = [Actor(order, root, is_good=each) for each in good]
    for number, steps, dies in turns:
        actors[number].advance(steps, dies=dies)
    actors.append(Actor(order, root, is_good=True))
    for actor in actors:
        actor.advance(10_000)
        assert actor.has_ended
    # Who was overtaken has ended with an error, so the command is given once more.
    last = Actor(order, root, is_good=True)
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
    of different minds about the new version: the steps follow each other, one version is in force,
    and each row is there once.
    """
    root = str(tmp_path_factory.mktemp("world"))
    check(root, play(root, good, turns))


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
