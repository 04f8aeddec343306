"""Processes that act in turns: each does one read or write of the storage when its turn comes."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_provider.runtime.storage.local import LocalStorage


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


def step_by_step(patch: pytest.MonkeyPatch, turns: ScriptThread) -> None:
    """Make each read and write of every local storage a step."""

    def taking_a_step(act: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(act)
        def wrapped(*args: Any, **options: Any) -> Any:
            turns.step()
            return act(*args, **options)

        return wrapped

    reads, writes = ("read", "read_small", "exists", "list"), ("put", "put_if_absent")
    for name in (*reads, *writes, "delete", "delete_all"):
        patch.setattr(LocalStorage, name, taking_a_step(getattr(LocalStorage, name)))


class Actor:
    """A process, in a thread that continues only in its turn.

    Attributes:
        error: what it has ended with, if that was no success.
    """

    def __init__(self, turns: ScriptThread, act: Callable[[], object]) -> None:
        self._turns, self._act = turns, act
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
            self._act()
        except BaseException as error:  # for the test to look at
            self.error = error
        self.has_ended = True
        self._paused.release()

    def wait(self) -> None:
        self._paused.release()
        self._go.acquire()
        if self._dies:
            raise Died

    def advance(self, steps: int, *, dies: bool = False) -> int:
        """Let it do so many steps, and then die if that is asked for; return how many it did."""
        done = 0
        while done < steps and not self.has_ended:
            self._one()
            done += 1
        if dies:
            self._dies = True
            while not self.has_ended:  # whatever it would still write
                self._one()
        return done

    def _one(self) -> None:
        self._go.release()
        self._paused.acquire()
