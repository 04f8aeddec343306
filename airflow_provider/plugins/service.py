"""Service behind the API: makes each view on a reader's thread, and errors into answers."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fastapi import HTTPException, status

from airflow_provider.airflow_versions import conf
from airflow_provider.plugins.actions import Actions, OutdatedViewError
from airflow_provider.plugins.connections import StorageConnections
from airflow_provider.plugins.job_summaries import (
    SILENT,
    JobSummaries,
    in_order,
    no_memory,
    not_begun,
    unread,
)
from airflow_provider.plugins.observed_jobs import ObservedJobs
from airflow_provider.plugins.overviews import Overviews
from airflow_provider.plugins.readers import Readers, StorageSilentError, place_of
from airflow_provider.plugins.responses import JobList, JobView
from airflow_provider.plugins.run_views import RunViews
from airflow_provider.plugins.savepoint_views import SavepointCache
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.errors import ConfigError, SparkStreamError
from airflow_provider.runtime.jobdir.upgrade_record import directory_in_force

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory

T = TypeVar("T")
_LIST_LIMIT_S: Final = 0.7  # a list is on the screen within a second; the rest comes with the next
ACTION_LIMIT_S: Final = 60.0  # copies and checksums of a large state take their time
# So that ten open pages cost as much as one; what has ended rarely begins again.
_FRESH_S: Final = 4.0
_ENDED_FRESH_S: Final = 15.0
_STALE_S: Final = 120.0  # what is shown of a storage that is too slow for all of its jobs at once
NOT_YET: Final = "not read yet: its storage answers slowly"
_MOST_HEADS: Final = 2000


class StreamService:
    """Makes the views of all jobs.

    Args:
        clock: time.
        limit_s: how long one read of a storage may take; None for the usual time.
        lost_job: says that another job directory was at an address.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        limit_s: float | None = None,
        lost_job: Callable[[JobDirectory], str | None] = no_memory,
    ) -> None:
        self._clock = clock
        self._readers = Readers(clock) if limit_s is None else Readers(clock, limit_s=limit_s)
        self._list_limit_s = _LIST_LIMIT_S if limit_s is None else limit_s
        self._heads_kept: collections.OrderedDict[
            tuple[str, str, str | None], tuple[float, JobView]
        ] = collections.OrderedDict()
        self._lock = threading.Lock()
        self._connections = StorageConnections(clock)
        self.jobs = ObservedJobs(clock)
        self.shelf = SavepointCache(clock)
        self.heads = JobSummaries(self.jobs, self.shelf, clock, lost_job)
        self.overviews = Overviews(self.jobs, self.heads, self.shelf, clock)
        self.runs = RunViews(self.jobs, clock, _log_folder())
        self.actions = Actions(self.jobs, self.shelf, clock)

    async def list_jobs(self, tasks: Sequence[IndexedTask]) -> JobList:
        """Return the heads of these jobs, trouble first; one whose storage hangs says so."""
        # Those that were read longest ago come first, so that each is read some time, however many.
        by_age = sorted(range(len(tasks)), key=lambda i: self._kept(tasks[i])[0])
        heads = await asyncio.gather(*(self._head(tasks[i]) for i in by_age))
        jobs = [head for _, head in sorted(zip(by_age, heads, strict=True), key=_first)]
        counters = collections.Counter(str(job.category) for job in jobs)
        return JobList(
            now=to_iso(self._clock.now()),
            counters=dict(counters),
            jobs=in_order(jobs),
            is_complete=all(job.reason != NOT_YET for job in jobs),
        )

    async def read(
        self, task: IndexedTask, look: Callable[[str], T], *, run_id: str | None = None
    ) -> T:
        """Return a view of a task's job.

        Args:
            task: the task.
            look: makes the view of the version in force, given the address of its directory.
            run_id: of a view of one run, whose version may be another one.

        Raises:
            HTTPException: what is asked for is not there, or cannot be read.
        """
        return await self._answer(place_of(str(task.job_dir)), task, look, run_id=run_id)

    async def read_tab(self, task: IndexedTask, name: str, look: Callable[[str], T]) -> T:
        """Return what another package's tab reads, on threads that no view of ours waits for.

        Raises:
            HTTPException: it is not there, or cannot be read.
        """
        place = f"tab {name} in {place_of(str(task.job_dir))}"
        return await self._answer(place, task, look, key=_key(task))

    async def act(self, task: IndexedTask, act: Callable[[str], T]) -> T:
        """Carry out an action on the version in force, on threads that no view waits for.

        Raises:
            HTTPException: it was refused, or has failed.
        """
        job_dir = str(task.job_dir)
        with self._lock:
            for key in [key for key in self._heads_kept if key[0] == job_dir]:
                del self._heads_kept[key]
        place = f"actions in {place_of(job_dir)}"
        return await self._answer(place, task, act, limit_s=ACTION_LIMIT_S)

    async def _answer(
        self,
        place: str,
        task: IndexedTask,
        look: Callable[[str], T],
        *,
        limit_s: float | None = None,
        run_id: str | None = None,
        key: Hashable = None,
    ) -> T:
        def opened() -> T:
            with self._connections.opened(task):
                return look(directory_in_force(str(task.job_dir), run_id=run_id))

        try:
            return await self._readers.read(place, opened, limit_s=limit_s, key=key)
        except StorageSilentError as error:
            reason = f"{SILENT}: {task.job_dir}"
            raise HTTPException(status.HTTP_504_GATEWAY_TIMEOUT, reason) from error
        except LookupError as error:
            raise HTTPException(status.HTTP_404_NOT_FOUND, "there is no such thing") from error
        except (OutdatedViewError, SparkStreamError) as error:
            raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
        except OSError as error:
            reason = f"the storage cannot be read: {error}"
            raise HTTPException(status.HTTP_502_BAD_GATEWAY, reason) from error

    async def _head(self, task: IndexedTask) -> JobView:
        if not task.has_begun:
            return not_begun(task)
        at, kept = self._kept(task)
        now = self._clock.monotonic()
        if kept is not None and now - at < _fresh_s(kept):
            return kept
        try:
            place = place_of(str(task.job_dir))
            return await self._readers.read(
                place,
                lambda: self._read_head(task),
                limit_s=self._list_limit_s,
                key=_key(task),
            )
        except StorageSilentError as error:
            if error.is_busy and kept is not None and now - at < _STALE_S:
                return kept
            return unread(task, NOT_YET if error.is_busy else SILENT)

    def _read_head(self, task: IndexedTask) -> JobView:
        """Read a head and keep it, also if nobody waits for it any more."""
        try:
            with self._connections.opened(task):
                head = self.heads.read(_in_force(task))
        except ConfigError as error:
            head = unread(task, str(error))
        with self._lock:
            self._heads_kept[_key(task)] = (self._clock.monotonic(), head)
            self._heads_kept.move_to_end(_key(task))
            while len(self._heads_kept) > _MOST_HEADS:
                self._heads_kept.popitem(last=False)
        return head

    def _kept(self, task: IndexedTask) -> tuple[float, JobView | None]:
        with self._lock:
            return self._heads_kept.get(_key(task), (-math.inf, None))


def _in_force(task: IndexedTask) -> IndexedTask:
    """Return the task with the directory of the version in force; a read says what is wrong."""
    try:
        return dataclasses.replace(task, job_dir=directory_in_force(str(task.job_dir)))
    except (SparkStreamError, OSError):
        return task


def _first(pair: tuple[int, JobView]) -> int:
    return pair[0]


def _key(task: IndexedTask) -> tuple[str, str, str | None]:
    return str(task.job_dir), task.address.model_dump_json(), task.state


def _fresh_s(head: JobView) -> float:
    return _ENDED_FRESH_S if head.category in {"finished", "suspended"} else _FRESH_S


def _log_folder() -> Path:
    return Path(conf.get("logging", "base_log_folder"))
