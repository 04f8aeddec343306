"""Restore log of a job directory: what its queries were set to, and whether that is done."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    RevertError,
)
from airflow_provider.runtime.errors.ways_out import set_option
from airflow_provider.runtime.jobdir.checkpoint_places import (
    RestoreRecord,
    left_places,
    newest_record,
    next_number,
    places,
    record_path,
    restore_records,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.savepoints.record import REWIND_PREFIX
from airflow_provider.runtime.storage.file_tree import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint


log = logging.getLogger(__name__)


class Restores:
    """The restores of one job directory.

    Args:
        directory: the job directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._directory = directory
        self._storage = directory.storage
        self._rewinds = f"{directory.url}/savepoints/{REWIND_PREFIX}"

    def last(self) -> RestoreRecord | None:
        """Return the newest one, done or not."""
        return next(self.newest_first(), None)

    def start(self) -> RestoreRecord | None:
        """Return the newest restore that is not the rewind of a run: the job's beginning."""
        for record in self.newest_first():
            is_rewind = record.savepoint is None or record.savepoint.startswith(self._rewinds)
            if not is_rewind:
                return record
        return None

    def newest_first(self) -> Iterator[RestoreRecord]:
        """Yield them all."""
        return restore_records(self._storage)

    def begin(self, record: RestoreRecord, fence: Fence) -> RestoreRecord:
        """Store the intent under the next number, and return it as it was stored.

        The record's number, locations and token are chosen here; *fence* is the caller's lease.

        Raises:
            LeaseLostError: another driver has taken over. Nothing was stored.

        Crash safety: the intent is there or not.
        """
        number = next_number(self._storage)
        made = dict.fromkeys(record.queries, number)
        kept = {name: at for name, at in record.places.items() if name in record.queries}
        record = dataclasses.replace(
            record,
            number=number,
            places={**places(self._storage), **made, **kept},
            before=_last_number(self._directory),
            token=fence.token,
        )
        # In this order: a process that takes over after this read puts a guard under the number
        # chosen above.
        fence.check()
        if not record.put_if_absent(self._storage, record_path(number)):
            msg = (
                f"{self._storage.url}/{record_path(number)}: another driver has taken over and has "
                "put it; nothing was restored"
            )
            raise LeaseLostError(msg)
        return record

    def undo(self, run_id: str, fence: Fence, at: str) -> None:
        """Store that a run no longer counts which has written nothing: no query is restored.

        Raises:
            LeaseLostError: another driver has taken over. Nothing was stored.
        """
        nothing = dataclasses.replace(empty_record(self._directory, at), undoes=[run_id])
        self.begin(nothing, fence)

    def end(self, record: RestoreRecord, at: str) -> RestoreRecord:
        """Record that every query is restored."""
        done = dataclasses.replace(record, done=at)
        done.put(self._storage, record_path(record.number))
        return done

    def remove_left(self) -> None:
        """Remove the checkpoints that the queries have left. Idempotent.

        No driver reads them; one that still writes there was presumed dead.
        """
        last, newest = self.last(), newest_record(self._storage)
        if newest is None or (last is not None and last.done is None):
            return
        for path in left_places(self._storage, newest):
            log.info("%s/%s: removed, the query has left it", self._storage.url, path)
            remove_tree(self._storage.at(path))


def _last_number(directory: JobDirectory) -> int:
    last = Restores(directory).last()
    return last.number if last is not None else 0


def empty_record(directory: JobDirectory, at: str) -> RestoreRecord:
    """Return a record that restores nothing and leaves every query where it is."""
    return RestoreRecord(
        number=1,
        savepoint=None,
        taken=None,
        claim_mode="no_claim",
        queries={},
        skipped={},
        places=places(directory.storage),
        before=_last_number(directory),
        began=at,
        done=at,
    )


