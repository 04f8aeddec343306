"""Index of jobs: which task instances have a job directory, by Airflow's database."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import select

from airflow_provider.hooks.stream_index import STREAM_KEY
from airflow_provider.plugins.responses import TaskInstanceAddress

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy.orm import Session

_MOST_JOBS: Final = 500  # of the newest; a list that nobody can read helps nobody
_MOST_ENTRIES: Final = 5000


@dataclasses.dataclass(frozen=True)
class IndexedTask:
    """A task instance and the job directory of its rendered template.

    Attributes:
        job_dir: None for a task that has none, or was not rendered yet.
        storage_conn_id: the connection that the task opens it with; None for its default.
    """

    address: TaskInstanceAddress
    state: str | None
    operator: str | None
    job_dir: str | None
    storage_conn_id: str | None = None


def find_tasks(session: Session, dag_ids: Collection[str]) -> list[IndexedTask]:
    """Return the newest task instance of each job in these DAGs, newest first.

    The XCom only says where to look: users can edit it. The path is that of the rendered template,
    which only a worker has written.
    """
    if not dag_ids:
        return []
    query = (
        _instances()
        .join(
            XComModel,
            (XComModel.dag_id == TaskInstance.dag_id)
            & (XComModel.task_id == TaskInstance.task_id)
            & (XComModel.run_id == TaskInstance.run_id)
            & (XComModel.map_index == TaskInstance.map_index),
        )
        .where(XComModel.key == STREAM_KEY, TaskInstance.dag_id.in_(dag_ids))
        .order_by(XComModel.timestamp.desc())
        .limit(_MOST_ENTRIES)
    )
    newest: dict[tuple[str, str, int, str], IndexedTask] = {}
    for row in session.execute(query):
        task = _task(row)
        if task.job_dir is not None and len(newest) < _MOST_JOBS:
            where = task.address
            newest.setdefault((where.dag_id, where.task_id, where.map_index, task.job_dir), task)
    return list(newest.values())


def find_task(session: Session, address: TaskInstanceAddress) -> IndexedTask | None:
    """Return one task instance; None when there is none."""
    query = _instances().where(
        TaskInstance.dag_id == address.dag_id,
        TaskInstance.run_id == address.run_id,
        TaskInstance.task_id == address.task_id,
        TaskInstance.map_index == address.map_index,
    )
    row = session.execute(query).first()
    return _task(row) if row is not None else None


def _instances() -> Any:
    fields = RenderedTaskInstanceFields
    return select(
        TaskInstance.dag_id,
        TaskInstance.run_id,
        TaskInstance.task_id,
        TaskInstance.map_index,
        TaskInstance.state,
        TaskInstance.operator,
        fields.rendered_fields,
    ).outerjoin(
        fields,
        (fields.dag_id == TaskInstance.dag_id)
        & (fields.task_id == TaskInstance.task_id)
        & (fields.run_id == TaskInstance.run_id)
        & (fields.map_index == TaskInstance.map_index),
    )


def _task(row: Any) -> IndexedTask:
    rendered = row.rendered_fields if isinstance(row.rendered_fields, dict) else {}
    return IndexedTask(
        address=TaskInstanceAddress(
            dag_id=row.dag_id, run_id=row.run_id, task_id=row.task_id, map_index=row.map_index
        ),
        state=str(row.state) if row.state is not None else None,
        operator=row.operator,
        job_dir=_text(rendered.get("job_dir")),
        storage_conn_id=_text(rendered.get("storage_conn_id")),
    )


def _text(rendered: Any) -> str | None:
    return rendered if isinstance(rendered, str) and rendered else None
