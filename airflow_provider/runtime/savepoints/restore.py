"""Restore of a savepoint: into a new job directory, or back into a job's own.

A restored query gets a new id, so that two jobs that come from one savepoint are two to every sink,
and so that no earlier driver can still reach the outputs: for the old id, the epochs after the
savepoint count as reverted. Its checkpoint gets a new place, so that nothing that such a driver's
Spark may still write is ever read.

Only one driver writes to a place before it counts. A driver that continues another one's restore
takes a new number, and with it new ids and places for the queries that are not restored yet: the
other driver may wake up, and would continue to copy and remove.

=================================  =================================================================
a crash                            the next call
=================================  =================================================================
before ``restores/<n>.json``       starts again
after it                           copies again, to the places of ``restores/<n+1>.json``
while state is repartitioned       copies again, and repartitions the copy
after ``metadata`` of a query      finds the query restored
after the record says done         removes the places that were left
=================================  =================================================================

Until it is done no driver runs the job. The savepoint itself is only read.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import uuid
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import (
    ConfigError,
)
from airflow_provider.runtime.jobdir.checkpoint_places import RestoreRecord, place
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    EndedSources,
    put_drain_intent,
    put_ended_sources,
)
from airflow_provider.runtime.jobdir.epoch_documents import RevertRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.query_records import put_fingerprint, put_topology
from airflow_provider.runtime.savepoints.catalog import (
    Repartition,
    check_repartitionable,
    check_restorable,
    folder_of,
    partitions_of,
    saved_offsets,
)
from airflow_provider.runtime.savepoints.record import without_checksums
from airflow_provider.runtime.savepoints.restore_log import Restores, open_restore, plan_start_over
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import remove_tree
from airflow_provider.runtime.storage.open import open_storage, spark_url

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.record import QuerySavepoint


log = logging.getLogger(__name__)

CLAIM_MODES: Final = ("no_claim", "claim")
_METADATA: Final = "metadata"
"""Put last: a checkpoint without it is none."""


@dataclasses.dataclass(frozen=True)
class RestoreOperation:
    """Sets the queries of a job to a savepoint; the caller holds the job's lease *fence*."""

    directory: JobDirectory
    fence: Fence
    clock: Clock

    def begin(
        self,
        savepoint: Savepoint | None,
        *,
        names: Mapping[str, str],
        claim_mode: str = "no_claim",
        skip_in_flight: bool = False,
        partitions: int | None = None,
        keep_outputs: bool = False,
        undoes: Sequence[str] = (),
        supersedes: bool = False,
    ) -> RestoreRecord:
        """Store the intent, or return the stored one.

        The caller has reverted what its queries have published after the savepoint.

        Args: savepoint: the savepoint; None for the job's very beginning. names: for each of the
        job's queries the savepoint's that it continues from, or "". claim_mode: ``no_claim``, or
        ``claim`` to let the job own the savepoint. skip_in_flight: never run the batch in flight of
        an unaligned savepoint: its rows are lost. partitions: spread the state over this number; an
        open restore with another number is replaced, under new ids. keep_outputs: leave the
        queries' output in place, though they start over. undoes: the runs that no longer count.
        supersedes: replace an open restore of another savepoint, which may be gone.

        Raises:
            ConfigError: an open restore is of another savepoint, or the outputs hold later epochs.
            JobDrainedError, CheckpointError: see :func:`check_restorable`.
            LeaseLostError: another driver has taken over.
        """
        last = Restores(self.directory).last()
        which = _which(savepoint)
        before = last if last is not None and last.done is None else None
        if before is not None and not (supersedes and (before.savepoint, before.taken) != which):
            return self._begin_again(before, savepoint, partitions)
        if savepoint is not None:
            check_restorable(savepoint)
        if savepoint is not None and partitions is not None:
            check_repartitionable(savepoint, names.values(), skip_in_flight=skip_in_flight)
        saved = {} if savepoint is None else savepoint.record.queries
        record = RestoreRecord(
            number=0,  # chosen when it is stored
            savepoint=which[0],
            taken=which[1],
            claim_mode=claim_mode,
            queries={
                name: plan_start_over(self.directory, name)
                if keep_outputs
                else _plan(self.directory, name, theirs, saved.get(theirs), before)
                for name, theirs in names.items()
            },
            skipped=_skipped(savepoint, names) if savepoint and skip_in_flight else {},
            partitions=partitions,
            keep_outputs=keep_outputs,
            undoes=list(dict.fromkeys([*(before.undoes if before else ()), *undoes])),
            began=to_iso(self.clock.now()),
        )
        return Restores(self.directory).begin(record, self.fence)

    def _begin_again(
        self, last: RestoreRecord, savepoint: Savepoint | None, partitions: int | None
    ) -> RestoreRecord:
        self._check_same(last, savepoint)
        if last.partitions == partitions:
            return last
        if savepoint is not None and partitions is not None:
            theirs = [plan["from"] for plan in last.queries.values()]
            check_repartitionable(savepoint, theirs, skip_in_flight=bool(last.skipped))
        return self._renew(dataclasses.replace(last, partitions=partitions), restored=())

    def _renew(self, record: RestoreRecord, restored: Collection[str]) -> RestoreRecord:
        queries = {
            name: plan if name in restored else {**plan, "query_id": _new_id(plan)}
            for name, plan in record.queries.items()
        }
        places = {name: at for name, at in record.places.items() if name in restored}
        began = to_iso(self.clock.now())
        mine = dataclasses.replace(record, queries=queries, places=places, began=began)
        return Restores(self.directory).begin(mine, self.fence)

    def finish(
        self,
        record: RestoreRecord,
        savepoint: Savepoint | None,
        repartition: Repartition | None = None,
    ) -> RestoreRecord:
        """Carry out a restore, and record that it is done.

        Another driver's intent is continued under a new number. *savepoint* is the record's,
        pinned; None for the job's very beginning, and for a restore that is done. A record with
        partitions needs *repartition*.

        Raises:
            LeaseLostError: another driver has taken over.
            CheckpointError: the state cannot be repartitioned; the restore is open.

        Crash safety: calling it again completes it.
        """
        restores = Restores(self.directory)
        if record.done is None:
            self._check_same(record, savepoint)
            if record.partitions is not None and repartition is None:
                raise open_restore(self.directory, record)
            if record.token != self.fence.token:
                record = self._renew(record, self._restored(record))
            for name in record.queries:
                self.fence.check()
                _retire(self.directory, name, record, self.clock)
                _restore_query(self.directory, name, record, savepoint, repartition)
                failpoints.hit("restore.restored_one")
            self.fence.check()
            record = restores.end(record, to_iso(self.clock.now()))
            failpoints.hit("restore.done")
        restores.remove_left()
        failpoints.hit("restore.removed")
        return record

    def _restored(self, record: RestoreRecord) -> set[str]:
        return {
            name
            for name, plan in record.queries.items()
            if plan["query_id"] is not None
            and CheckpointLogs(_place_of(self.directory, name, record)).query_id()
            == plan["query_id"]
        }

    def _check_same(self, last: RestoreRecord, savepoint: Savepoint | None) -> None:
        if (last.savepoint, last.taken) != _which(savepoint):
            msg = (
                f"{self.directory.url}: a restore of {last.savepoint or 'the beginning'} began at "
                f"{last.began} and did not end; give that command again, or set the job to another "
                "savepoint with 'spark-stream savepoint restore'"
            )
            raise ConfigError(msg)


