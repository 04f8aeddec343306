"""The run that a task is about: after a clear, for a supervised stream, and in a backfill.

Airflow raises ``max_tries`` only when a task is cleared, so the number is stored before the run's
first driver is submitted. A supervised stream is one run for many DAG runs. The first try of a task
records when its period began and which run it found; later tries and triggerers use that record.

A task continues an open run. After a stop or rewind its run is the next: ``<id>.2``, ``<id>.3`` …;
after a drain the task is done. A backfill is refused a job directory that slices share, since it
could end a live job.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import Clock, SystemClock, from_iso, to_iso
from airflow_provider.runtime.base.names import derive_run_id, numbers_in
from airflow_provider.runtime.base.typed_json import IsoTime, Name
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError, CorruptDocumentError
from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory, directory_at
from airflow_provider.runtime.jobdir.lease import LeaseObserver
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.jobdir.submissions import ReturnRecord, RunOwnerRecord
from airflow_provider.runtime.storage.documents import Contents, Document, Written
from airflow_provider.slices import NoSliceError, find_slice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.jobdir.upgrade_record import UpgradeRecord

BACKFILL: Final = "backfill"
_TO_COME: Final = frozenset({None, "scheduled", "queued"})
"""Airflow's states of a task that was cleared and has not begun since."""
_FIX: Final = (
    "a backfill's slices need job directories of their own, such as "
    "job_dir='…/{{ slice.name }}'; to resume a live job, trigger a run by hand"
)


# --- names ------------------------------------------------------------------------------------


def instance_run_id(
    dag_id: str, task_id: str, map_index: int | None, dag_run_id: str | None = None
) -> str:
    """Return the run id of a task instance, the same for every try; of its task without a DAG run.

    Args:
        dag_id: its DAG.
        task_id: its task.
        map_index: its index; None or negative for a task that is not mapped.
        dag_run_id: its DAG run; None for a run that all DAG runs share.
    """
    index = "" if map_index is None or map_index < 0 else f"-{map_index}"
    which = f"-{dag_run_id}" if dag_run_id is not None else ""
    return derive_run_id(f"{dag_id}-{task_id}{which}{index}")


# --- clears -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RunChoice:
    """The run that a task is about.

    Attributes:
        replays: the run that it replaces; None for the first one.
    """

    run_id: str
    replays: str | None


def current_run(job_dir: str, run_id: str) -> RunChoice:
    """Return the task's current run; nothing is decided or written."""
    directory = directory_at(job_dir)
    replays, seen = None, {run_id}
    while (owner := owner_of(directory.run(run_id))) is not None and owner.next_run_id:
        replays, run_id = run_id, owner.next_run_id
        if run_id in seen:
            raise CorruptDocumentError(
                f"{directory.run(replays).storage.url}/{RunOwnerRecord.NAME}: run {run_id!r} takes "
                "its own place; put back what was there"
            )
        seen.add(run_id)
    return RunChoice(run_id, replays)


def resolve_run(
    job_dir: str,
    run_id: str,
    max_tries: int,
    *,
    has_result: Callable[[str], bool] = lambda _: False,
) -> RunChoice:
    """Return the task's current run; after a clear, a new one.

    Args:
        job_dir: URL of the job directory.
        run_id: the run of the task's first try.
        max_tries: Airflow's number.
        has_result: whether a run has a result that this task would return. A clear asks for it, and
            not for another run, if no try has returned it, such as one whose worker died.

    Crash safety: a clear is recorded before anything follows from it. Idempotent: the next run's
    id follows from the current one's.
    """
    directory = directory_at(job_dir)
    current = current_run(job_dir, run_id)
    run = directory.run(current.run_id)
    owner = owner_of(run)
    if owner is None or max_tries <= owner.max_tries:
        return current
    is_new = run.record() is None  # cleared before it had begun: there is nothing to rewind
    if is_new or (not has_returned(run) and has_result(run.run_id)):
        dataclasses.replace(owner, max_tries=max_tries).put(run.storage, RunOwnerRecord.NAME)
        return current
    number = current.run_id.removeprefix(run_id).removeprefix(".r")
    next_run_id = f"{run_id}.r{int(number or 1) + 1}"
    dataclasses.replace(owner, next_run_id=next_run_id).put(run.storage, RunOwnerRecord.NAME)
    return RunChoice(next_run_id, current.run_id)


