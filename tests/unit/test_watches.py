"""Watchers of a run: no two tries of a task have one generation."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from airflow_provider.runtime.base.names import numbers_in
from airflow_provider.runtime.jobdir.requests import (
    NOBODY,
    claim,
    is_newest,
    is_watching,
    replace_trigger,
)
from airflow_provider.runtime.storage.local import LocalStorage


class Interrupted(LocalStorage):
    """A storage whose user is paused once, before it puts something, while others go on."""

    def __init__(self, root: str, meanwhile) -> None:
        super().__init__(root)
        self._meanwhile = meanwhile

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self._pause()
        return super().put_if_absent(path, data)

    def put(self, path: str, data: bytes) -> None:
        self._pause()
        super().put(path, data)

    def _pause(self) -> None:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()


def test_generations_count_the_tries(storage):
    """
    Each try has the next generation; the last one is the newest, and old ones are removed.
    """
    assert [1, 2, 3] == [claim(storage) for _ in range(3)]
    assert [False, False, True, False] == [is_newest(storage, n) for n in (1, 2, 3, 4)]
    assert [*range(4, 16)] == [claim(storage) for _ in range(12)]
    assert [*range(6, 16)] == numbers_in(storage.list("claims"), ".json")


def test_a_trigger_waits_for_its_own_try(storage):
    """
    Of the triggers of the newest claim the last one watches, and each does when that has ended; a
    trigger of an older claim changes nothing of it.
    """
    old, newest = claim(storage), claim(storage)
    replace_trigger(storage, newest, "t1")
    replace_trigger(storage, newest, "t2")
    replace_trigger(storage, old, "t0")
    taken_over = [is_watching(storage, newest, each) for each in ("t1", "t2", None)]
    replace_trigger(storage, newest, NOBODY, old="t1")
    still = [is_watching(storage, newest, each) for each in ("t1", "t2")]
    replace_trigger(storage, newest, NOBODY, old="t2")

    assert [False, True, True] == taken_over
    assert [False, True] == still
    assert [True, True] == [is_watching(storage, newest, each) for each in ("t1", "t2")]
    assert not is_watching(storage, old, "t0")


def test_a_trigger_that_was_paused_restores_no_claim_that_counts(storage):
    """
    It may write the claim of its try again when later ones have removed it; that one is not the
    newest, and the next claim removes it.
    """
    first = claim(storage)

    def meanwhile() -> None:
        for _ in range(20):
            claim(storage)

    replace_trigger(Interrupted(storage.url, meanwhile), first, "t1")

    assert f"{first}.json" in storage.list("claims")
    assert [21] == [n for n in range(1, 23) if is_newest(storage, n)]
    assert not is_watching(storage, first, "t1")
    assert 22 == claim(storage)
    assert f"{first}.json" not in storage.list("claims")


def test_tries_that_claim_at_once_have_different_generations(storage):
    """
    Of tries that ask at the same moment each has a generation of its own, and one is the newest.
    """
    start = threading.Barrier(6)

    def race(_: int) -> int:
        start.wait()
        return claim(storage)

    with ThreadPoolExecutor(6) as pool:
        claimed = list(pool.map(race, range(6)))

    assert len(set(claimed)) == len(claimed)
    assert [max(claimed)] == [n for n in claimed if is_newest(storage, n)]


def test_a_try_that_was_paused_gets_no_generation_of_before(storage):
    """
    A try that is paused between its look and its claim, while others come and go, does not take a
    number that was used, and is the newest when it goes on.
    """
    others: list[int] = []

    def meanwhile() -> None:
        others.extend(claim(storage) for _ in range(3))

    paused = claim(Interrupted(storage.url, meanwhile))

    assert [1, 2, 3] == others
    assert 4 == paused
    assert [4] == [n for n in (*others, paused) if is_newest(storage, n)]


def test_strange_names_are_no_claims(storage):
    """What no try has put counts for nothing."""
    storage.put("claims/007.json", b"{}")
    storage.put("claims/²", b"{}")

    assert 1 == claim(storage)