def _which(savepoint: Savepoint | None) -> tuple[str | None, str | None]:
    return (None, None) if savepoint is None else (savepoint.url, savepoint.record.taken)


def _new_id(plan: Mapping[str, Any]) -> str | None:
    return str(uuid.uuid4()) if plan["query_id"] is not None else None


def _plan(
    directory: JobDirectory,
    name: str,
    theirs: str,
    query: QuerySavepoint | None,
    before: RestoreRecord | None,
) -> dict[str, Any]:
    replaces = CheckpointLogs(directory.checkpoint(name)).query_id()
    if replaces is None and before is not None:
        replaces = before.queries.get(name, {}).get("replaces")
    batch = query.epoch if query is not None else -1
    _check_nothing_after(directory, name, batch)
    return {
        "query_id": str(uuid.uuid4()) if query is not None else None,
        "from": theirs,
        "batch": batch,
        "replaces": replaces,
    }


def _check_nothing_after(directory: JobDirectory, name: str, batch: int) -> None:
    storage = directory.committables(name)
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        after = records.active_epochs_after(batch)
        if after:
            msg = (
                f"{records.url}: query {name!r} has written epochs {batch + 1} to {max(after)} "
                "after this savepoint; continuing from it would write their rows again. Revert "
                "them in its sinks first ('spark-stream savepoint restore --revert'), or restore "
                "into a new job directory"
            )
            raise ConfigError(msg)


