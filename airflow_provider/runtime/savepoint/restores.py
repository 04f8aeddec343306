"""The restores of a job directory: what its queries were set to, and whether that is done."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.checkpoint import CheckpointLogs
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.savepoint.records import REWIND_PREFIX
from airflow_provider.runtime.sinks.records import EpochRecords
from airflow_provider.runtime.storage import Document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.jobdir import JobDirectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoreRecord(Document):
    """``restores/<n>.json``: what the job's queries were set to.

    Attributes:
        savepoint: its address when it was restored; None for the job's very beginning.
        taken: when it was taken, which tells it from another one at the same address.
        claim_mode: ``claim`` when the savepoint went over to the job.
        queries: per query its new ``query_id`` (None when it begins anew), the savepoint's query
            that it goes on with (``from``), the ``batch`` it goes on after (-1 when it begins
            anew), and ``replaces``, the id it had before, if any; its epochs up to ``stays`` are
            not touched.
        skipped: per query the batch in flight that was not run again, with its sources' offsets
            before and after: these rows are lost.
        partitions: how many the state is spread over; None for as many as it has.
        outputs_stay: that what the queries have written stays, though they begin anew.
        done: None until every query is restored.
    """

    number: int
    savepoint: str | None
    taken: str | None
    claim_mode: str
    queries: dict[str, dict[str, Any]]
    skipped: dict[str, dict[str, Any]]
    began: str
    partitions: int | None = None
    outputs_stay: bool = False
    done: str | None = None


class Restores:
    """The restores of one job directory.

    Args:
        directory: the job directory.
    """

    def __init__(self, directory: JobDirectory) -> None:
        self._storage = directory.storage
        self._rewinds = f"{directory.url}/savepoints/{REWIND_PREFIX}"

    def last(self) -> RestoreRecord | None:
        """Return the newest one, done or not."""
        return next(self.newest_first(), None)

    def start(self) -> RestoreRecord | None:
        """Return the newest one that is not the rewind of a run: what the job began from."""
        for record in self.newest_first():
            is_rewind = record.savepoint is None or record.savepoint.startswith(self._rewinds)
            if not is_rewind:
                return record
        return None

    def newest_first(self) -> Iterator[RestoreRecord]:
        """Yield them all."""
        numbers = [int(name.removesuffix(".json")) for name in self._storage.list("restores")]
        for number in sorted(numbers, reverse=True):
            record = RestoreRecord.read(self._storage, _path(number))
            if record is not None:
                yield record

    def begin(self, record: RestoreRecord) -> RestoreRecord:
        """Store the intent, or return the one that was faster."""
        if record.put_if_absent(self._storage, _path(record.number)):
            return record
        return self.last() or record

    def end(self, record: RestoreRecord, at: str) -> RestoreRecord:
        """Record that every query is restored."""
        done = dataclasses.replace(record, done=at)
        done.put(self._storage, _path(record.number))
        return done


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
            EpochRecords(directory.committables(name), query_id).check_standing()


def open_restore(directory: JobDirectory, record: RestoreRecord) -> CheckpointError:
    """Return the error that says that a restore has not ended, and how to end it."""
    what, how = f"a restore of {record.savepoint or 'the beginning'}", ""
    if record.outputs_stay:
        what = f"queries {', '.join(record.queries)} were to begin anew, which"
        how = " with --allow-non-restored-state"
    msg = (
        f"{directory.url}: {what} began at {record.began} and did not end; give the same command "
        f"again{how} to end it"
    )
    return CheckpointError(msg)


def _path(number: int) -> str:
    return f"restores/{number}.json"
