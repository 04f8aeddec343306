"""Restores in the journal of a job directory: which of them count, and which is open."""

from __future__ import annotations

import dataclasses
import logging
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import CheckpointError, LeaseLostError
from airflow_provider.runtime.errors.fixes import restore_command, rewind_command, set_option
from airflow_provider.runtime.jobdir.checkpoint_locations import left_locations, next_number
from airflow_provider.runtime.jobdir.journal import (
    Journal,
    OperationRecord,
    RestorePlan,
    draft,
    path_of,
    put_operation,
)
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_records import RewoundRecord
from airflow_provider.runtime.savepoints.record import REWIND_PREFIX
from airflow_provider.runtime.storage.file_tree import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.revised_runs import RevisedRun
    from airflow_provider.runtime.savepoints.catalog import Savepoint


log = logging.getLogger(__name__)

_REPLAYED: Final = re.compile(r"run (?P<run_id>\S+), which replays \S+")


def replayed_by(run_id: str, replays: str) -> str:
    """Return what the records of the runs say that a replay has rewound."""
    return f"run {run_id}, which replays {replays}"


def replay_in(by: str) -> str | None:
    """Return the run that replays what was rewound *by* it; None if no replay has rewound it."""
    found = _REPLAYED.fullmatch(by)
    return found["run_id"] if found is not None else None


class Restores:
    """The restores of one job directory."""

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._storage = directory.storage
        self._rewinds = f"{directory.url}/savepoints/{REWIND_PREFIX}"

    def last(self) -> OperationRecord | None:
        return Journal(self._storage).last_restore()

    def start(self) -> OperationRecord | None:
        """Return the newest of :meth:`starts`: where the job begins."""
        return next(self.starts(), None)

    def starts(self, journal: Journal | None = None) -> Iterator[OperationRecord]:
        """Yield the restores that are not rewinds of a run, the newest first.

        Of folded ones, only the newest of each savepoint. *journal* is the job's, if it was read.
        """
        journal = journal or Journal(self._storage)
        yield from filter(self.is_start, journal.restores())
        yield from journal.folded.starts

    def is_start(self, operation: OperationRecord) -> bool:
        """Whether a restore is not the rewind of a run."""
        return not (operation.plan.savepoint or self._rewinds).startswith(self._rewinds)

    def begin(
        self,
        fence: Fence,
        at: str,
        plan: RestorePlan | None = None,
        *,
        kept: Mapping[str, int] | None = None,
        rewinds: Sequence[str] = (),
        by: str = "",
        revises: Sequence[RevisedRun] = (),
        corrects: int = 0,
    ) -> OperationRecord:
        """Begin an operation that sets queries to *plan*, in new locations but for those *kept*.

        The runs *rewinds* no longer count; *by* says what rewinds them. *revises* is the published
        output that it removes; *corrects* the correction that it continues, 0 for none.

        Raises:
            LeaseLostError: another driver has taken over.
        """
        number = next_number(self._storage)
        made = dict.fromkeys(plan.queries if plan is not None else (), number)
        record = draft(self._storage, number, fence.token, at)
        record = dataclasses.replace(
            record,
            restore=plan,
            locations={**record.locations, **made, **(kept or {})},
            rewinds=[*rewinds],
            by=by,
            revises=[*revises] or None,
            corrects=corrects,
        )
        # In this order: a process that takes over after this read puts a guard under the number
        # chosen above.
        fence.check()
        if not put_operation(self._storage, record):
            raise overtaken(self._storage, record)
        mark_rewound(self._directory, record)
        return record

    def end(self, record: OperationRecord, **changes: Any) -> OperationRecord:
        """Record that an operation is done; *changes* are its fields then."""
        done = dataclasses.replace(record, step=record.step + 1, **changes)
        if not put_operation(self._storage, done):
            raise overtaken(self._storage, done)
        return done

    def remove_left(self) -> None:
        """Remove checkpoints that the queries no longer use. Idempotent."""
        journal = Journal(self._storage)
        last, newest = journal.last_restore(), journal.newest()
        if newest is None or (last is not None and last.is_open):
            return
        for path in left_locations(self._storage, newest):
            log.info("%s/%s: removed, the query has left it", self._storage.url, path)
            remove_tree(self._storage.at(path))


def savepoint_key(savepoint: Savepoint | None) -> tuple[str | None, str | None]:
    """Return what tells a plan's savepoint from another one at the same address."""
    return (None, None) if savepoint is None else (savepoint.url, savepoint.record.taken)


def is_of(operation: OperationRecord, savepoint: Savepoint | None) -> bool:
    """Whether a restore sets queries to this savepoint; None for the job's very beginning."""
    return (operation.plan.savepoint, operation.plan.taken) == savepoint_key(savepoint)


def why_awaited(job_dir: str, savepoint: Savepoint) -> str:
    """Return why a job can go on from this savepoint only: its restore is open; empty if not."""
    directory = directory_at(job_dir)
    last = Restores(directory).last()
    is_open = last is not None and last.is_open and is_of(last, savepoint)
    return str(open_restore(directory.url, last)) if last is not None and is_open else ""


def is_begun_from_savepoint(directory: JobDirectory) -> bool:
    """Whether the job was set to a savepoint, and so no longer needs the one that it began from."""
    start = Restores(directory).start()
    return start is not None and not start.is_open


def check_no_open_restore(directory: JobDirectory) -> None:
    """Refuse to run a job whose restore, or rewind, has begun and not ended."""
    last = Restores(directory).last()
    if last is not None and last.is_open:
        raise open_restore(directory.url, last)


def open_restore(url: str, operation: OperationRecord) -> CheckpointError:
    """Return the error that says that a restore has not ended, and how to end it."""
    plan = operation.plan
    if plan.keep_outputs:
        what = f"queries {', '.join(plan.queries)} were to be reset, which"
        fix = f"run it again with {set_option('allow_non_restored_state')} to end it"
    else:
        what = f"a restore of {plan.savepoint or 'the beginning'}"
        fix = f"to end it: {_command_to_end(url, operation)}, or a retry of the task that began it"
    began = operation.began
    return CheckpointError(f"{url}: {what} began at {began} and did not end; {fix}")


def _command_to_end(url: str, operation: OperationRecord) -> str:
    plan = operation.plan
    if plan.savepoint is None or operation.by:
        return rewind_command(url, operation.rewinds[-1])
    return restore_command(
        plan.savepoint,
        url,
        partitions=plan.partitions,
        claims=plan.claim_mode == "claim",
        reverts=plan.reverts,
    )


def what_is_unfinished(directory: JobDirectory) -> str | None:
    """Return what keeps a job from running that somebody has begun, and what ends it."""
    try:
        check_no_open_restore(directory)
    except CheckpointError as error:
        return str(error)
    return None


def mark_rewound(directory: JobDirectory, operation: OperationRecord) -> None:
    """Mark the runs that an operation rewinds. Idempotent.

    Later runs stay: a driver that was presumed dead may come here late, or continue when a run of
    that name has resumed.
    """
    savepoint = operation.restore.savepoint if operation.restore is not None else None
    by = operation.by or f"restore {operation.number}"
    for run_id in operation.rewinds:
        record = RewoundRecord(run_id=run_id, savepoint=savepoint, at=operation.began, by=by)
        directory.run(run_id).put_rewound(record)


def overtaken(job: Storage, record: OperationRecord) -> LeaseLostError:
    """Return the error of a driver whose operation another one has begun, or ended."""
    msg = (
        f"{path_of(job, record)}: another driver has taken over and has put it; "
        "nothing was restored"
    )
    return LeaseLostError(msg)
