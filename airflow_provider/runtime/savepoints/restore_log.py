"""Restores in the journal of a job directory, which of them are open; relocation.

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
before ``operations/<n>.1.json``       its own lease says that the locations are exposed; it
relocates after it, while files arrive           the same under number n+1: ``checkpoint-<n>/`` does
                                       not count yet, so it is garbage
after ``operations/<n>.2.json``        continues there, without another copy
=====================================  ============================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.inventory import Inventory, take_inventory
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    LeaseLostError,
    MissingStateError,
    RevertError,
    fixes,
)
from airflow_provider.runtime.errors.fixes import restore_command, rewind_command, set_option
from airflow_provider.runtime.jobdir.checkpoint_locations import (
    left_locations,
    location,
    next_number,
    token_of_location,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords, left_ids, query_ids
from airflow_provider.runtime.jobdir.identity import identity_of, lineage_of
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
from airflow_provider.runtime.savepoints.record import REWIND_PREFIX, without_checksums
from airflow_provider.runtime.storage.copy_files import WrongSizeError, copy_files
from airflow_provider.runtime.storage.file_tree import facts_under, files_under, remove_tree
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import Lease
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.storage.file_tree import FileFacts


log = logging.getLogger(__name__)


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

    def starts(self) -> Iterator[OperationRecord]:
        """Yield the restores that are not rewinds of a run, the newest first."""
        for operation in Journal(self._storage).restores():
            if not (operation.plan.savepoint or self._rewinds).startswith(self._rewinds):
                yield operation

    def begin(
        self,
        fence: Fence,
        at: str,
        plan: RestorePlan | None = None,
        *,
        kept: Mapping[str, int] | None = None,
        rewinds: Sequence[str] = (),
        by: str = "",
    ) -> OperationRecord:
        """Begin an operation that sets queries to *plan*, in new locations but for those *kept*.

        The runs *rewinds* no longer count; *by* says what rewinds them.

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
    return str(open_restore(directory, last)) if last is not None and is_open else ""


def is_begun_from_savepoint(directory: JobDirectory) -> bool:
    """Whether the job was set to a savepoint, and so no longer needs the one that it began from."""
    start = Restores(directory).start()
    return start is not None and not start.is_open


def check_no_open_restore(directory: JobDirectory) -> None:
    """Refuse to run a job whose restore, or rewind, has begun and not ended."""
    last = Restores(directory).last()
    if last is not None and last.is_open:
        raise open_restore(directory, last)


def open_restore(directory: JobDirectory, operation: OperationRecord) -> CheckpointError:
    """Return the error that says that a restore has not ended, and how to end it."""
    plan = operation.plan
    if plan.keep_outputs:
        what = f"queries {', '.join(plan.queries)} were to be reset, which"
        fix = f"run it again with {set_option('allow_non_restored_state')} to end it"
    else:
        what = f"a restore of {plan.savepoint or 'the beginning'}"
        fix = (
            f"to end it: {_command_to_end(directory, operation)}, or a retry of the task that "
            "began it"
        )
    began = operation.began
    return CheckpointError(f"{directory.url}: {what} began at {began} and did not end; {fix}")


