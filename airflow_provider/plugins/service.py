"""Service behind the API: makes views on reader threads, and maps errors to answers."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import json
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from fastapi import HTTPException, status

from airflow_provider.airflow_versions import conf
from airflow_provider.hooks.api import VIEWS, Section, View
from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.plugins.actions import Actions, OutdatedViewError
from airflow_provider.plugins.job_summaries import (
    SILENT,
    JobSummaries,
    JobSummary,
    in_order,
    no_memory,
    not_begun,
    unread,
    with_failed,
)
from airflow_provider.plugins.readers import Readers, StorageSilentError, location_of
from airflow_provider.plugins.run_history import RunHistories
from airflow_provider.plugins.run_views import RunViews
from airflow_provider.plugins.shared_reads import (
    Cache,
    ObservedJobs,
    SavepointCache,
    SavepointFacts,
)
from airflow_provider.plugins.shown_run import ShownRun, shown_run
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.extensions import load_extension, names_in
from airflow_provider.runtime.errors import ConfigError, SparkStreamError, UnsupportedVersionError
from airflow_provider.runtime.jobdir.upgrade_record import active_directory
from airflow_provider.runtime.observe.state import RunState
from airflow_provider.runtime.storage.open import is_in_s3, using

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from contextlib import AbstractContextManager

    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.storage.open import StoreCredentials

T = TypeVar("T")
_LIST_LIMIT_S: Final = 0.7  # a list is on the screen within a second; the rest comes with the next
ACTION_LIMIT_S: Final = 60.0  # copies and checksums of a large state take their time
# So that ten open pages cost as much as one; what has ended rarely begins again.
_FRESH_S: Final = 4.0
_ENDED_FRESH_S: Final = 15.0
_STALE_S: Final = 120.0  # what is shown of a storage that is too slow for all of its jobs at once
NOT_YET: Final = "not read yet: its storage answers slowly"
_MOST_KEPT: Final = 2000


_CONNECTION_S: Final = 60.0  # a secrets backend is not asked with each look of each page


@dataclasses.dataclass(frozen=True)
class JobList:
    """The jobs that the user may see, trouble first.

    Attributes:
        counters: how many jobs are in each state; ``failed`` counts earlier failed tasks, too.
        is_complete: whether every job has been read.
    """

    now: str
    counters: dict[str, int]
    jobs: list[JobSummary]
    is_complete: bool


@dataclasses.dataclass(frozen=True)
class Savepoints:
    """The savepoints in the job's own folder, the newest first."""

    savepoints: list[SavepointFacts]


@dataclasses.dataclass(frozen=True)
class Tab:
    """A tab that an entry point names."""

    name: str
    title: str


@dataclasses.dataclass(frozen=True)
class Tabs:
    """The tabs that entry points name and that concern a job."""

    tabs: list[Tab]


@dataclasses.dataclass(frozen=True)
class Sections:
    """The content of such a tab."""

    sections: list[Section]


class StorageConnections:
    """Opens the storage of tasks with the connections that their authors have named."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str | None, bool], tuple[float, StoreCredentials | None]] = {}
        self._lock = threading.Lock()

    def opened(self, task: IndexedTask) -> AbstractContextManager[None]:
        """Return a block in which the task's storage is opened as the task does."""
        key = (task.storage_conn_id, is_in_s3(str(task.job_dir)))  # all that it depends on
        now = self._clock.monotonic()
        with self._lock:
            at, credentials = self._kept.get(key, (-math.inf, None))
        if now - at >= _CONNECTION_S:
            credentials = credentials_of(task.storage_conn_id, task.job_dir)
            with self._lock:
                self._kept[key] = (now, credentials)
        return using(credentials)


