"""Relocation: new checkpoints for queries where an earlier driver may still write.

Spark's checkpoint managers are not put-if-absent on a disk: both look and then rename(2), which
replaces (``CheckpointFileManager.scala``), and an object store takes a late PUT. So the late write
of a driver that was presumed dead could replace its successor's ``offsets/<N>``, ``commits/<N>``,
``sources/<i>/<N>`` or state. A driver that follows one which has not certainly ended therefore
copies what a restart needs into new locations (:mod:`~.jobdir.checkpoint_locations`) and continues
there. Queries keep their ids, so epochs, sinks and savepoints continue as before.

What the earlier driver has committed before the takeover is in the copy: it publishes an epoch only
after it has seen ``commits/<N>`` and then its lease, so the commit is older than the next lease.

=====================================  ============================================================
a death                                the next driver
=====================================  ============================================================
before ``operations/<n>.1.json``       relocates: its own lease says that the locations are exposed
after it, while files arrive           the same under number n+1: ``checkpoint-<n>/`` does not
                                       count yet, so it is garbage
after ``operations/<n>.2.json``        continues there, without another copy
=====================================  ============================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import MissingStateError
from airflow_provider.runtime.jobdir.checkpoint_locations import (
    location,
    next_number,
    token_of_location,
)
from airflow_provider.runtime.jobdir.journal import Journal, OperationRecord, draft, put_operation
from airflow_provider.runtime.savepoints.checkpoint_copies import (
    copy_needed,
    list_needed,
    readdressed,
)
from airflow_provider.runtime.savepoints.record import without_checksums
from airflow_provider.runtime.savepoints.restores import Restores, mark_rewound
from airflow_provider.runtime.storage.file_tree import files_under, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterable

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import Lease


log = logging.getLogger(__name__)

_TRIES: Final = 5  # races with Spark's cleaning that are lost before it is given up


def relocate(
    directory: JobDirectory, lease: Lease, clock: Clock, queries: Iterable[str] = ()
) -> None:
    """Give queries new checkpoints where an earlier driver may still write to the current ones.

    A restore that such a driver was about to begin takes no effect: its record would have the
    number that this one takes, and the runs that it was rewinding are marked now. The caller holds
    the lease and has read no checkpoint yet. *queries* are the job's; those with a folder are
    known.
    """
    unended, storage = lease.record.unended, directory.storage
    if not unended:
        return
    while True:
        number = next_number(storage)
        newest = Journal(storage).newest()
        exposed = _exposed(directory, newest, unended, queries)
        lease.check()  # a driver that takes over from here on chooses this number, or a later one
        if newest is not None and newest.token > unended and not exposed:
            return
        if newest is not None:
            mark_rewound(directory, newest)
        record = draft(storage, number, lease.token, to_iso(clock.now()))
        record = dataclasses.replace(record, relocates=exposed)
        # If not, the earlier driver has put what it was about to: a restore, which is open now.
        if put_operation(storage, record):
            break
    if exposed:
        failpoints.hit("relocation.intended")
        _move(directory, record, lease)


def _exposed(
    directory: JobDirectory, newest: OperationRecord | None, unended: int, queries: Iterable[str]
) -> list[str]:
    """Return queries whose locations precede the lost lease; None while a restore is open."""
    journal = Journal(directory.storage)
    last = journal.last_restore()
    if last is not None and last.is_open:
        return []
    counting = newest.locations if newest is not None else {}
    names = {*directory.query_names(), *queries}
    tokens = {number: token_of_location(journal, number) for number in counting.values()}
    return sorted(name for name in names if tokens.get(counting.get(name, 0), 0) <= unended)


def _move(directory: JobDirectory, record: OperationRecord, lease: Lease) -> None:
    storage = directory.storage
    for name in record.relocates:
        old = location(name, record.locations.get(name, 0))
        new = location(name, record.number)
        log.info("%s/%s: a driver may still write there; copied to %s", storage.url, old, new)
        _copy(storage.at(old), storage.at(new))
    failpoints.hit("relocation.copied")
    lease.check()
    moved = dict.fromkeys(record.relocates, record.number)
    Restores(directory).end(record, locations={**record.locations, **moved})
    failpoints.hit("relocation.done")


def _copy(old: Storage, new: Storage) -> None:
    for left in reversed(range(_TRIES)):
        remove_tree(new)
        try:
            _copy_now(old, new)
        except MissingStateError as error:
            log.info("%s: %s", old.url, error)
            if not left:
                raise
        else:
            return


def _copy_now(old: Storage, new: Storage) -> None:
    logs = CheckpointLogs(old)
    if not logs.exists():
        return
    last, position = logs.last_committed(), logs.position()
    if last < 0:  # the first batch runs again, and makes its state
        begun = [(path, size) for path, size in files_under(old) if _is_log(path)]
        copy_needed(old, new, begun, {}, batch=0)
        return
    inventory, _ = list_needed(old, last, planned=position.last_offsets > last)
    changed = readdressed(old, inventory, new)
    left_out = without_checksums(inventory.addressed)
    files = [(f.path, f.size_bytes) for f in inventory.files if f.path not in left_out]
    copy_needed(old, new, files, changed, batch=last)


def _is_log(path: str) -> bool:
    top, _, rest = path.partition("/")
    return top in {"metadata", "offsets", "sources"} and not rest.rpartition("/")[2].startswith(".")
