"""Readers of storage for the API: threads of their own, a few for each location, with a time limit.

Airflow's API has forty threads for blocking work, and a bucket that never answers would soon hold
all of them. Here it holds only the threads of its own location.
"""

from __future__ import annotations

import asyncio
import functools
import math
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from airflow_provider.runtime.base.clock import Clock

T = TypeVar("T")
READ_LIMIT_S: Final = 5.0
"""How long a person waits for a view before it says that the storage does not answer."""
THREADS: Final = 8  # for each location: a bucket answers many at a time, and a disk needs no more
# More than an installation has buckets, actions and tabs in them; each costs threads permanently.
_LOCATIONS: Final = 128
_LOCAL_PARTS: Final = 3  # of a path, with the root: a mount is rarely deeper


class StorageSilentError(Exception):
    """A storage has not answered in time.

    Attributes:
        is_busy: whether this read was only queued, or has just begun.
    """

    def __init__(self, location: str, *, is_busy: bool = False) -> None:
        super().__init__(location)
        self.is_busy = is_busy


class Readers:
    """Runs reads on threads of their own."""

    def __init__(self, clock: Clock, *, limit_s: float = READ_LIMIT_S) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()

    async def read(
        self,
        location: str,
        look: Callable[[], T],
        *,
        limit_s: float | None = None,
        key: Hashable = None,
    ) -> T:
        """Return the result of *look*, called on a thread of the location.

        Args:
            location: from :func:`location_of`.
            look: reads.
            limit_s: how long the caller waits; None for the usual time.
            key: identifies the read. Concurrent callers share one read; it continues even if all of
                them stop waiting. None for an unshared read.

        Raises:
            StorageSilentError: it takes too long, or this read or all reads of the location hang.
        """
        limit = self._limit_s if limit_s is None else limit_s
        hung_s = self._limit_s / 2  # what takes longer than a list waits may only be slow
        lane = self._lane(location)
        if lane.is_stuck(max(limit, hung_s)) or lane.hangs(key, hung_s):
            raise StorageSilentError(location)
        future = lane.submit(look, key)
        try:
            found: T = await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), limit)
        except asyncio.TimeoutError as error:
            is_hung = lane.is_stuck(hung_s) or lane.hangs(key, hung_s)
            if key is None:
                future.cancel()
            raise StorageSilentError(location, is_busy=not is_hung) from error
        return found

    def _lane(self, location: str) -> _Lane:
        with self._lock:
            lane = self._lanes.get(location)
            if lane is None:
                if len(self._lanes) >= _LOCATIONS:
                    location = "elsewhere"
                lane = self._lanes.setdefault(location, _Lane(self._clock))
            return lane


class _Lane:
    """The daemon threads of one location: one that hangs does not hold the process's end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: queue.SimpleQueue[_Read] = queue.SimpleQueue()
        self._running: set[_Read] = set()
        self._shared: dict[Hashable, _Read] = {}  # queued, or being read
        self._threads = 0
        self._open = 0  # queued, or being read
        self._lock = threading.Lock()

    def is_stuck(self, for_s: float) -> bool:
        since = self._clock.monotonic() - for_s
        with self._lock:
            return sum(read.running_since < since for read in self._running) >= THREADS

    def hangs(self, key: Hashable, for_s: float) -> bool:
        since = self._clock.monotonic() - for_s
        with self._lock:
            read = self._shared.get(key)
            return read is not None and read.running_since < since

    def submit(self, look: Callable[[], T], key: Hashable) -> Future[T]:
        """Queue a read, or find the one with the same key, and return its future."""
        with self._lock:
            same = self._shared.get(key)
            if same is not None:
                return same.future
            read = _Read(look, key)
            if key is not None:
                self._shared[key] = read
            self._open += 1
            self._work.put(read)
            # Counted from here on: a thread that was just started has not begun its read.
            if self._threads < THREADS and self._open > self._threads:
                self._threads += 1
                name = f"spark-streams-{self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return read.future

    def _serve(self) -> None:
        while True:
            read = self._work.get()
            with self._lock:
                read.running_since = self._clock.monotonic()
                self._running.add(read)
            settle = read.look_once()
            with self._lock:  # before anybody learns of it, who may ask again at once
                self._running.remove(read)
                self._shared.pop(read.key, None)
                self._open -= 1
            settle()


class _Read:
    def __init__(self, look: Callable[[], Any], key: Hashable) -> None:
        self.key = key
        self.future: Future[Any] = Future()
        self.running_since = math.inf
        self._look = look

    def look_once(self) -> Callable[[], None]:
        """Read, unless no caller waits any more; return what notifies the callers."""
        if not self.future.set_running_or_notify_cancel():
            return lambda: None
        try:
            found = self._look()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            return functools.partial(self.future.set_exception, error)
        return functools.partial(self.future.set_result, found)


def location_of(job_dir: str) -> str:
    """Return the bucket, or the first folders of a path: the storage that hangs as a whole."""
    local = local_path_of(job_dir)
    if local is None:
        scheme, _, rest = job_dir.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"
    return "/".join(local.split("/")[:_LOCAL_PARTS])
