"""Access to the API: which users may call which routes, and from where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_dag,
    requires_access_view,
)
from airflow.models.dag import DagModel
from fastapi import Depends, HTTPException, Request, status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow.api_fastapi.auth.managers.models.base_user import BaseUser

HEADER: Final = "X-Spark-Streaming"
"""A header that no form of another site can send."""


def check_same_site(request: Request) -> None:
    """Refuse requests that another site may have made the browser send.

    The browser sends Airflow's cookie with every request. But another site can send neither JSON
    nor a custom header before the browser has asked this server (CORS).
    """
    is_json = request.headers.get("content-type", "").partition(";")[0] == "application/json"
    site = request.headers.get("sec-fetch-site", "same-origin")
    if not is_json or HEADER not in request.headers or site != "same-origin":
        raise HTTPException(status.HTTP_403_FORBIDDEN, "this call is not from Airflow's own page")


def may_act(dag_id: str, user: GetUserDep) -> bool:
    """Whether the user may act on jobs of a DAG; the page shows no button to others."""
    return get_auth_manager().is_authorized_dag(
        method="PUT",
        access_entity=DagAccessEntity.RUN,
        details=_details(dag_id),
        user=user,
    )


def may_see_log(dag_id: str, user: GetUserDep) -> bool:
    """Whether the user may see the logs of a DAG's tasks, and so the contents of drivers' logs."""
    return get_auth_manager().is_authorized_dag(
        method="GET",
        access_entity=DagAccessEntity.TASK_LOGS,
        details=_details(dag_id),
        user=user,
    )


def visible_dags(dag_ids: Iterable[str], user: BaseUser) -> set[str]:
    """Return the DAGs of which the user may see the task instances."""
    manager = get_auth_manager()
    return {
        dag_id
        for dag_id in dag_ids
        if manager.is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.TASK_INSTANCE,
            details=_details(dag_id),
            user=user,
        )
    }


def _details(dag_id: str) -> DagDetails:
    if not hasattr(DagModel, "get_team_name"):  # a version in which DAGs belong to no team
        return DagDetails(id=dag_id)
    return DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))


MAY_SEE_PLUGINS: Final = Depends(requires_access_view(AccessView.PLUGINS))
MAY_SEE_JOB: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))
MAY_SEE_LOG: Final = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
MAY_ACT: Final = Depends(requires_access_dag("PUT", DagAccessEntity.RUN))
FROM_THIS_SITE: Final = Depends(check_same_site)
