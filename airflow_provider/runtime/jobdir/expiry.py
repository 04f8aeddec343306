"""Expiry of old records: each start removes some records of old runs and drivers.

A starting driver retires the leases that are two hundred older than its own, twenty at a time, and
records its position. Of each retired driver it removes the heartbeat, requests and replies; its
submission, log and attempt, unless they are the last of an open run; and an ended run's progress
and histories, with its last driver.

Leases (which fence), ``run.json``, the end of each run and its last attempt stay permanently. A run
that has not ended can be resumed at any age. Foreign files stay.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.names import is_name, numbers_in
from airflow_provider.runtime.base.typed_json import NonNegative
from airflow_provider.runtime.checkpoint.logged_batch import changed_offsets, check_unchanged
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.jobdir.batch_history import history_path
from airflow_provider.runtime.jobdir.lease_records import heartbeat_path, read_heartbeat, read_lease
from airflow_provider.runtime.jobdir.requests import forget_requests
from airflow_provider.runtime.jobdir.run_records import AttemptRecord
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords
    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord


log = logging.getLogger(__name__)

KEEP_LEASES: Final = 200
"""A start takes one, the end of a run another one, and so does each restart of a query."""
_AT_ONCE: Final = 20  # a start is not to wait for more: some hundred requests to a bucket
_OF_PROCESS: Final = (".process.json", ".handle.json", ".end.json", ".followed.json", ".json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RetiredRecord(Document):
    """``retired.json``: how far old leases were retired."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("retired.json",)
    WRITTEN = Written("replaced", "driver, at its start", "nothing was removed")

    token: NonNegative


def retire_old(directory: JobDirectory, token: int) -> None:
    """Remove some records of old drivers; never raises for what is left.

    Args:
        directory: the job directory.
        token: the caller's lease; the removed records are so much older that a lost lease does no
            harm.

    Crash safety: calling it again continues. Idempotent: by lease.
    """
    try:
        _retire(directory, token)
    except (OSError, SparkStreamError) as error:  # this start does not need it gone
        log.warning("%s: old records could not be removed: %s", directory.url, error)


def _retire(directory: JobDirectory, token: int) -> None:
    storage, newest = directory.storage, token - KEEP_LEASES
    if newest < 1:
        return
    done = RetiredRecord.read(storage, "retired.json")
    before = done.token if done is not None else 0
    through = min(newest, before + _AT_ONCE)
    for old in range(before + 1, through + 1):
        try:
            _retire_lease(directory, old, newest)
        except SparkStreamError as error:  # what is damaged stays, and is said once
            log.warning("%s: records of lease %s are kept: %s", directory.url, old, error)
    if through > before:
        RetiredRecord(token=through).put(storage, "retired.json")


def _retire_lease(directory: JobDirectory, token: int, newest: int) -> None:
    storage = directory.storage
    lease, later = read_lease(storage, token), read_lease(storage, token + 1)
    if read_heartbeat(storage, token) is not None:
        storage.delete(heartbeat_path(token))
    if lease is None or (later is not None and later.driver_id == lease.driver_id):
        return  # its driver has gone on under the next one
    forget_requests(storage, lease.driver_id)
    for driver_id in _retire_driver(directory.run(lease.run_id), lease, newest):
        forget_requests(storage, driver_id)  # they may never have had a lease


def _retire_driver(run: RunDirectory, lease: LeaseRecord, newest: int) -> list[str]:
    last = run.last_attempt()
    is_over = run.has_ended() and (last is None or last.token <= newest)
    submissions = run.submissions()
    old = [
        record.driver_id
        for record in (submissions if is_over else submissions[:-1])
        if is_over or record.driver_id == lease.driver_id
    ]
    for driver_id in old:
        _remove_submission(run.storage, driver_id)
    for number in _old_attempts(run, newest):
        run.storage.delete(f"attempts/{number}.json")
    if is_over and run.progress() is not None:
        _remove_histories(run)
        run.storage.delete("progress.json")  # last: a run without it is not looked at again
    return [driver_id for driver_id in old if driver_id != lease.driver_id]


def _remove_histories(run: RunDirectory) -> None:
    for name in run.storage.list("history"):
        query = name.removesuffix(".json")
        if name.endswith(".json") and is_name(query) and run.history(query) is not None:
            run.storage.delete(history_path(query))


def _old_attempts(run: RunDirectory, newest: int) -> Iterator[int]:
    for number in numbers_in(run.storage.list("attempts"), ".json")[:-1]:
        attempt = AttemptRecord.read(run.storage, f"attempts/{number}.json")
        if attempt is None or attempt.token > newest:
            return
        yield number


def _remove_submission(run: Storage, driver_id: str) -> None:
    """Remove a driver's log and submission, that last: it says whose the others are."""
    _remove_file(run, f"logs/{driver_id}.log")
    _remove_file(run, f"logs/{driver_id}.error.log")
    there = set(run.list("submissions"))
    for end in _OF_PROCESS:
        if f"{driver_id}{end}" in there:
            _remove_file(run, f"submissions/{driver_id}{end}")


def _remove_file(storage: Storage, path: str) -> None:
    if not storage.list(path):  # a folder of that name is nobody's that writes here
        storage.delete(path)


def replaced_offsets(
    records: EpochRecords, checkpoint: Storage, last: int, found: EpochListing | None = None
) -> dict[int, bytes]:
    """Return the right bytes of each ``offsets/<batch>`` that was replaced since its batch ran.

    Spark's logs of the last two batches, which a restart reads, are compared with the records.
    """
    found, replaced = found or records.find(), {}
    for batch in range(max(last - 1, 0), last + 1):
        record = records.counting(batch, found)
        if record is None or record.logged is None:
            continue
        if record.commit is not None:
            check_unchanged(checkpoint, f"commits/{batch}", record.commit)
        data = changed_offsets(checkpoint, batch, record.logged)
        if data is not None:
            replaced[batch] = data
    return replaced


def put_back_offsets(
    records: EpochRecords, checkpoint: Storage, last: int, found: EpochListing | None = None
) -> None:
    """Put back replaced offset logs; only the caller's driver runs the query. Idempotent."""
    for batch, data in replaced_offsets(records, checkpoint, last, found).items():
        text = "%s/offsets/%s: was replaced after its batch had run; put back as it was"
        log.warning(text, checkpoint.url, batch)
        CheckpointLogs(checkpoint).put_back_offsets(batch, data)