def not_cleared(ti: Any, dag_run_ids: Sequence[str]) -> list[str]:
    """Return the DAG runs of which Airflow will not execute this task again by itself."""
    states = ti.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[*dag_run_ids], map_index=ti.map_index
    )
    # One task each; its name may have an index. No state: it was cleared, and was not begun since.
    found = {each: set(states.get(each, {"": "removed"}).values()) for each in dag_run_ids}
    return [each for each, known in found.items() if not known <= _TO_COME]


def has_returned(run: RunDirectory) -> bool:
    """Whether a task has returned the result of a run."""
    return ReturnRecord.read(run.storage, ReturnRecord.NAME) is not None


def put_returned(run: RunDirectory, clock: Clock) -> None:
    """Record that a task is about to return the result of a run. Idempotent.

    Crash safety: a task that dies before Airflow has seen its success replays after a clear.
    """
    record = ReturnRecord(at=to_iso(clock.now()))
    record.put_if_absent(run.storage, ReturnRecord.NAME)


def is_about_old_run(
    old: JobDirectory, upgrade: UpgradeRecord, run_id: str, max_tries: int, *, replays: bool
) -> bool:
    """Whether a task is about its run in a directory that an upgrade has left.

    That run has its result there, and was not stopped for the upgrade; or it *replays* after a
    clear, which is impossible elsewhere.
    """
    run = old.run(current_run(old.url, run_id).run_id)
    owner, final = owner_of(run), run.final()
    if replays and owner is not None and max_tries > owner.max_tries and run.record() is not None:
        return True
    return final is not None and (final.outcome == FINISHED or run.run_id != upgrade.old_run_id)


def owner_of(run: RunDirectory) -> RunOwnerRecord | None:
    """Return the DAG run that began a run; None if a command began it."""
    return RunOwnerRecord.read(run.storage, RunOwnerRecord.NAME)


def find_run(job_dir: str, instance: str, own: str, shared: Iterable[str] = ()) -> str | None:
    """Return the run that a task instance is about, by what its tries have recorded; reads only.

    Args:
        job_dir: URL of the job directory.
        instance: the task instance's id, :func:`instance_run_id`.
        own: the run id of its first try.
        shared: runs of several DAG runs, such as a supervised one, in which it may have a period.

    Returns:
        None if no driver was submitted for it.
    """
    directory = directory_at(job_dir)
    for first in (own, *shared):
        period = _last_period(directory.run(first), instance)
        if period is not None:
            return period.run_id
    choice = current_run(job_dir, own)
    for run_id in (choice.run_id, choice.replays or own):
        run = directory.run(run_id)
        if run.record() is not None or run.submissions():
            return run_id
    return None


def _last_period(run: RunDirectory, instance: str) -> PeriodRecord | None:
    names = (name.removeprefix(f"{instance}.") for name in run.storage.list("periods"))
    tries = numbers_in(names, ".json")
    path = f"periods/{instance}.{max(tries, default=0)}.json"
    return PeriodRecord.read(run.storage, path) if tries else None


# --- supervision ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class PeriodRecord(Document):
    """``runs/<first run id>/periods/<task>.<max tries>.json``: one DAG run's time with the stream.

    A task that supervises begins one, and a task that adopts the run of an upgrade.

    Attributes:
        began: by the clock of the machine that began it.
    """

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/periods/<task>.<max tries>.json",)
    WRITTEN = Written("once", "task, before it waits", "its time has not begun")

    run_id: Name
    began: IsoTime


class Period:
    """The time for which a task supervises a stream."""

    def __init__(
        self, directory: JobDirectory, first_run_id: str, task: str, max_tries: int, clock: Clock
    ) -> None:
        self._directory = directory
        self._first = first_run_id
        self._storage = directory.run(first_run_id).storage
        self._path = f"periods/{task}.{max_tries}.json"
        self._clock = clock

    def has_begun(self) -> bool:
        return PeriodRecord.read(self._storage, self._path) is not None

    def run_id(self) -> str:
        record = PeriodRecord.read(self._storage, self._path)
        return record.run_id if record is not None else self._newest()

    def put(self, run_id: str) -> None:
        """Begin it. Idempotent: the first record stays."""
        record = PeriodRecord(run_id=run_id, began=to_iso(self._clock.now()))
        record.put_if_absent(self._storage, self._path)

    def ends(self, length_s: float) -> dt.datetime:
        record = PeriodRecord.read(self._storage, self._path)
        began = from_iso(record.began) if record is not None else self._clock.now()
        return began + dt.timedelta(seconds=length_s)

    def _newest(self) -> str:
        past = 1
        while self._is_past(past):
            past *= 2
        before = past // 2  # that one has ended, or there is none
        while past - before > 1:
            middle = (before + past) // 2
            before, past = (middle, past) if self._is_past(middle) else (before, middle)
        return self._name(past)

    def _is_past(self, number: int) -> bool:
        run = self._directory.run(self._name(number))
        if run.rewound() is not None:
            return True
        final = run.final()
        return final is not None and final.outcome != FINISHED

    def _name(self, number: int) -> str:
        return self._first if number == 1 else f"{self._first}.{number}"


