"""Routes that act: for users with the right to change DAG runs, from this site, audited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Depends

from airflow_provider.plugins.access import FROM_THIS_SITE, MAY_ACT
from airflow_provider.plugins.read_routes import JOB, JobTask
from airflow_provider.plugins.responses import (  # noqa: TC001 - FastAPI reads them
    ActionBody,
    ActionView,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.plugins.service import StreamService


def action_routes(service: StreamService) -> APIRouter:
    """Return the routes of the actions on one job."""
    router = APIRouter(prefix=f"{JOB}/actions", tags=["actions"])
    actions = service.actions
    carried_out: dict[str, tuple[str, Callable[[str, ActionBody], ActionView]]] = {
        "stop": ("Ask the driver to end its batch, and then the run.", actions.stop),
        "drain": (
            "Ask the driver to end the job for good; the job's name confirms it.",
            lambda job_dir, body: actions.stop(job_dir, body, drain=True),
        ),
        "cancel": ("Ask the driver to end at once; its run can be resumed.", actions.cancel),
        "take": ("Take a savepoint, without a pause.", actions.take),
        "verify": ("Compare every file of a savepoint with its checksum.", actions.verify),
        "dispose": ("Remove a savepoint; its name confirms it.", actions.dispose),
    }
    for name, (summary, act) in carried_out.items():
        router.add_api_route(
            f"/{name}",
            _endpoint(service, act),
            methods=["POST"],
            name=name,
            description=summary,
            dependencies=[
                FROM_THIS_SITE,
                MAY_ACT,
                Depends(action_logging(event=f"spark_streaming_{name}")),
            ],
        )
    return router


def _endpoint(
    service: StreamService, act: Callable[[str, ActionBody], ActionView]
) -> Callable[..., object]:
    async def carry_out(task: JobTask, body: ActionBody) -> ActionView:
        return await service.act(task, lambda job_dir: act(job_dir, body))

    return carry_out
