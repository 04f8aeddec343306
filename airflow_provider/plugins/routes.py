"""Routes of the API: the list of jobs, the views of one job, and the actions on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.common.db.common import SessionDep  # noqa: TC002 - FastAPI reads it
from airflow.api_fastapi.core_api.security import GetUserDep  # noqa: TC002 - the same
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends, HTTPException, Query, status

from airflow_provider.hooks.airflow_settings import refresh_s
from airflow_provider.plugins.access import (
    FROM_THIS_SITE,
    MAY_ACT,
    MAY_SEE_JOB,
    MAY_SEE_LOG,
    may_act,
    may_see_log,
    visible_dags,
)
from airflow_provider.plugins.actions import ActionAnswer, ActionBody
from airflow_provider.plugins.documents import (
    Folder,
    StoredDocument,
    contents_at,
    read_document,
    read_folder,
)
from airflow_provider.plugins.job_summaries import Overview  # noqa: TC001 - FastAPI reads it
from airflow_provider.plugins.run_history import RunHistory  # noqa: TC001 - FastAPI reads it
from airflow_provider.plugins.run_views import Batches, Failures, LogTail, Runs  # noqa: TC001 - FastAPI reads it
from airflow_provider.plugins.service import JobList, Savepoints, Sections, Tabs
from airflow_provider.plugins.task_index import (
    IndexedTask,
    TaskInstanceAddress,
    find_task,
    find_tasks,
)
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.storage.documents import Contents

if TYPE_CHECKING:
    from airflow_provider.plugins.service import StreamService

JOB = "/dags/{dag_id}/runs/{run_id}/tasks/{task_id}/{map_index}"
"""How a job is addressed: by a task instance, never by a path."""
Act = Callable[[str, ActionBody], ActionAnswer]


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the page in Airflow's configuration."""

    refresh_s: float


def job_task(
    dag_id: str, run_id: str, task_id: str, map_index: int, session: SessionDep
) -> IndexedTask:
    """Return the task instance of an address, with the job directory of its rendered template."""
    task = find_task(session, TaskInstanceAddress(dag_id, run_id, task_id, map_index))
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


def routers(service: StreamService) -> list[APIRouter]:
    """Return the routes, each with the permission that it needs."""
    of_jobs = [_list(service), _job(service), _runs(service)]
    return [*of_jobs, _documents(service), _log(service), _actions(service)]


def _list(service: StreamService) -> APIRouter:
    router = APIRouter(tags=["jobs"])

    @router.get("/settings")
    def settings() -> Settings:
        """Return the settings of the page in Airflow's configuration."""
        try:
            return Settings(refresh_s())
        except ConfigError as error:
            raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from error

    @router.get("/jobs")
    async def jobs(tasks: MyTasks) -> JobList:
        """Return the jobs of all DAGs that the user may see, trouble first."""
        return await service.list_jobs(tasks)

    return router


def _job(service: StreamService) -> APIRouter:
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_JOB])

    @router.get("/overview")
    async def overview(task: JobTask, is_mine: Annotated[bool, Depends(may_act)]) -> Overview:
        """Return the state of the task's run, its queries and batches."""
        found = await service.read_run(task, lambda run: service.summaries.overview(task, run))
        return dataclasses.replace(found, may_act=found.may_act and is_mine)

    @router.get("/savepoints")
    async def savepoints(task: JobTask) -> Savepoints:
        """Return the savepoints in the job's own folder."""
        found = await service.read(task, lambda at: service.savepoints.all(directory_at(at)))
        return Savepoints(found)

    @router.get("/tabs")
    async def tabs(task: JobTask) -> Tabs:
        """Return the tabs that entry points name and that concern the job."""
        return await service.tabs(task)

    @router.get("/tabs/{name}")
    async def tab(task: JobTask, name: str) -> Sections:
        """Return the sections of such a tab."""
        return await service.read_tab(task, name)

    return router


