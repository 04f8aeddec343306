"""Watchers of a run: no two tries of a task have one generation."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from airflow_provider.runtime.jobdir.requests import claim, is_newest
from airflow_provider.runtime.storage.local import LocalStorage


class Interrupted(LocalStorage):
    """A storage whose user is paused once, before it puts something, while others go on."""

    def __init__(self, root: str, meanwhile) -> None:
        super().__init__(root)
        self._meanwhile = meanwhile

    def put_if_absent(self, path: str, data: bytes) -> bool:
        meanwhile, self._meanwhile = self._meanwhile, lambda: None
        meanwhile()
        return super().put_if_absent(path, data)


def test_generations_count_the_tries(storage):
    """
    Each try has the next generation; the last one is the newest, and what was before it is removed.
    """
    assert [1, 2, 3] == [claim(storage) for _ in range(3)]
    assert [False, False, True, False] == [is_newest(storage, n) for n in (1, 2, 3, 4)]
    assert ["3.json"] == storage.list("claims")


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
