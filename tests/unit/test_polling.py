"""The rounds in which a triggerer has all its jobs looked at, on a real event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

import pytest

from airflow_provider.triggers.polling import poll_until

WAITS = 200
EVERY_S = 0.05


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


class Counted:
    """Awaits a coroutine, and notes each time that it is resumed."""

    def __init__(self, inner, resumed):
        self._inner = inner
        self._resumed = resumed

    def __await__(self):
        inner = self._inner.__await__()
        while True:
            self._resumed.append(1)
            try:
                yield inner.send(None)
            except StopIteration as end:
                return end.value


@pytest.mark.slow
def test_waits_are_looked_at_again_and_again_until_they_have_something_to_say():
    """Each of many waits is told what its own look has found, and none is looked at after that."""
    looks: Counter[Any] = Counter()

    def looker(number):
        def look():
            looks[number] += 1
            return f"found {number}" if looks[number] == 3 else None

        return look

    async def wait_for_all():
        return await asyncio.gather(
            *(poll_until(looker(n), every_s=EVERY_S, is_near=True) for n in range(WAITS))
        )

    assert [f"found {n}" for n in range(WAITS)] == run(wait_for_all())
    assert dict.fromkeys(range(WAITS), 3) == looks


@pytest.mark.slow
def test_looks_that_are_due_share_threads_and_wake_nobody():
    """
    Two hundred waits take few threads, none of them the event loop's, and while there is nothing
    to say their coroutines are not run.
    """
    threads: Counter[int] = Counter()
    resumed: list[Any] = []

    def look():
        threads[threading.get_ident()] += 1

    async def wait(number):
        await Counted(
            poll_until(look, every_s=EVERY_S, is_near=True, after_s=EVERY_S * number / WAITS),
            resumed,
        )

    async def watch():
        waits = [asyncio.create_task(wait(number)) for number in range(WAITS)]
        await until(lambda: threads.total() > 10 * WAITS)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
        return threading.get_ident()

    assert run(watch()) not in threads
    assert len(threads) <= 4
    assert WAITS == len(resumed)


@pytest.mark.slow
@pytest.mark.parametrize("is_near", [True, False])
def test_slow_storage_of_one_job_does_not_hold_up_the_others(is_near):
    """While one look hangs, the event loop runs, and those that are not looked at with it go on."""
    gate = threading.Event()
    looks: Counter[Any] = Counter()

    def hang():
        gate.wait(10)
        return "at last"

    def looker(number):
        def look():
            looks[number] += 1

        return look

    async def watch():
        others = [
            asyncio.create_task(poll_until(looker(n), every_s=EVERY_S, is_near=is_near))
            for n in range(WAITS)
        ]
        slow = asyncio.create_task(poll_until(hang, every_s=EVERY_S, is_near=is_near))
        await until(lambda: len(looks) == WAITS and min(looks.values()) >= 4)
        was_waiting = not slow.done()
        gate.set()
        for each in others:
            each.cancel()
        return was_waiting, await slow

    assert (True, "at last") == run(watch())


@pytest.mark.slow
def test_the_event_loop_is_not_held_up():
    """Looks that wait for a storage's answers leave the event loop to the other triggers."""

    def look():
        time.sleep(0.02)

    async def watch():
        waits = [
            asyncio.create_task(poll_until(look, every_s=EVERY_S, is_near=True))
            for _ in range(WAITS)
        ]
        late = []
        for _ in range(50):
            before = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(time.monotonic() - before - 0.01)
        for each in waits:
            each.cancel()
        return sorted(late)[len(late) // 2]

    assert run(watch()) < 0.05  # in the loop these looks would take four seconds


@pytest.mark.slow
def test_an_error_is_its_own_waiters():
    """What a look raises is raised to who waits for it, and to nobody else."""

    def fail():
        raise PermissionError("not yours")

    async def watch():
        other: asyncio.Task[None] = asyncio.create_task(
            poll_until(lambda: None, every_s=EVERY_S, is_near=True)
        )
        with pytest.raises(PermissionError, match="not yours"):
            await poll_until(fail, every_s=EVERY_S, is_near=True)
        await asyncio.sleep(0)
        is_waiting = not other.done()
        other.cancel()
        return is_waiting

    assert run(watch())


@pytest.mark.slow
def test_a_wait_that_was_cancelled_is_not_looked_at_again():
    """A trigger that is killed leaves nothing behind that goes on looking."""
    looks: Counter[Any] = Counter()

    def looker(name):
        def look():
            looks[name] += 1

        return look

    async def watch():
        killed = asyncio.create_task(poll_until(looker("killed"), every_s=EVERY_S, is_near=True))
        stays = asyncio.create_task(poll_until(looker("stays"), every_s=EVERY_S, is_near=True))
        await until(lambda: looks["killed"] > 1)
        killed.cancel()
        await asyncio.wait([killed])
        before = looks["stays"]
        await until(lambda: looks["stays"] > before + 1)  # what was under way has ended
        at_end, before = looks["killed"], looks["stays"]
        await until(lambda: looks["stays"] > before + 4)
        stays.cancel()
        return at_end

    assert run(watch()) == looks["killed"]


@pytest.mark.slow
def test_the_first_look_may_have_time():
    """Without ``after_s`` the first look is at once, with it not before."""

    async def watch():
        began = time.monotonic()
        await poll_until(lambda: True, every_s=60.0, is_near=True)
        at_once = time.monotonic() - began
        await poll_until(lambda: True, every_s=1.0, is_near=True, after_s=0.3)
        return at_once, time.monotonic() - began - at_once

    at_once, later = run(watch())

    assert at_once < 5.0
    assert later >= 0.19  # a tenth of the time between two looks may be missing