def _command_to_end(directory: JobDirectory, operation: OperationRecord) -> str:
    plan = operation.plan
    if plan.savepoint is None or operation.by:
        return rewind_command(directory.url, operation.rewinds[-1])
    return restore_command(
        plan.savepoint,
        directory.url,
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


def plan_reset(directory: JobDirectory, name: str) -> dict[str, Any]:
    """Plan the reset of a query whose output is kept."""
    logs = CheckpointLogs(directory.checkpoint(name))
    query_id, last = logs.query_id(), logs.position().last_commit
    if query_id is not None:
        waiting = EpochRecords(directory.committables(name), query_id).find().precommitted
        if any(epoch <= last for epoch in waiting):
            raise ConfigError(
                f"{directory.url}: query {name!r} cannot be reset yet: what it has "
                "committed is not published; run 'spark-stream cleanup JOB_DIR' with the job as it "
                "was first"
            )
    return {"query_id": None, "from": "", "batch": -1, "replaces": query_id, "stays": last}


def check_same_history(
    directory: JobDirectory, savepoint: Savepoint, names: Mapping[str, str]
) -> None:
    """Refuse a savepoint that has read rows which the job's outputs do not have, or not alone.

    Since it was taken, a query may have been reset while its output was kept, or been set back,
    which has reverted its rows; or the savepoint is of another job directory.
    """
    record, own = savepoint.record, identity_of(directory.storage)
    is_own = record.lineage[:1] == [own]
    restores = Journal(directory.storage).restores() if is_own else ()
    since = [operation for operation in restores if operation.number > record.restores]
    for name, theirs in names.items():
        saved = record.queries.get(theirs)
        changes = [operation for operation in since if name in operation.plan.queries]
        if saved is None:
            is_parted = CheckpointLogs(directory.checkpoint(name)).query_id() is not None
        else:
            is_parted = not is_own or any(operation.plan.keep_outputs for operation in changes)
        if is_parted and left_ids(directory.committables(name)):
            why = "was reset after it was taken, and its output was kept, so these rows cannot "
            why += "be distinguished from those after the savepoint"
        elif saved is None:
            continue
        elif is_own:
            why = _why_reverted(directory, name, saved.epoch, changes)
        else:
            why = _why_foreign(directory, name, saved.epoch, savepoint)
        if why:
            where = f"{directory.url}: the savepoint {savepoint.url} cannot be restored here"
            raise ConfigError(f"{where}: query {name!r} {why}; {fixes.RESTORE_ELSEWHERE}")


def _why_reverted(
    directory: JobDirectory, name: str, epoch: int, changes: Iterable[OperationRecord]
) -> str:
    earlier = [each for each in changes if each.plan.queries[name]["batch"] < epoch]
    if not earlier:
        return ""
    back, storage = earlier[0], directory.committables(name)
    reverting = [each.plan.queries[name] for each in earlier if not each.plan.keep_outputs]
    lowest = min((query["batch"] for query in reverting), default=epoch)
    # The rows may be of any earlier id: a query need not write between two restores.
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        written = min(records.active_epochs_after(lowest), default=epoch + 1)
        if back.is_open and back.plan.reverts and written <= epoch:
            raise open_restore(directory, back)  # perhaps not in all sinks any more
        taken = records.find().reverted_from
        if taken is not None and taken <= epoch and records.has_own():
            return (
                f"was set back since then, by operation {back.number}, so its epochs from "
                f"{taken} on were reverted, and the savepoint has read them"
            )
        if written <= epoch:  # the job had begun with rows of another one
            why = f"was set back since then, by operation {back.number}, and has written epoch "
            return f"{why}{written} since, and the savepoint has read other rows up to {epoch}"
    return ""


def _why_foreign(directory: JobDirectory, name: str, epoch: int, savepoint: Savepoint) -> str:
    storage = directory.committables(name)
    ids = [EpochRecords(storage, query_id) for query_id in query_ids(storage)]
    written = min((each[0] for r in ids if (each := r.active_epochs_after(-1))), default=epoch + 1)
    if written <= epoch:
        return (
            f"has written epoch {written} here, and the savepoint, which is of another job "
            f"directory, has read other rows up to epoch {epoch}"
        )
    own = [records for records in ids if records.has_own()]
    begun = min((records.copied() for records in own), default=-1)
    starts = [*Restores(directory).starts()]
    is_start = any(is_of(start, savepoint) for start in starts)
    # The output may be the same, as after an upgrade, also of a query that began without state.
    continued = {*savepoint.record.lineage[:1]} & {*lineage_of(directory.storage)}
    is_other = (
        begun not in {-1, epoch} if is_start else begun >= 0 or (own and starts and continued)
    )
    if is_other:
        return (
            "has begun here with another savepoint of another job directory, and nothing here "
            f"knows what that one has written, or reverted, of the epochs up to {epoch} in this one"
        )
    return ""


def check_not_parted_in(directory: JobDirectory, name: str, run_id: str) -> None:
    """Refuse to rewind a run in the middle of which a query was reset."""
    for query_id in left_ids(directory.committables(name)):
        records = EpochRecords(directory.committables(name), query_id)
        runs = {run for *_, run in records.history().ranges}
        if run_id in runs or any(record.run_id == run_id for record in records.all()):
            raise RevertError(
                f"{directory.url}: run {run_id!r} cannot be rewound: query {name!r} was reset "
                "in it, or since, and its earlier output was kept"
            )


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
    """Return the files that contain the checkpoint's address, with that of the copy in *folder*."""
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
    """Copy checkpoint files to a folder; *changed* has the files whose content differs there."""
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
