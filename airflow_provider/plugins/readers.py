"""Readers of storage for the API: threads of their own, a few for each place, with a time limit.

Airflow's API runs its own blocking work on forty threads. A bucket that never answers would hold
one of them with each look at the page, and soon all. So storage is read on threads that Airflow
does not know, and a place that hangs holds only those that belong to it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.clock import Clock

T = TypeVar("T")
READ_LIMIT_S: Final = 5.0
"""How long a person waits for a view before it says that the storage does not answer."""
THREADS: Final = 8  # for each place: a bucket answers many at a time, and a disk needs no more
_PLACES: Final = 32  # more buckets than an installation has; each costs threads for good
_LOCAL_PARTS: Final = 3  # of a path, with the root: a mount is rarely deeper


class StorageSilentError(Exception):
    """A storage has not answered in time.

    Attributes:
        is_busy: whether it answers others, and this read has only waited for its turn.
    """

    def __init__(self, place: str, *, is_busy: bool = False) -> None:
        super().__init__(place)
        self.is_busy = is_busy


class Readers:
    """Runs reads on threads of their own.

    Args:
        clock: measures how long a read takes.
        limit_s: how long one may take.
    """

    def __init__(self, clock: Clock, *, limit_s: float = READ_LIMIT_S) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._lanes: dict[str, _Lane] = {}
        self._lock = threading.Lock()

    async def read(self, place: str, look: Callable[[], T], *, limit_s: float | None = None) -> T:
        """Return what *look* returns, called on a thread of the place.

        Args:
            place: as :func:`place_of` says.
            look: what reads.
            limit_s: how long it may take; None for the usual time.

        Raises:
            StorageSilentError: it takes too long, or earlier reads of the place hang.
        """
        limit = self._limit_s if limit_s is None else limit_s
        lane = self._lane(place)
        if lane.is_stuck(self._clock.monotonic() - limit):
            raise StorageSilentError(place)
        future = lane.submit(look)
        try:
            found: T = await asyncio.wait_for(asyncio.wrap_future(future), limit)
        except asyncio.TimeoutError as error:
            never_begins = future.cancel()
            is_stuck = lane.is_stuck(self._clock.monotonic() - limit / 2)
            raise StorageSilentError(place, is_busy=never_begins and not is_stuck) from error
        return found

    def _lane(self, place: str) -> _Lane:
        with self._lock:
            lane = self._lanes.get(place)
            if lane is None:
                if len(self._lanes) >= _PLACES:
                    place = "elsewhere"
                lane = self._lanes.setdefault(place, _Lane(self._clock))
            return lane


class _Lane:
    """The threads of one place; daemons, so that one that hangs does not hold the process's end."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._began: dict[int, float] = {}
        self._threads = 0
        self._open = 0  # queued, or being read
        self._lock = threading.Lock()

    def is_stuck(self, since: float) -> bool:
        """Tell whether every thread has been in one read since before that moment."""
        with self._lock:
            hanging = sum(began < since for began in self._began.values())
        return hanging >= THREADS

    def submit(self, look: Callable[[], T]) -> Future[T]:
        """Queue a read, and return its future."""
        future: Future[T] = Future()
        self._work.put((future, look))
        with self._lock:
            self._open += 1
            # Counted from here on: a thread that was just started has not begun its read.
            if self._threads < THREADS and self._open > self._threads:
                self._threads += 1
                name = f"spark-streams-{self._threads}"
                threading.Thread(target=self._serve, name=name, daemon=True).start()
        return future

    def _serve(self) -> None:
        me = threading.get_ident()
        while True:
            future, look = self._work.get()
            with self._lock:
                self._began[me] = self._clock.monotonic()
            if future.set_running_or_notify_cancel():
                _settle(future, look)
            with self._lock:
                del self._began[me]
                self._open -= 1


def _settle(future: Future[T], look: Callable[[], T]) -> None:
    try:
        future.set_result(look())
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        future.set_exception(error)


def place_of(job_dir: str) -> str:
    """Return what a storage's address has in common with others that hang when it hangs.

    The bucket, or the first folders of a path, which are where filesystems are mounted.
    """
    local = local_path_of(job_dir)
    if local is None:
        scheme, _, rest = job_dir.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}"
    return "/".join(local.split("/")[:_LOCAL_PARTS])
