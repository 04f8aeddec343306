"""Routes that read: the list of jobs, and the views of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep  # noqa: TC002 - FastAPI reads it
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - the same
from fastapi import APIRouter, Depends, HTTPException, Query, status

from airflow_provider.hooks.airflow_settings import refresh_s
from airflow_provider.plugins.access import (
    MAY_SEE_JOB,
    MAY_SEE_LOG,
    may_act,
    may_see_log,
    visible_dags,
)
from airflow_provider.plugins.document_rights import contents_at
from airflow_provider.plugins.document_views import read_document, read_folder
from airflow_provider.plugins.failure_views import read_failures
from airflow_provider.plugins.responses import (
    ActionView,
    BatchesView,
    DocumentView,
    FailuresView,
    FolderView,
    JobList,
    LogView,
    OverviewView,
    RunsView,
    SavepointsView,
    SectionsView,
    SettingsView,
    TabsView,
    TaskInstanceAddress,
)
from airflow_provider.plugins.tabs import read_tab, tabs_of
from airflow_provider.plugins.task_index import IndexedTask, find_task, find_tasks
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.storage.documents import Contents

if TYPE_CHECKING:
    from airflow_provider.plugins.service import StreamService

JOB = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}"
"""How a job is addressed: by a task instance, never by a path."""


def job_task(
    dag_id: str, run_id: str, task_id: str, map_index: int, session: SessionDep
) -> IndexedTask:
    """Return the task instance of an address, with the job directory of its rendered template.

    Raises:
        HTTPException: there is none, or it has no job directory.
    """
    address = TaskInstanceAddress(
        dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=map_index
    )
    task = find_task(session, address)
    if task is None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "there is no such task instance")
    if task.job_dir is None:
        reason = "this task has no job directory, or was not rendered yet"
        raise HTTPException(status.HTTP_404_NOT_FOUND, reason)
    return task


def my_tasks(user: GetUserDep, session: SessionDep) -> list[IndexedTask]:
    """Return the jobs of the DAGs of which the user may see the task instances."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    tasks = find_tasks(session, readable)
    mine = visible_dags({task.address.dag_id for task in tasks}, user)
    return [task for task in tasks if task.address.dag_id in mine]


JobTask = Annotated[IndexedTask, Depends(job_task)]
MyTasks = Annotated[list[IndexedTask], Depends(my_tasks)]


def list_routes(service: StreamService) -> APIRouter:
    """Return the routes of the list, which shows only what the user may see, and of the page."""
    router = APIRouter(tags=["jobs"])

    @router.get("/settings")
    def settings() -> SettingsView:
        """Return what Airflow's configuration says of the page."""
        try:
            return SettingsView(refresh_s=refresh_s())
        except ConfigError as error:
            raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error

    @router.get("/jobs")
    async def jobs(tasks: MyTasks) -> JobList:
        """Return the jobs of all DAGs that the user may see, trouble first."""
        return await service.list_jobs(tasks)

    return router


def job_routes(service: StreamService) -> APIRouter:
    """Return the routes of the views of one job."""
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_JOB])

    @router.get("/overview")
    async def overview(task: JobTask, is_mine: Annotated[bool, Depends(may_act)]) -> OverviewView:
        """Return the state of a job, its queries, and the batches of its newest run."""
        found = await service.read(task, lambda job_dir: service.overviews.read(task, job_dir))
        return found.model_copy(update={"may_act": is_mine})

    @router.get("/runs")
    async def runs(task: JobTask) -> RunsView:
        """Return the newest runs with their attempts."""
        return await service.read(
            task, lambda job_dir: service.runs.read(job_dir, str(task.job_dir))
        )

    @router.get("/failures")
    async def failures(task: JobTask) -> FailuresView:
        """Return the failures of the newest runs, by root cause."""
        return await service.read(task, lambda job_dir: read_failures(job_dir, service.jobs))

    @router.get("/savepoints")
    async def savepoints(task: JobTask) -> SavepointsView:
        """Return the savepoints in the job's own folder."""
        return await service.read(task, lambda job_dir: service.shelf.views(directory_at(job_dir)))

    @router.get("/tabs")
    async def tabs(task: JobTask) -> TabsView:
        """Return the tabs that entry points name and that concern the job."""
        return await tabs_of(service, task)

    @router.get("/tabs/{name}")
    async def tab(task: JobTask, name: str) -> SectionsView:
        """Return the sections of such a tab."""
        return await read_tab(service, task, name)

    @router.get("/batches")
    async def batches(
        task: JobTask, spark_run_id: Annotated[str | None, Query()] = None
    ) -> BatchesView:
        """Return the batches of a run, of the newest one by default, with statistics."""
        return await service.read(
            task, lambda job_dir: service.runs.batches(job_dir, spark_run_id), run_id=spark_run_id
        )

    return router


def document_routes(service: StreamService) -> APIRouter:
    """Return the routes of the documents of a job directory."""
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_JOB])

    @router.get("/folder")
    async def folder(task: JobTask, path: Annotated[str, Query()] = "") -> FolderView:
        """Return the names in a folder of the job directory."""
        return await service.read(task, lambda _: read_folder(str(task.job_dir), path))

    @router.get("/document")
    async def document(
        task: JobTask,
        path: Annotated[str, Query()],
        sees_log: Annotated[bool, Depends(may_see_log)],
    ) -> DocumentView:
        """Return a document of the job directory, as it is stored, if the user may see it."""
        if contents_at(path) is Contents.LOG and not sees_log:
            reason = "this document may have lines of a log: it needs the right to read task logs"
            raise HTTPException(status.HTTP_403_FORBIDDEN, reason)
        return await service.read(task, lambda _: read_document(str(task.job_dir), path))

    @router.get("/requests/{request_id}")
    async def request(task: JobTask, request_id: str) -> ActionView:
        """Return what the driver has answered to a request."""
        return await service.read(task, lambda job_dir: service.actions.answer(job_dir, request_id))

    return router


def log_routes(service: StreamService) -> APIRouter:
    """Return the route of drivers' logs, for users with the right to tasks' logs."""
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_LOG])

    @router.get("/log")
    async def log(
        task: JobTask,
        spark_run_id: Annotated[str, Query()],
        driver_id: Annotated[str, Query()],
    ) -> LogView:
        """Return the end of a driver's log."""
        return await service.read(
            task,
            lambda job_dir: service.runs.log(job_dir, str(task.job_dir), spark_run_id, driver_id),
            run_id=spark_run_id,
        )

    return router
