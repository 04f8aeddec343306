"""The run that a view shows: that of the task instance in its address."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.hooks.task_runs import find_run, owner_of
from airflow_provider.plugins.task_index import TaskInstanceAddress  # noqa: TC001 - FastAPI reads it
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.runs import newest_run
from airflow_provider.runtime.jobdir.upgrade_record import (
    Version,
    active_directory,
    active_version,
    newest_upgrade,
    upgrade_id,
)
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.jobdir.upgrade_record import UpgradeRecord


@dataclasses.dataclass(frozen=True)
class ShownRun:
    """The run of a task instance, and the directory of the version that has it.

    Attributes:
        active: the directory of the active version.
        run_id: None for the newest one: the task has no run of its own, or none has begun.
        is_awaited: whether the task has a run of its own that has not begun.
    """

    job_dir: str
    active: str
    run_id: str | None = None
    is_awaited: bool = False

    @property
    def is_of_active(self) -> bool:
        """Whether it is of the active version, on which actions act."""
        if self.job_dir == self.active:
            return True
        return directory_at(self.job_dir).url == directory_at(self.active).url


@dataclasses.dataclass(frozen=True)
class NewestRun:
    """The newest run of a job, for the page of another run.

    Attributes:
        interval: its own, if it has one.
        task: the task instance that owns it; None if it was begun by a command or another DAG.
        dag_id: the DAG whose run has begun it; None for a command.
        dag_run_id: that run.
    """

    spark_run_id: str
    started: str
    interval: tuple[str, str] | None
    task: TaskInstanceAddress | None
    dag_id: str | None = None
    dag_run_id: str | None = None


def shown_run(task: IndexedTask) -> ShownRun:
    """Return the run that the views of a task instance show."""
    first, names = str(task.job_dir), task.run_names
    active = active_directory(first)
    if names is None:
        return ShownRun(active, active)
    version = active_version(Version(first, "", "")) if active != first else None
    shared = [names.shared, *([version.run_id] if version is not None and version.run_id else [])]
    own, begun = names.own, list[str]()
    if task.new_job_dir is not None:  # an upgrade's task is about the version that it begins
        begun = [open_storage(task.new_job_dir).url]
        own = upgrade_id(begun[0])
    for job_dir in dict.fromkeys((*begun, active, first)):
        run_id = find_run(job_dir, names.instance, own, shared)
        if run_id is not None:
            return ShownRun(job_dir, active, run_id)
    return ShownRun(active, active, is_awaited=True)


def newest_other(address: TaskInstanceAddress, shown: ShownRun) -> NewestRun | None:
    """Return the job's newest run, if the task instance at an address is about another one."""
    if shown.run_id is None and not shown.is_awaited:
        return None
    directory = directory_at(shown.active)
    record = newest_run(directory)
    if record is None or record.run_id == shown.run_id:
        return None
    if _is_stopped_for(shown, record, directory):
        return None
    owner = owner_of(directory.run(record.run_id))
    if owner is None:  # an upgrade's driver is submitted from the directory of the version before
        owner = owner_of(directory_at(shown.job_dir).run(record.run_id))
    newest = NewestRun(record.run_id, record.started, record.interval, None)
    if owner is None:
        return newest
    is_sibling = owner.dag_id == address.dag_id and owner.dag_run_id != address.run_id
    task = dataclasses.replace(address, run_id=owner.dag_run_id) if is_sibling else None
    return dataclasses.replace(newest, task=task, dag_id=owner.dag_id, dag_run_id=owner.dag_run_id)


def upgrade_about(
    shown: ShownRun, directory: JobDirectory
) -> tuple[JobDirectory, UpgradeRecord | None]:
    """Return the newest upgrade from the version of a run, or to it while it is on trial.

    Args:
        shown: the run.
        directory: the one that has it.

    Returns:
        The directory that has the upgrade, and the upgrade; None without one.
    """
    upgrade = newest_upgrade(directory)
    if upgrade is None and not shown.is_of_active:
        old = directory_at(shown.active)
        trial = newest_upgrade(old)
        if trial is not None and trial.is_open:
            return old, trial
    return directory, upgrade


def _is_stopped_for(shown: ShownRun, newest: RunRecord, active: JobDirectory) -> bool:
    """Whether the newest run of the active version was stopped to begin the shown one.

    Not while the shown one is only submitted, from the old version's directory: beside a newer run
    the page offers no actions, and these would act on the version that is stopped.
    """
    if shown.is_of_active:
        return False
    upgrade = newest_upgrade(active)
    stopped = (shown.run_id, newest.run_id)
    return upgrade is not None and (upgrade.id, upgrade.old_run_id) == stopped
