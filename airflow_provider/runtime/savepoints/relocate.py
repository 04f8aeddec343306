"""Relocation: a driver leaves the checkpoints to which an earlier driver may still write.

Spark's checkpoint managers are not put-if-absent on a disk: both look and then rename(2), which
replaces (``CheckpointFileManager.scala``), and an object store takes a late PUT. So the late write
of a driver that was presumed dead could replace its successor's ``offsets/<N>``, ``commits/<N>``,
``sources/<i>/<N>`` or state. A driver that follows one which has not certainly ended therefore
copies what a restart needs into places of its own (:mod:`~.jobdir.checkpoint_places`) and continues
there. Queries keep their ids, so epochs, sinks and savepoints go on as before.

What the earlier driver has committed before the takeover is in the copy: it publishes an epoch only
after it has seen ``commits/<N>`` and then its lease, so the commit is older than the next lease.

=====================================  ============================================================
a death                                the next driver
=====================================  ============================================================
before ``restores/<n>.json``           its own lease says that the places are exposed; it relocates
with the record, while files arrive    the same under number n+1: the record's ``places`` do not
                                       name ``checkpoint-<n>/`` yet, so it is garbage
with the places in the record          continues there, without another copy
=====================================  ============================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.inventory import Inventory, take_inventory
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import MissingStateError
from airflow_provider.runtime.jobdir.checkpoint_places import (
    RestoreRecord,
    newest_record,
    next_number,
    place,
    record_path,
    token_of_place,
)
from airflow_provider.runtime.jobdir.run_records import RewoundRecord
from airflow_provider.runtime.savepoints.record import without_checksums
from airflow_provider.runtime.savepoints.restore_log import Restores, empty_record
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import facts_under, files_under, remove_tree
from airflow_provider.runtime.storage.local_copy import WrongSizeError
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.storage.file_tree import FileFacts

log = logging.getLogger(__name__)


def list_needed(
    checkpoint: Storage, batch: int, *, planned: bool
) -> tuple[Inventory, Mapping[str, FileFacts]]:
    """Return what a restart after a committed batch needs, and all files of the checkpoint.

    With *planned*, that includes the plan of the batch after it.

    Raises:
        MissingStateError: Spark has removed a needed file; a newer batch is complete.
    """
    try:
        found = facts_under(checkpoint)
    except FileNotFoundError as error:  # all of it
        raise MissingStateError(checkpoint.url, batch, ("metadata",)) from error
    sizes = {path: facts.size for path, facts in found.items()}
    inventory = take_inventory(
        sizes, checkpoint.read, batch=batch, planned=planned, where=checkpoint.url
    )
    return inventory, found


def readdressed(checkpoint: Storage, inventory: Inventory, folder: Storage) -> dict[str, bytes]:
    """Return the files that name the checkpoint's address, with that of the copy in *folder*."""
    root = spark_url(folder.url)
    return {
        path: readdress(checkpoint.read(path), root=root, where=f"{checkpoint.url}/{path}")
        for path in inventory.addressed
    }


def copy_needed(
    checkpoint: Storage,
    folder: Storage,
    files: Iterable[tuple[str, int]],
    changed: Mapping[str, bytes],
    *,
    batch: int,
) -> None:
    """Copy files of a checkpoint to a folder; *changed* has the files with another content there.

    Raises:
        MissingStateError: Spark has removed or replaced a file meanwhile.
    """
    try:
        copy_files(checkpoint, folder, list(files))
    except (FileNotFoundError, WrongSizeError) as error:
        lost = (str(error.filename or error),)
        raise MissingStateError(checkpoint.url, batch, lost) from error
    for path, data in changed.items():
        folder.put(path, data)


_TRIES: Final = 5  # races with Spark's cleaning that are lost before it is given up


def relocate(
    directory: JobDirectory, lease: Lease, clock: Clock, queries: Iterable[str] = ()
) -> None:
    """Give queries new checkpoints where an earlier driver may still write to the current ones.

    A restore that such a driver was about to begin takes no effect: its record would have the
    number that this one takes, and the runs that it was rewinding are marked now.

    Args:
        directory: the job directory.
        lease: held by this driver, which has read no checkpoint yet.
        clock: for the record's time.
        queries: names of the job's queries; those with a folder are known.

    Raises:
        LeaseLostError: another driver has taken over.
        CheckpointError: a checkpoint lacks files. Nothing has changed.

    Crash safety: see the module.
    """
    unended = lease.record.unended
    if not unended:
        return
    while True:
        newest = newest_record(directory.storage)
        exposed = _exposed(directory, newest, unended, queries)
        if newest is not None and newest.token > unended and not exposed:
            return
        if newest is not None:
            _mark_undone(directory, newest)
        record = dataclasses.replace(
            empty_record(directory, to_iso(clock.now())),
            number=next_number(directory.storage),
            relocates=exposed,
            token=lease.token,
        )
        # If not, the earlier driver has put what it was about to: a restore, which is open now.
        if record.put_if_absent(directory.storage, record_path(record.number)):
            break
        lease.check()
    if exposed:
        failpoints.hit("relocation.intended")
        _move(directory, record, lease)


def _exposed(
    directory: JobDirectory, newest: RestoreRecord | None, unended: int, queries: Iterable[str]
) -> list[str]:
    """Return the queries whose locations precede the earlier driver's lost lease.

    None while a restore is open: no driver starts a query before it has ended, in new locations.
    """
    last = Restores(directory).last()
    if last is not None and last.done is None:
        return []
    counting = newest.places if newest is not None else {}
    names = {*directory.query_names(), *queries}
    tokens = {number: token_of_place(directory.storage, number) for number in counting.values()}
    return sorted(name for name in names if tokens.get(counting.get(name, 0), 0) <= unended)


def _move(directory: JobDirectory, record: RestoreRecord, lease: Lease) -> None:
    storage = directory.storage
    for name in record.relocates:
        old = place(name, record.places.get(name, 0))
        new = place(name, record.number)
        log.info("%s/%s: a driver may still write there; copied to %s", storage.url, old, new)
        _copy(storage.at(old), storage.at(new))
    failpoints.hit("relocation.copied")
    lease.check()
    places = {**record.places, **dict.fromkeys(record.relocates, record.number)}
    moved = dataclasses.replace(record, places=places)
    moved.put(storage, record_path(record.number))
    failpoints.hit("relocation.done")


def _copy(old: Storage, new: Storage) -> None:
    """Copy what a restart needs; of a newer batch where Spark has removed files meanwhile."""
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
    """Whether a checkpoint's file is a complete part of Spark's log, not state."""
    top, _, rest = path.partition("/")
    return top in {"metadata", "offsets", "sources"} and not rest.rpartition("/")[2].startswith(".")


def _mark_undone(directory: JobDirectory, newest: RestoreRecord) -> None:
    """Mark the runs that the newest restore rewinds. Idempotent.

    Its process may be paused, and continue when a run of that name has resumed.
    """
    for run_id in newest.undoes:
        by = f"restore {newest.number}"
        directory.run(run_id).put_rewound(
            RewoundRecord(run_id=run_id, savepoint=newest.savepoint, at=newest.began, by=by)
        )
