"""Parallel work: many pieces at once, until all are done or one has failed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from airflow_provider.runtime.api.storages import GoOn

Item = TypeVar("Item")

_LOOK_S: Final = 0.2


class GivenUpError(Exception):
    """Raised in workers that are cancelled because another one failed."""


def for_each(items: Collection[Item], work: Callable[[Item, GoOn], None], *, at_once: int) -> None:
    """Do the work for each item, each in a thread, and wait for all of it.

    Args:
        items: what is to be worked on.
        work: gets one of them, and what to call between two steps.
        at_once: how many threads there are at most.

    Raises:
        BaseException: whatever failed first, or interrupted the wait (Ctrl-C). What had not begun
            then never begins, and what had begun has ended: nothing goes on behind the caller.
    """
    if not items:
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        if ended.is_set():
            raise GivenUpError

    def attempt(item: Item) -> None:
        try:
            go_on()
            work(item, go_on)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the caller's thread
            failures.append(error)
            ended.set()

    with ThreadPoolExecutor(min(at_once, len(items)), "storage") as pool:
        try:
            open_ = {pool.submit(attempt, item) for item in items}
            while open_:  # an interrupt just before a wait without end would not end it
                open_ = wait(open_, timeout=_LOOK_S).not_done
        finally:
            ended.set()
    if failures:
        raise failures[0]
