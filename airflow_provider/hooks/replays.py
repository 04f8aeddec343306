"""Detects that a task was cleared, by comparing ``max_tries`` with the value stored with the run.

Airflow counts tries on for ever, and raises ``max_tries`` when, and only when, somebody clears the
task; a retry leaves it. The number that a run was begun with is therefore kept with the run, and a
higher one means that the run was cleared since.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.run_records import ReplayRecord
from airflow_provider.runtime.storage.documents import Contents, Document

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.layout import RunDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriesRecord(Document):
    """``tries.json``: Airflow's ``max_tries`` when the run was begun."""

    CONTENTS = Contents.FACTS
    PLACES = ("tries.json",)

    max_tries: int


@dataclasses.dataclass(frozen=True)
class RunChoice:
    """Which run a task is about.

    Attributes:
        run_id: the run.
        replays: the run that it takes the place of, None for the first one.
    """

    run_id: str
    replays: str | None


def current_run(job_dir: str, run_id: str) -> RunChoice:
    """Return the task's current run; nothing is decided or written.

    Raises:
        CorruptDocumentError: runs take each other's place.
    """
    directory = directory_at(job_dir)
    replays, seen = None, {run_id}
    while (replay := directory.run(run_id).replay()) is not None:
        replays, run_id = run_id, replay.next_run_id
        if run_id in seen:
            msg = (
                f"{directory.run(replays).storage.url}/replay.json: run {run_id!r} takes the place "
                "of itself; put back what was there"
            )
            raise CorruptDocumentError(msg)
        seen.add(run_id)
    return RunChoice(run_id, replays)


def resolve_run(job_dir: str, run_id: str, max_tries: int, clock: Clock) -> RunChoice:
    """Return the task's current run; after a clear, that is a new one.

    Args:
        job_dir: the job directory.
        run_id: the task's first run.
        max_tries: Airflow's number.
        clock: for the record's time.

    Crash safety: a clear is recorded before anything follows from it.
    Idempotent: by run and number.
    """
    directory = directory_at(job_dir)
    execution = current_run(job_dir, run_id)
    run = directory.run(execution.run_id)
    begun = _begun_with(run, max_tries)
    if max_tries <= begun:
        return execution
    if run.record() is None:  # cleared before it had begun: there is nothing to undo
        TriesRecord(max_tries=max_tries).put(run.storage, "tries.json")
        return execution
    number = execution.run_id.removeprefix(run_id).removeprefix(".r")
    replay = run.put_replay(
        ReplayRecord(
            run_id=execution.run_id,
            next_run_id=f"{run_id}.r{int(number or 1) + 1}",
            at=to_iso(clock.now()),
        )
    )
    _begun_with(directory.run(replay.next_run_id), max_tries)
    return RunChoice(replay.next_run_id, execution.run_id)


def _begun_with(run: RunDirectory, max_tries: int) -> int:
    """Return the number that the run was begun with, which is this one if it is the first."""
    record = TriesRecord(max_tries=max_tries)
    if record.put_if_absent(run.storage, "tries.json"):
        return max_tries
    stored = TriesRecord.read(run.storage, "tries.json")
    return stored.max_tries if stored is not None else max_tries