def _skipped(savepoint: Savepoint, names: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    skipped = {}
    for name, theirs in names.items():
        query = savepoint.record.queries.get(theirs)
        if query is None or not query.planned:
            continue
        skipped[name] = {
            "batch": query.batch + 1,
            "after": query.sources,
            "up_to": saved_offsets(savepoint, theirs, query.batch + 1).source_offsets(),
        }
        log.warning(
            "%s: DATA LOSS: query %r: batch %s was in flight and is skipped: its input, after %s "
            "up to %s, is never read",
            savepoint.url,
            name,
            query.batch + 1,
            skipped[name]["after"],
            skipped[name]["up_to"],
        )
    return skipped


def _retire(directory: JobDirectory, name: str, record: RestoreRecord, clock: Clock) -> None:
    plan = record.queries[name]
    if plan["replaces"] is None:
        return
    records = EpochRecords(directory.committables(name), plan["replaces"])
    if records.revert() is None:
        now = to_iso(clock.now())
        records.put_revert(
            RevertRecord(
                query_id=plan["replaces"],
                first_epoch=(plan["stays"] if "stays" in plan else plan["batch"]) + 1,
                keep_outputs=record.keep_outputs,
                began=now,
                done=now,
            )
        )


def _place_of(directory: JobDirectory, name: str, record: RestoreRecord) -> Storage:
    return directory.storage.at(place(name, record.places.get(name, 0)))


def _restore_query(
    directory: JobDirectory,
    name: str,
    record: RestoreRecord,
    savepoint: Savepoint | None,
    repartition: Repartition | None,
) -> None:
    checkpoint = _place_of(directory, name, record)
    logs = CheckpointLogs(checkpoint)
    plan, is_skipped = record.queries[name], name in record.skipped
    query_id, theirs = plan["query_id"], plan["from"]
    if query_id is None or savepoint is None or logs.query_id() == query_id:
        return
    remove_tree(checkpoint)  # what an earlier call of this driver has left unfinished
    _copy(checkpoint, savepoint, theirs, is_skipped=is_skipped)
    failpoints.hit("restore.copied")
    batch = savepoint.record.queries[theirs].batch
    if is_skipped:
        _skip(logs, savepoint, theirs, batch)
    if repartition is not None and _is_repartitioned(savepoint, theirs, record.partitions):
        repartition(spark_url(checkpoint.url), logs, int(record.partitions or 0))
        failpoints.hit("restore.repartitioned")
        batch = logs.position().last_commit
    EpochRecords(directory.committables(name), query_id).continue_after(batch)
    topology = savepoint.record.queries[theirs].topology
    if None not in topology.sources:  # else its first start tells more
        put_topology(directory, name, query_id, topology)
    fingerprint = savepoint.record.queries[theirs].fingerprint
    if fingerprint is not None:
        put_fingerprint(directory, name, query_id, fingerprint, since=0)
    _put_ends(directory, name, record, savepoint, batch)
    failpoints.hit("restore.numbered")
    checkpoint.put(_METADATA, json.dumps({"id": query_id}, separators=(",", ":")).encode())


def _put_ends(
    directory: JobDirectory, name: str, record: RestoreRecord, savepoint: Savepoint, batch: int
) -> None:
    plan = record.queries[name]
    query_id, saved = str(plan["query_id"]), savepoint.record.queries[plan["from"]]
    # Of no run: the one that the savepoint was taken in may be rewound here, or never have been.
    run_id, at = "", record.began
    if saved.has_ended:
        intent = DrainIntent(query_id=query_id, run_id=run_id, batch=batch, at=at)
        put_drain_intent(directory, name, intent)
    if saved.ended:
        ended = EndedSources(
            query_id=query_id,
            run_id=run_id,
            sources=saved.ended,
            batch=batch,
            at=at,
            reached=saved.reached,
        )
        put_ended_sources(directory, name, ended)


def _is_repartitioned(savepoint: Savepoint, theirs: str, partitions: int | None) -> bool:
    has_state = bool(savepoint.record.queries[theirs].operators)
    return partitions is not None and has_state and partitions_of(savepoint, theirs) != partitions


def _copy(checkpoint: Storage, savepoint: Savepoint, theirs: str, *, is_skipped: bool) -> None:
    query = savepoint.record.queries[theirs]
    rewritten = [_METADATA, *query.addressed]
    if is_skipped:
        rewritten += [f"offsets/{query.batch}", f"offsets/{query.batch + 1}"]
    left_out = without_checksums(rewritten)
    place = open_storage(savepoint.url)
    for holder in {file.holder for file in query.files}:
        files = [file for file in query.files if file.holder == holder]
        wanted = [(file.path, file.size) for file in files if file.path not in left_out]
        copy_files(folder_of(place, theirs, holder), checkpoint, wanted)
    for path in query.addressed:
        saved = folder_of(place, theirs, None).read(path)
        root = spark_url(checkpoint.url)
        checkpoint.put(path, readdress(saved, root=root, where=f"{savepoint.url}/{path}"))


def _skip(logs: CheckpointLogs, savepoint: Savepoint, theirs: str, batch: int) -> None:
    last, in_flight = (saved_offsets(savepoint, theirs, b) for b in (batch, batch + 1))
    logs.put_offsets(batch, dataclasses.replace(last, sources=in_flight.sources))