# --- backfills --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RunOwner:
    """The DAG run that a task belongs to.

    Attributes:
        run_id: the run that is derived from it; None for a task without one.
    """

    record: RunOwnerRecord
    run_id: str | None = None

    @classmethod
    def of(cls, context: Mapping[str, Any], run_id: str | None = None) -> RunOwner:
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
            max_tries=int(ti.max_tries),
        )
        return cls(record, run_id)

    def put(self, run: RunDirectory) -> None:
        self.record.put_if_absent(run.storage, RunOwnerRecord.NAME)

    def owns(self, run_id: str, owner: RunOwnerRecord | None) -> bool:
        """Whether a run is of the same DAG run; without a record, its id decides."""
        if owner is None:
            return self.run_id is not None and run_id == self.run_id
        mine = (self.record.dag_id, self.record.dag_run_id)
        return (owner.dag_id, owner.dag_run_id) == mine


def check_backfill(
    job_dir: str, context: Mapping[str, Any], *, run_id: str | None = None, is_shared: bool
) -> None:
    """Refuse a live job's directory to the task of a backfill; nothing is written.

    Args:
        job_dir: URL of the job directory.
        context: the task's.
        run_id: the run that is derived from the DAG run; None for a task without one.
        is_shared: whether every run of the task uses this directory.
    """
    if _run_type(context) != BACKFILL:
        return
    if is_shared:
        raise ConfigError(
            f"{job_dir}: every run of this task uses this job directory, so a live job may be "
            f"in it, and this run is a backfill: {_FIX}"
        )
    directory = directory_at(job_dir)
    reason = next(_objections(directory, RunOwner.of(context, run_id)), None)
    if reason is not None:
        raise ConfigError(
            f"{directory.url}: this is a live job's directory ({reason}), and this run is a "
            f"backfill: {_FIX}"
        )


def _objections(directory: JobDirectory, current: RunOwner) -> Iterator[str]:
    known = []
    for run_id in directory.storage.list("runs"):
        run = directory.run(run_id)
        if run.record() is None and not run.submissions():
            continue
        known.append(run_id)
        owner = owner_of(run)
        if current.owns(run_id, owner):
            yield from _endless(run, owner)
        else:
            yield from _foreign(run, owner, current)
    lease = LeaseObserver(directory.storage, SystemClock()).current()
    if lease is not None and lease.run_id not in known:
        yield f"{lease.run_id!r} has held its lease"
    if not any(directory.run(run_id).record() is not None for run_id in known):
        for name in directory.query_names():
            if CheckpointLogs(directory.checkpoint(name)).exists():
                yield f"query {name!r} has a checkpoint that no run here has begun"


def _endless(run: RunDirectory, owner: RunOwnerRecord | None) -> Iterator[str]:
    record = run.record()
    is_live = owner is None or owner.run_type != BACKFILL
    if record is not None and record.options.until == "stopped" and is_live:
        yield f"run {run.run_id!r} continues until it is stopped"


def _foreign(run: RunDirectory, owner: RunOwnerRecord | None, current: RunOwner) -> Iterator[str]:
    name = f"run {run.run_id!r}"
    if owner is None:
        yield f"{name} was not begun by a DAG run's slice"
    elif owner.slice is None or owner.slice != current.record.slice:
        yield f"{name} of {owner.dag_id!r} was for {owner.slice or 'no slice'}"
    elif run.final() is None:
        yield f"{name} of {owner.dag_id!r}, run {owner.dag_run_id!r}, has not ended"
    else:
        yield from _endless(run, owner)


def _run_type(context: Mapping[str, Any]) -> str:
    run_type = getattr(context.get("dag_run"), "run_type", "")
    return str(getattr(run_type, "value", run_type))
