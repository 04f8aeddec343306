"""Polls every job that this triggerer waits for, on a shared thread pool.

A triggerer waits for a thousand jobs in one event loop. Jobs that are due are polled together, in
threads of our own, so that slow storage does not block asyncio's few threads, and a coroutine is
woken only when there is news.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import heapq
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.base.clock import Clock


HOLD_S: Final = 10.0
"""A worker's end is noticed about six seconds after its task was deferred; then some to spare."""


async def delay_event(began: float, clock: Clock) -> None:
    """Wait until Airflow has noticed that the worker which deferred the task has ended.

    Airflow fails or retries a task that runs again earlier, as one whose worker was lost.

    Args:
        began: when the trigger began, in the clock's monotonic time.
        clock: measures the time since then.
    """
    left_s = began + HOLD_S - clock.monotonic()
    if left_s > 0:
        await asyncio.sleep(left_s)


T = TypeVar("T")

# Looks at a disk are work for the interpreter, of which one thread can have it at a time: more of
# them would only keep the event loop waiting for its turn.
_NEAR_THREADS: Final = 4
_NEAR_TOGETHER: Final = 50
_FAR_THREADS: Final = 32  # so many answers of a store can be waited for at a time
_EARLY_S: Final = 0.1  # looks come so much too early, at most, to be taken along
_EARLY: Final = 0.1  # ... and by no more than this part of the time between two of them


class _Wait(Generic[T]):
    def __init__(
        self,
        poll: Callable[[], T | None],
        result: asyncio.Future[T],
        *,
        every_s: float,
        is_near: bool,
    ) -> None:
        self.poll = poll
        self.result = result
        self.every_s = every_s
        self.is_near = is_near
        self._context = contextvars.copy_context()  # what is logged goes to the waiter's own log
        self.found: T | None = None
        self.error: BaseException | None = None

    def early_s(self) -> float:
        return min(_EARLY_S, self.every_s * _EARLY)

    def run(self) -> None:
        try:
            self.found = self._context.run(self.poll)
        except Exception as error:  # noqa: BLE001 - who waits decides what it means
            self.error = error

    def tell(self) -> bool:
        """Resolve the future if there is a result; return whether the wait is over."""
        if self.result.done():  # no trigger waits any more
            return True
        if self.error is not None:
            self.result.set_exception(self.error)
        elif self.found is not None:
            self.result.set_result(self.found)
        return self.result.done()


class PollScheduler:
    """The rounds of one event loop: see :func:`poll_until`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._due: list[tuple[float, int, _Wait[Any]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, wait: _Wait[Any], after_s: float) -> None:
        loop = wait.result.get_loop()
        self._put(wait, loop.time() + after_s)
        self._set_timer(loop)

    def _put(self, wait: _Wait[Any], due_s: float) -> None:
        heapq.heappush(self._due, (due_s, next(self._numbers), wait))

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._due or (self._timer is not None and self._timer.when() <= self._due[0][0]):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._due[0][0], self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        due: list[_Wait[Any]] = []
        now = loop.time()
        while self._due and self._due[0][0] - self._due[0][2].early_s() <= now:
            _, _, wait = heapq.heappop(self._due)
            if not wait.result.done():
                due.append(wait)
        near = [wait for wait in due if wait.is_near]
        for start in range(0, len(near), _NEAR_TOGETHER):
            _near().submit(self._poll_each, near[start : start + _NEAR_TOGETHER])
        for wait in due:
            if not wait.is_near:
                _far().submit(self._poll_each, [wait])
        self._set_timer(loop)

    def _poll_each(self, bundle: list[_Wait[Any]]) -> None:
        for wait in bundle:
            wait.run()
        loop = self._loop()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            if loop is not None:
                loop.call_soon_threadsafe(self._end, loop, bundle)

    def _end(self, loop: asyncio.AbstractEventLoop, bundle: list[_Wait[Any]]) -> None:
        for wait in bundle:
            if not wait.tell():
                self._put(wait, loop.time() + wait.every_s)
        self._set_timer(loop)


@functools.cache
def _near() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_NEAR_THREADS, thread_name_prefix="poll")


@functools.cache
def _far() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FAR_THREADS, thread_name_prefix="poll-far")


_rounds: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, PollScheduler] = (
    weakref.WeakKeyDictionary()
)


async def poll_until(
    poll: Callable[[], T | None], *, every_s: float, is_near: bool, after_s: float = 0.0
) -> T:
    """Call *poll* repeatedly in a thread until it returns a result, and return that.

    Args:
        poll: returns None while there is no result; called by one thread at a time.
        every_s: seconds from the end of a poll to the next one; a tenth less, if others are due.
        is_near: whether it reads a disk, and not a store or a service.
        after_s: seconds until the first poll.
    """
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()
    wait = _Wait(poll, result, every_s=every_s, is_near=is_near)
    _rounds.setdefault(loop, PollScheduler(loop)).begin(wait, after_s)
    return await result  # cancelled, it is passed over when its turn comes