def check_no_open_restore(directory: JobDirectory) -> None:
    """Refuse to run a job whose restore, or rewind, has begun and not ended.

    Raises:
        CheckpointError: the message says how to end it.
    """
    last = Restores(directory).last()
    if last is not None and last.done is None:
        raise open_restore(directory, last)
    for name in directory.query_names():
        query_id = CheckpointLogs(directory.checkpoint(name)).query_id()
        if query_id is not None:
            EpochRecords(directory.committables(name), query_id).ensure_not_rewound()


def open_restore(directory: JobDirectory, record: RestoreRecord) -> CheckpointError:
    """Return the error that says that a restore has not ended, and how to end it."""
    what = f"a restore of {record.savepoint or 'the beginning'}"
    way_out = "give the same command again to end it"
    if record.keep_outputs:
        what = f"queries {', '.join(record.queries)} were to start over, which"
        way_out = f"run it again with {set_option('allow_non_restored_state')} to end it"
    msg = f"{directory.url}: {what} began at {record.began} and did not end; {way_out}"
    return CheckpointError(msg)


def plan_start_over(directory: JobDirectory, name: str) -> dict[str, Any]:
    """Plan the start-over of a query whose output is kept.

    Raises:
        ConfigError: it has a committed epoch that is not published, and never would be.
    """
    logs = CheckpointLogs(directory.checkpoint(name))
    query_id, last = logs.query_id(), logs.position().last_commit
    if query_id is not None:
        waiting = EpochRecords(directory.committables(name), query_id).find().precommitted
        if any(epoch <= last for epoch in waiting):
            msg = (
                f"{directory.url}: query {name!r} cannot start over yet: what it has "
                "committed is not published; run 'spark-stream cleanup JOB_DIR' with the job as it "
                "was first"
            )
            raise ConfigError(msg)
    return {"query_id": None, "from": "", "batch": -1, "replaces": query_id, "stays": last}


def check_not_parted(
    directory: JobDirectory, savepoint: Savepoint, names: Mapping[str, str]
) -> None:
    """Refuse to set a job back to before a query started over while its output was kept.

    Raises:
        ConfigError: the message names the query.
    """
    for name, theirs in names.items():
        saved = savepoint.record.queries.get(theirs)
        current = CheckpointLogs(directory.checkpoint(name)).query_id()
        if not _left_ids(directory, name) or (saved is None and current is None):
            continue
        if saved is None or saved.query_id not in _ids_since(directory, name, current):
            msg = (
                f"{directory.url}: query {name!r} started over after the savepoint {savepoint.url} "
                "was taken, and its output was kept, so these rows cannot be distinguished from "
                "those after the savepoint; restore it into a new job directory"
            )
            raise ConfigError(msg)


def check_not_parted_in(directory: JobDirectory, name: str, run_id: str) -> None:
    """Refuse to rewind a run in the middle of which a query started over.

    Raises:
        RevertError: the run had written before, and that has stayed.
    """
    for query_id in _left_ids(directory, name):
        records = EpochRecords(directory.committables(name), query_id)
        runs = {run for *_, run in records.history().ranges}
        if run_id in runs or any(record.run_id == run_id for record in records.all()):
            msg = (
                f"{directory.url}: run {run_id!r} cannot be rewound: query {name!r} started over "
                "in it, or since, and its earlier output was kept"
            )
            raise RevertError(msg)


def _left_ids(directory: JobDirectory, name: str) -> list[str]:
    """Return the ids that the query had before it started over."""
    storage = directory.committables(name)
    return [i for i in query_ids(storage) if EpochRecords(storage, i).is_abandoned()]


def _ids_since(directory: JobDirectory, name: str, current: str | None) -> set[str | None]:
    ids = {current}
    for record in Restores(directory).newest_first():
        plan = record.queries.get(name)
        if plan is None:
            continue
        if record.keep_outputs:
            break
        ids |= {plan["query_id"], plan["replaces"]}
    return ids - {None}
