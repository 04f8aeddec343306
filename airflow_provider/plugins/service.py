"""Service behind the API: makes each view on a reader's thread, and errors into answers."""

from __future__ import annotations

import asyncio
import collections
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from airflow.configuration import conf
from fastapi import HTTPException, status

from airflow_provider.plugins.actions import Actions, OutdatedViewError
from airflow_provider.plugins.job_heads import SILENT, JobHeads, in_order, unread
from airflow_provider.plugins.observed_jobs import ObservedJobs
from airflow_provider.plugins.overviews import Overviews
from airflow_provider.plugins.readers import Readers, StorageSilentError, place_of
from airflow_provider.plugins.responses import JobList, JobView
from airflow_provider.plugins.run_views import RunViews
from airflow_provider.plugins.savepoint_views import SavepointShelf
from airflow_provider.runtime.clock import to_iso
from airflow_provider.runtime.errors import SparkStreamError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.clock import Clock

T = TypeVar("T")
_LIST_LIMIT_S: Final = 3.0
ACTION_LIMIT_S: Final = 60.0  # copies and checksums of a large state take their time
# So that ten open pages cost as much as one; what has ended rarely begins again.
_FRESH_S: Final = 2.0
_ENDED_FRESH_S: Final = 15.0
_MOST_HEADS: Final = 2000


class StreamService:
    """Makes the views of all jobs.

    Args:
        clock: time.
        limit_s: how long one read of a storage may take; None for the usual time.
    """

    def __init__(self, clock: Clock, *, limit_s: float | None = None) -> None:
        self._clock = clock
        self._readers = Readers(clock) if limit_s is None else Readers(clock, limit_s=limit_s)
        self._list_limit_s = _LIST_LIMIT_S if limit_s is None else limit_s
        self._heads_kept: collections.OrderedDict[str, tuple[float, JobView]] = (
            collections.OrderedDict()
        )
        self._lock = threading.Lock()
        self.jobs = ObservedJobs(clock)
        self.shelf = SavepointShelf(clock)
        self.heads = JobHeads(self.jobs, self.shelf, clock)
        self.overviews = Overviews(self.jobs, self.heads, self.shelf, clock)
        self.runs = RunViews(self.jobs, clock, _log_folder())
        self.actions = Actions(self.jobs, self.shelf, clock)

    async def list_jobs(self, tasks: Sequence[IndexedTask]) -> JobList:
        """Return the heads of these jobs, trouble first; one whose storage hangs says so."""
        jobs = list(await asyncio.gather(*(self._head(task) for task in tasks)))
        counters = collections.Counter(str(job.category) for job in jobs)
        return JobList(now=to_iso(self._clock.now()), counters=dict(counters), jobs=in_order(jobs))

    async def read(self, job_dir: str, look: Callable[[], T]) -> T:
        """Return a view.

        Raises:
            HTTPException: what is asked for is not there, or cannot be read.
        """
        return await self._answer(place_of(job_dir), look, None)

    async def act(self, job_dir: str, act: Callable[[], T]) -> T:
        """Carry out an action, on threads that no view waits for.

        Raises:
            HTTPException: it was refused, or has failed.
        """
        with self._lock:
            self._heads_kept.pop(job_dir, None)
        return await self._answer(f"actions in {place_of(job_dir)}", act, ACTION_LIMIT_S)

    async def _answer(self, place: str, look: Callable[[], T], limit_s: float | None) -> T:
        try:
            return await self._readers.read(place, look, limit_s=limit_s)
        except StorageSilentError as error:
            raise HTTPException(status.HTTP_504_GATEWAY_TIMEOUT, SILENT) from error
        except LookupError as error:
            raise HTTPException(status.HTTP_404_NOT_FOUND, "there is no such thing") from error
        except (OutdatedViewError, SparkStreamError) as error:
            raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error
        except OSError as error:
            reason = f"the storage cannot be read: {error}"
            raise HTTPException(status.HTTP_502_BAD_GATEWAY, reason) from error

    async def _head(self, task: IndexedTask) -> JobView:
        job_dir = str(task.job_dir)
        kept = self._kept(job_dir)
        if kept is not None:
            mine = {
                "task": task.address,
                "task_state": task.state,
                "operator": task.operator,
            }
            return kept.model_copy(update=mine)
        try:
            head = await self._readers.read(
                place_of(job_dir), lambda: self.heads.read(task), limit_s=self._list_limit_s
            )
        except StorageSilentError:
            return unread(task, SILENT)
        with self._lock:
            self._heads_kept[job_dir] = (self._clock.monotonic(), head)
            while len(self._heads_kept) > _MOST_HEADS:
                self._heads_kept.popitem(last=False)
        return head

    def _kept(self, job_dir: str) -> JobView | None:
        with self._lock:
            at, head = self._heads_kept.get(job_dir, (0.0, None))
        if head is None:
            return None
        has_ended = head.category in {"finished", "suspended"}
        fresh_s = _ENDED_FRESH_S if has_ended else _FRESH_S
        return head if self._clock.monotonic() - at < fresh_s else None


def _log_folder() -> Path:
    return Path(conf.get("logging", "base_log_folder"))