class StreamService:
    """Makes the views of all jobs."""

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
        self._kept: Cache[tuple[float, JobSummary]] = Cache(_MOST_KEPT)
        self._connections = StorageConnections(clock)
        self.jobs = ObservedJobs(clock)
        self.savepoints = SavepointCache(clock)
        self.summaries = JobSummaries(self.jobs, self.savepoints, clock, lost_job)
        self.histories = RunHistories()
        self.runs = RunViews(self.jobs, Path(conf.get("logging", "base_log_folder")))
        self.actions = Actions(self.jobs, self.savepoints, clock)

    async def list_jobs(self, tasks: Sequence[IndexedTask]) -> JobList:
        # Those that were read longest ago come first, so that each is read some time, however many.
        by_age = sorted(range(len(tasks)), key=lambda i: self._read_before(tasks[i])[0])
        read = await asyncio.gather(*(self._summary(tasks[i]) for i in by_age))
        jobs = [job for _, job in sorted(zip(by_age, read, strict=True), key=lambda pair: pair[0])]
        jobs = [with_failed(job, task.failed) for job, task in zip(jobs, tasks, strict=True)]
        counters = collections.Counter(job.state.value for job in jobs)
        counters[RunState.FAILED.value] += sum(job.failed_count for job in jobs)
        return JobList(
            now=to_iso(self._clock.now()),
            counters={state: number for state, number in counters.items() if number},
            jobs=in_order(jobs),
            is_complete=all(job.reason != NOT_YET for job in jobs),
        )

    async def read(
        self, task: IndexedTask, look: Callable[[str], T], *, run_id: str | None = None
    ) -> T:
        """Return a view of a task's job.

        Args:
            task: the task.
            look: makes the view, given the directory of the active version.
            run_id: the run of the view, which may belong to another version.
        """
        return await self._answer(location_of(str(task.job_dir)), task, look, run_id=run_id)

    async def read_run(
        self, task: IndexedTask, look: Callable[[ShownRun], T], *, run_id: str | None = None
    ) -> T:
        """Return a view of a run, by default of the one that the task instance is about."""

        def look_at(job_dir: str) -> T:
            shown = shown_run(task)
            is_own = run_id is None or run_id == shown.run_id
            return look(shown if is_own else ShownRun(job_dir, job_dir, run_id))

        return await self.read(task, look_at, run_id=run_id)

    async def tabs(self, task: IndexedTask) -> Tabs:
        """Return the tabs of other packages that concern a job, or whose check fails."""
        found = await asyncio.gather(*(self._tab(task, name) for name in names_in(VIEWS)))
        return Tabs([tab for tab in found if tab is not None])

    async def read_tab(self, task: IndexedTask, name: str) -> Sections:
        """Return the content of another package's tab."""
        return await self._of_tab(task, name, functools.partial(tab_sections, name))

    async def _tab(self, task: IndexedTask, name: str) -> Tab | None:
        try:
            return await self._of_tab(task, f"{name}: concerns", functools.partial(_listed, name))
        except HTTPException:  # its storage is silent
            return Tab(name, name)

    async def _of_tab(self, task: IndexedTask, name: str, look: Callable[[str], T]) -> T:
        """Read on threads that no view of ours waits for."""
        location = f"tab {name} in {location_of(str(task.job_dir))}"
        return await self._answer(location, task, look, key=_key(task))

    async def act(self, task: IndexedTask, act: Callable[[str], T]) -> T:
        """Carry out an action on the active version, on threads that no view waits for."""
        job_dir = str(task.job_dir)
        self._kept.forget(lambda key: isinstance(key, tuple) and key[0] == job_dir)
        location = f"actions in {location_of(job_dir)}"
        return await self._answer(location, task, act, limit_s=ACTION_LIMIT_S)

    async def _answer(
        self,
        location: str,
        task: IndexedTask,
        look: Callable[[str], T],
        *,
        limit_s: float | None = None,
        run_id: str | None = None,
        key: Hashable = None,
    ) -> T:
        def opened() -> T:
            with self._connections.opened(task):
                return look(active_directory(str(task.job_dir), run_id=run_id))

        try:
            return await self._readers.read(location, opened, limit_s=limit_s, key=key)
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

    async def _summary(self, task: IndexedTask) -> JobSummary:
        if not task.has_begun:
            return not_begun(task)
        at, kept = self._read_before(task)
        now = self._clock.monotonic()
        if kept is not None and now - at < _fresh_s(kept):
            return kept
        try:
            location = location_of(str(task.job_dir))
            return await self._readers.read(
                location,
                lambda: self._read_summary(task),
                limit_s=self._list_limit_s,
                key=_key(task),
            )
        except StorageSilentError as error:
            if error.is_busy and kept is not None and now - at < _STALE_S:
                return kept
            return unread(task, NOT_YET if error.is_busy else SILENT)

    def _read_summary(self, task: IndexedTask) -> JobSummary:
        """Read a summary and keep it, even if no caller waits for it any more."""
        try:
            with self._connections.opened(task):
                summary = self.summaries.read(_active(task))
        except ConfigError as error:
            summary = unread(task, str(error))
        self._kept.put(_key(task), (self._clock.monotonic(), summary))
        return summary

    def _read_before(self, task: IndexedTask) -> tuple[float, JobSummary | None]:
        return self._kept.get(_key(task)) or (-math.inf, None)


def _active(task: IndexedTask) -> IndexedTask:
    try:
        return dataclasses.replace(task, job_dir=active_directory(str(task.job_dir)))
    except UnsupportedVersionError:
        raise
    except (SparkStreamError, OSError):
        return task


def _key(task: IndexedTask) -> Hashable:
    return str(task.job_dir), task.address, task.state


def _fresh_s(job: JobSummary) -> float:
    return _ENDED_FRESH_S if job.state.is_done else _FRESH_S


def _listed(name: str, job_dir: str) -> Tab | None:
    title = name
    try:
        view: View = load_extension(VIEWS, name)
        title = str(view.title)
        return Tab(name, title) if view.concerns(job_dir) else None
    except Exception:  # noqa: BLE001 - another package's code may raise anything
        return Tab(name, title)


def tab_sections(name: str, job_dir: str) -> Sections:
    """Return what a tab of another package shows of a job; an error of it stays in its tab."""
    if name not in names_in(VIEWS):
        raise LookupError(name)
    try:
        view: View = load_extension(VIEWS, name)
        sections = list(view.read(job_dir))
        # What is no JSON fails here, and not in the answer.
        json.dumps([dataclasses.asdict(section) for section in sections], allow_nan=False)
        return Sections(sections)
    except (OSError, SparkStreamError):
        raise
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        raise ConfigError(
            f"the tab {name!r} of {VIEWS} has failed: {type(error).__name__}: {first}"
        ) from error
