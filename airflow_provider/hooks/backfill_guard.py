"""Guard of live jobs: refuses a job directory to a backfill's task when a live job uses it.

``airflow backfill create`` makes DAG runs for times long past, with the arguments of the DAG as it
is now. If slices shared a job directory, a backfill would continue or end its job out of order.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory, directory_at
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.slices import NoSliceError, find_slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.jobdir.layout import RunDirectory

BACKFILL: Final = "backfill"
_WAY_OUT: Final = (
    "a backfill's slices need job directories of their own, such as "
    "job_dir='…/{{ slice.name }}'; to go on with a live job, trigger a run by hand"
)


@dataclasses.dataclass(frozen=True)
class RunOwner:
    """The DAG run that a task belongs to, from the task's context.

    Args:
        record: what the job directory stores about it.
        run_id: the run that is derived from it; None for a task without one.
    """

    record: RunOwnerRecord
    run_id: str | None = None

    @classmethod
    def of(cls, context: Mapping[str, Any], run_id: str | None = None) -> RunOwner:
        """Return the one of a task's context."""
        ti = context["ti"]
        try:
            found = find_slice(context)
        except NoSliceError:  # raised where a slice is needed; other runs have none
            found = None
        record = RunOwnerRecord(
            dag_id=str(ti.dag_id),
            dag_run_id=str(ti.run_id),
            run_type=_run_type(context),
            slice=found.name if found is not None else None,
        )
        return cls(record, run_id)

    def put(self, run: RunDirectory) -> None:
        """Record that it has begun the run. Idempotent: the first record stays."""
        self.record.put_if_absent(run.storage, RunOwnerRecord.NAME)

    def owns(self, run_id: str, owner: RunOwnerRecord | None) -> bool:
        """Whether a run is of the same DAG run; without a record, its id decides."""
        if owner is None:
            return self.run_id is not None and run_id == self.run_id
        mine = (self.record.dag_id, self.record.dag_run_id)
        return (owner.dag_id, owner.dag_run_id) == mine


def is_backfill(context: Mapping[str, Any]) -> bool:
    """Whether a task belongs to a backfill."""
    return _run_type(context) == BACKFILL


def check_backfill(
    job_dir: str, context: Mapping[str, Any], *, run_id: str | None = None, is_shared: bool
) -> None:
    """Refuse a live job's directory to the task of a backfill; nothing is written.

    Args:
        job_dir: the job directory.
        context: the task's.
        run_id: the run that is derived from the DAG run; None for a task without one.
        is_shared: whether every run of the task uses this directory.

    Raises:
        ConfigError: the job there is not this slice's own.
    """
    if not is_backfill(context):
        return
    if is_shared:
        msg = (
            f"{job_dir}: every run of this task uses this job directory, so a live job may be "
            f"in it, and this run is a backfill: {_WAY_OUT}"
        )
        raise ConfigError(msg)
    directory = directory_at(job_dir)
    reason = next(_objections(directory, RunOwner.of(context, run_id)), None)
    if reason is not None:
        msg = (
            f"{directory.url}: this is a live job's directory ({reason}), and this run is a "
            f"backfill: {_WAY_OUT}"
        )
        raise ConfigError(msg)


def _objections(directory: JobDirectory, current: RunOwner) -> Iterator[str]:
    """Yield the reasons against it, from the runs in the directory."""
    known = []
    for run_id in directory.storage.list("runs"):
        run = directory.run(run_id)
        if run.record() is None and not run.submissions():
            continue
        known.append(run_id)
        owner = RunOwnerRecord.read(run.storage, RunOwnerRecord.NAME)
        if current.owns(run_id, owner):
            yield from _endless(run, owner)
        else:
            yield from _strange(run, owner, current)
    lease = LeaseObserver(directory.storage, SystemClock()).current()
    if lease is not None and lease.run_id not in known:
        yield f"{lease.run_id!r} has held its lease"
    if not any(directory.run(run_id).record() is not None for run_id in known):
        for name in directory.query_names():
            if CheckpointLogs(directory.checkpoint(name)).exists():
                yield f"query {name!r} has a checkpoint that no run here has begun"


def _endless(run: RunDirectory, owner: RunOwnerRecord | None) -> Iterator[str]:
    record = run.record()
    if record is not None and record.options.until == "stopped" and _is_live(owner):
        yield f"run {run.run_id!r} goes on until it is stopped"


def _strange(run: RunDirectory, owner: RunOwnerRecord | None, current: RunOwner) -> Iterator[str]:
    name = f"run {run.run_id!r}"
    if owner is None:
        yield f"{name} was not begun by a DAG run's slice"
    elif owner.slice is None or owner.slice != current.record.slice:
        yield f"{name} of {owner.dag_id!r} was for {owner.slice or 'no slice'}"
    elif run.final() is None:
        yield f"{name} of {owner.dag_id!r}, run {owner.dag_run_id!r}, has not ended"
    else:
        yield from _endless(run, owner)


def _is_live(owner: RunOwnerRecord | None) -> bool:
    return owner is None or owner.run_type != BACKFILL


def _run_type(context: Mapping[str, Any]) -> str:
    run_type = getattr(context.get("dag_run"), "run_type", "")
    return str(getattr(run_type, "value", run_type))