def _runs(service: StreamService) -> APIRouter:
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_JOB])

    @router.get("/runs")
    async def runs(task: JobTask) -> Runs:
        """Return the task's run and the newest ones with their attempts."""
        first = str(task.job_dir)
        return await service.read_run(task, lambda run: service.runs.read(run, first))

    @router.get("/history")
    async def history(task: JobTask) -> RunHistory:
        """Return what each of the newest runs has read, written, dropped and quarantined."""
        return await service.read_run(task, lambda run: service.histories.read(task.address, run))

    @router.get("/failures")
    async def failures(task: JobTask) -> Failures:
        """Return the failures of the task's run and of the newest ones, by root cause."""
        return await service.read_run(task, service.runs.failures)

    @router.get("/batches")
    async def batches(
        task: JobTask, spark_run_id: Annotated[str | None, Query()] = None
    ) -> Batches:
        """Return the batches of a run, of the task's own by default."""
        return await service.read_run(task, service.runs.batches, run_id=spark_run_id)

    return router


def _documents(service: StreamService) -> APIRouter:
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_JOB])

    @router.get("/folder")
    async def folder(task: JobTask, path: Annotated[str, Query()] = "") -> Folder:
        """Return the names in a folder of the job directory."""
        return await service.read(task, lambda _: read_folder(str(task.job_dir), path))

    @router.get("/document")
    async def document(
        task: JobTask,
        path: Annotated[str, Query()],
        sees_log: Annotated[bool, Depends(may_see_log)],
    ) -> StoredDocument:
        """Return a document of the job directory, as it is stored, if the user may see it."""
        if contents_at(path) is Contents.LOG and not sees_log:
            reason = (
                "this document may have lines of a log: it needs the permission to read task logs"
            )
            raise HTTPException(status.HTTP_403_FORBIDDEN, reason)
        return await service.read(task, lambda _: read_document(str(task.job_dir), path))

    @router.get("/requests/{request_id}")
    async def request(task: JobTask, request_id: str) -> ActionAnswer:
        """Return the driver's answer to a request."""
        return await service.read(task, lambda at: service.actions.answer(at, request_id))

    return router


def _log(service: StreamService) -> APIRouter:
    router = APIRouter(prefix=JOB, tags=["one job"], dependencies=[MAY_SEE_LOG])

    @router.get("/log")
    async def log(
        task: JobTask,
        spark_run_id: Annotated[str, Query()],
        driver_id: Annotated[str, Query()],
    ) -> LogTail:
        """Return the end of a driver's log."""
        first = str(task.job_dir)
        return await service.read(
            task,
            lambda at: service.runs.log(at, first, spark_run_id, driver_id),
            run_id=spark_run_id,
        )

    return router


def _actions(service: StreamService) -> APIRouter:
    """Return the routes that act: permitted to change DAG runs, from this site, audited."""
    router = APIRouter(prefix=f"{JOB}/actions", tags=["actions"])
    actions = service.actions
    described: dict[str, tuple[str, Act]] = {
        "stop": ("Ask the driver to end its batch, and then the run.", actions.stop),
        "drain": (
            "Ask the driver to end the job permanently; the job's name confirms it.",
            lambda job_dir, body: actions.stop(job_dir, body, drain=True),
        ),
        "cancel": ("Ask the driver to end immediately; its run can be resumed.", actions.cancel),
        "take": ("Take a savepoint, without a pause.", actions.take),
        "verify": ("Compare every file of a savepoint with its checksum.", actions.verify),
        "dispose": ("Remove a savepoint; its name confirms it.", actions.dispose),
    }
    for name, (summary, act) in described.items():
        audit = Depends(action_logging(event=f"spark_stream_{name}"))
        router.add_api_route(
            f"/{name}",
            _endpoint(service, act),
            methods=["POST"],
            name=name,
            description=summary,
            dependencies=[FROM_THIS_SITE, MAY_ACT, audit],
        )
    return router


def _endpoint(service: StreamService, act: Act) -> Callable[..., object]:
    async def carry_out(task: JobTask, body: ActionBody) -> ActionAnswer:
        return await service.act(task, lambda job_dir: act(job_dir, body))

    return carry_out
