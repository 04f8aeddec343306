"""Views of the page "Streams", called as its routes call them, without an API server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from airflow_provider.plugins.actions import Actions
from airflow_provider.plugins.app import AsciiResponse
from airflow_provider.plugins.documents import contents_at, read_document, read_folder
from airflow_provider.plugins.job_summaries import JobSummaries
from airflow_provider.plugins.run_views import RunViews
from airflow_provider.plugins.service import Savepoints, tab_sections
from airflow_provider.plugins.shared_reads import ObservedJobs, SavepointCache
from airflow_provider.plugins.shown_run import ShownRun
from airflow_provider.plugins.task_index import IndexedTask, TaskInstanceAddress
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.support import FakeClock

_MOST_DOCUMENTS: Final = 300
_STATES: Final = ("running", "failed", "success", None)


class PageViews:
    """The views of one job, which no earlier call has made fresh."""

    def __init__(self, root: Path) -> None:
        clock = FakeClock()
        self._job_dir = f"{root}/job"
        self._jobs = ObservedJobs(clock)
        self._savepoints = SavepointCache(clock)
        self._summaries = JobSummaries(self._jobs, self._savepoints, clock)
        self._runs = RunViews(self._jobs, root / "logs")
        self._actions = Actions(self._jobs, self._savepoints, clock)

    def head(self) -> None:
        for state in _STATES:
            _sent(self._summaries.read(self._task(state)))

    def overview(self) -> None:
        _sent(self._summaries.overview(self._task("running"), self._shown(None)))

    def runs(self) -> None:
        _sent(self._runs.read(self._shown(None), self._job_dir))

    def batches(self) -> None:
        for run_id in (None, "r1", "r3"):
            _if_there(self._runs.batches, self._shown(run_id))

    def log(self) -> None:
        for number in ("1", "2", "3"):
            _if_there(
                self._runs.log, self._job_dir, self._job_dir, f"r{number}", f"driver-r{number}"
            )

    def failures(self) -> None:
        _sent(self._runs.failures(self._shown(None)))

    def _shown(self, run_id: str | None) -> ShownRun:
        return ShownRun(self._job_dir, self._job_dir, run_id)

    def savepoints(self) -> None:
        _sent(Savepoints(self._savepoints.all(JobDirectory(LocalStorage(self._job_dir)))))

    def state(self) -> None:
        _sent(tab_sections("state", self._job_dir))

    def request(self) -> None:
        for run_id in ("r1", "r3"):
            _if_there(self._actions.answer, self._job_dir, f"ask-{run_id}")

    def documents(self) -> None:
        """Walk through all folders that the page lists, and read what it lists there."""
        pending, read = [""], 0
        while pending:
            folder = pending.pop()
            view = _if_there(read_folder, self._job_dir, folder)
            for name in view.folders if view is not None else ():
                pending.append(f"{folder}/{name}".lstrip("/"))
            for name in view.documents if view is not None else ():
                path = f"{folder}/{name}".lstrip("/")
                contents_at(path)
                read += 1
                if read <= _MOST_DOCUMENTS:
                    _if_there(read_document, self._job_dir, path)

    def _task(self, state: str | None) -> IndexedTask:
        address = TaskInstanceAddress(dag_id="d", run_id="x", task_id="t", map_index=-1)
        return IndexedTask(address, state, self._job_dir)


VIEWS: Final = tuple(name for name in vars(PageViews) if not name.startswith("_"))


def _if_there(look: Callable[..., Any], *args: Any) -> Any:
    """Return what a view shows; None where its route would answer that it is not there."""
    try:
        view = look(*args)
    except LookupError:
        return None
    _sent(view)
    return view


def _sent(view: Any) -> None:
    """Write a view as the API does."""
    AsciiResponse(TypeAdapter(type(view)).dump_python(view, mode="json"))
