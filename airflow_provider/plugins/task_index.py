"""Index of jobs: which task instances have a job directory, by Airflow's database."""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from typing import TYPE_CHECKING, Any, Final

from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from sqlalchemy import null, select, tuple_

from airflow_provider.hooks.job_memory import STREAM_KEY
from airflow_provider.hooks.task_runs import instance_run_id
from airflow_provider.slices import NoSliceError, RunFacts, Slice, choose_slice

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from sqlalchemy.orm import Session

_MOST_JOBS: Final = 500  # of the newest; a longer list helps no reader
_MOST_ENTRIES: Final = 5000
_SIBLINGS: Final = 20  # of a slice; if all of them share its directory, so do the others
_REPLAY: Final = re.compile(r"\.r\d+$")  # of a run after a clear
_FAILED: Final = ("failed", "upstream_failed")
_JOB: Final = "job"  # the template field of each operator that owns a driver

Series = tuple[str, str, int]
"""DAG, task and map index: what the task instances of one stream, or of its slices, share."""


@dataclasses.dataclass(frozen=True)
class TaskInstanceAddress:
    """The task instance by which a job is addressed."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int


@dataclasses.dataclass(frozen=True)
class RunNames:
    """The ids by which the run of a task instance is found, for :func:`.find_run`."""

    instance: str
    own: str
    shared: str


@dataclasses.dataclass(frozen=True)
class IndexedTask:
    """A task instance and the job directory of its rendered template.

    Attributes:
        job_dir: None for a task that has none, or was not rendered yet.
        is_slice: whether the job directory is for that slice alone.
        has_begun: whether the operator has begun; a slice is listed before that, too.
        run_names: None for a task that owns no driver, such as one that takes a savepoint.
        new_job_dir: the directory of the version that an upgrade's task begins.
        siblings: the task instances of the same stream, by the run that each one owns.
        failed: the failed ones, the newest first.
    """

    address: TaskInstanceAddress
    state: str | None
    job_dir: str | None
    storage_conn_id: str | None = None
    slice: Slice | None = None
    is_slice: bool = False
    has_begun: bool = True
    run_names: RunNames | None = None
    new_job_dir: str | None = None
    siblings: Mapping[str, IndexedTask] = dataclasses.field(default_factory=dict)
    failed: tuple[IndexedTask, ...] = ()

    def of_run(self, run_id: str) -> IndexedTask:
        """Return the task instance of the same stream that owns a run; itself if none does."""
        found = self.siblings.get(_REPLAY.sub("", run_id))
        if found is None or found.address == self.address:
            return self
        return dataclasses.replace(found, job_dir=self.job_dir, is_slice=self.is_slice)

    @property
    def series(self) -> Series:
        return self.address.dag_id, self.address.task_id, self.address.map_index


def find_tasks(session: Session, dag_ids: Collection[str]) -> list[IndexedTask]:
    """Return the newest task instance of each job in these DAGs, newest first.

    Users can edit the XCom, so the path is that of the rendered template.
    """
    if not dag_ids:
        return []
    query = (
        _instances()
        .join(XComModel, _IS_ITS_XCOM)
        .where(XComModel.key == STREAM_KEY, TaskInstance.dag_id.in_(dag_ids))
        .order_by(XComModel.timestamp.desc())
        .limit(_MOST_ENTRIES)
    )
    streams: dict[tuple[Series, str], list[IndexedTask]] = {}
    for row in session.execute(query):
        task = _task(row)
        if task.job_dir is None:
            continue
        location = (task.series, task.job_dir)
        if location in streams or len(streams) < _MOST_JOBS:
            streams.setdefault(location, []).append(task)
    sliced = _sliced(tasks[0] for tasks in streams.values())
    failed = _failed_tasks(session, {series for series, _ in streams} - sliced)
    begun = [
        dataclasses.replace(
            tasks[0],
            is_slice=series in sliced,
            siblings={t.run_names.own: t for t in tasks if t.run_names} if tasks[1:] else {},
            failed=tuple(t for t in failed.get(series, ()) if t.job_dir in {None, job_dir}),
        )
        for (series, job_dir), tasks in streams.items()
    ]
    return [*begun, *_waiting_slices(session, sliced)]


def find_task(session: Session, address: TaskInstanceAddress) -> IndexedTask | None:
    """Return one task instance; None when there is none."""
    row = session.execute(_instances().where(*_is_at(address))).first()
    if row is None:
        return None
    task = _task(row)
    if task.slice is None or task.job_dir is None:
        return task
    others = (
        _instances()
        .join(XComModel, _IS_ITS_XCOM)
        .where(XComModel.key == STREAM_KEY, *_is_of(task.series))
        .order_by(XComModel.timestamp.desc())
        .limit(_SIBLINGS)
    )
    siblings = [_task(row) for row in session.execute(others)]
    return dataclasses.replace(task, is_slice=bool(_sliced([task, *siblings])))


def _sliced(tasks: Iterable[IndexedTask]) -> set[Series]:
    folders: dict[Series, set[str]] = {}
    named: set[Series] = set()
    for task in tasks:
        if task.slice is None or task.job_dir is None:
            continue
        folders.setdefault(task.series, set()).add(task.job_dir)
        if task.slice.name in task.job_dir:
            named.add(task.series)
    return named | {series for series, found in folders.items() if len(found) > 1}


def _failed_tasks(session: Session, series: Collection[Series]) -> dict[Series, list[IndexedTask]]:
    """Return the failed task instances of each series, the newest first."""
    if not series:
        return {}
    of_series = tuple_(TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.map_index)
    query = (
        _instances()
        .where(TaskInstance.state.in_(_FAILED), of_series.in_(sorted(series)))
        .order_by(DagRun.run_after.desc())
        .limit(_MOST_JOBS)
    )
    found: dict[Series, list[IndexedTask]] = {}
    for row in session.execute(query):
        task = _task(row)
        found.setdefault(task.series, []).append(task)
    return found


def _waiting_slices(session: Session, sliced: Collection[Series]) -> list[IndexedTask]:
    if not sliced:
        return []
    of_series = tuple_(TaskInstance.dag_id, TaskInstance.task_id, TaskInstance.map_index)
    query = (
        _instances()
        .outerjoin(XComModel, _IS_ITS_XCOM & (XComModel.key == STREAM_KEY))
        .where(XComModel.key.is_(None), of_series.in_(sorted(sliced)))
        .order_by(DagRun.run_after.desc())
        .limit(_MOST_JOBS)
    )
    found = (_task(row) for row in session.execute(query))
    return [
        dataclasses.replace(task, is_slice=True, has_begun=False)
        for task in found
        if task.slice is not None
    ]


_IS_ITS_XCOM: Final = (
    (XComModel.dag_id == TaskInstance.dag_id)
    & (XComModel.task_id == TaskInstance.task_id)
    & (XComModel.run_id == TaskInstance.run_id)
    & (XComModel.map_index == TaskInstance.map_index)
)


def _is_at(address: TaskInstanceAddress) -> tuple[Any, ...]:
    series = (address.dag_id, address.task_id, address.map_index)
    return *_is_of(series), TaskInstance.run_id == address.run_id


def _is_of(series: Series) -> tuple[Any, ...]:
    dag_id, task_id, map_index = series
    return (
        TaskInstance.dag_id == dag_id,
        TaskInstance.task_id == task_id,
        TaskInstance.map_index == map_index,
    )


def _instances() -> Any:
    fields = RenderedTaskInstanceFields
    return (
        select(
            TaskInstance.dag_id,
            TaskInstance.run_id,
            TaskInstance.task_id,
            TaskInstance.map_index,
            TaskInstance.state,
            fields.rendered_fields,
            DagRun.data_interval_start,
            DagRun.data_interval_end,
            DagRun.conf,
            # A version of Airflow without partitions has no such column.
            getattr(DagRun, "partition_key", null()).label("partition_key"),
        )
        .join(
            DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id)
        )
        .outerjoin(
            fields,
            (fields.dag_id == TaskInstance.dag_id)
            & (fields.task_id == TaskInstance.task_id)
            & (fields.run_id == TaskInstance.run_id)
            & (fields.map_index == TaskInstance.map_index),
        )
    )


def _task(row: Any) -> IndexedTask:
    rendered = row.rendered_fields if isinstance(row.rendered_fields, dict) else {}
    return IndexedTask(
        address=TaskInstanceAddress(row.dag_id, row.run_id, row.task_id, row.map_index),
        state=str(row.state) if row.state is not None else None,
        job_dir=_text(rendered.get("job_dir")),
        storage_conn_id=_text(rendered.get("storage_conn_id")),
        slice=_slice(row),
        run_names=_run_names(row, _text(rendered.get("run_id"))) if _JOB in rendered else None,
        new_job_dir=_text(rendered.get("new_job_dir")),
    )


def _run_names(row: Any, given: str | None) -> RunNames:
    of_task = (row.dag_id, row.task_id, row.map_index)
    instance = instance_run_id(*of_task, row.run_id)
    return RunNames(instance, given or instance, given or instance_run_id(*of_task))


def _slice(row: Any) -> Slice | None:
    """Return the slice of a DAG run; of a partition only the key, whose times the DAG knows."""
    ends = (row.data_interval_start, row.data_interval_end)
    facts = RunFacts(
        run=row.run_id,
        partition_key=row.partition_key,
        data_interval=ends if all(isinstance(end, dt.datetime) for end in ends) else None,
        conf=row.conf if isinstance(row.conf, dict) else {},
    )
    try:
        return choose_slice(facts)
    except NoSliceError:  # the task has failed for it, and says so
        return None


def _text(rendered: Any) -> str | None:
    return rendered if isinstance(rendered, str) and rendered else None
