"""Restore of a savepoint: into a new job directory, or back into a job's own.

A restored query gets a new id, so that two jobs that come from one savepoint are two to every sink,
and so that no earlier driver can still reach the outputs: for the old id, the epochs after the
savepoint count as reverted. Its checkpoint gets a new location, so that nothing that such a
driver's Spark may still write is ever read.

Only one driver writes to a location before it counts. A driver that continues another one's restore
takes a new number, and with it new ids and locations for the queries that are not restored yet: the
other driver may wake up, and would continue to copy and remove.

=================================  =================================================================
a crash                            the next call
=================================  =================================================================
before ``operations/<n>.1.json``   starts again
while rows are reverted            reverts the rest (sinks/revert.py)
after that                         copies again, to the locations of operation n+1
while state is repartitioned       copies again, and repartitions the copy
after ``metadata`` of a query      finds the query restored
after ``operations/<n>.2.json``    removes the locations that were left
=================================  =================================================================

Until it is done no driver runs the job. The savepoint itself is only read.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.operators import readdress
from airflow_provider.runtime.errors import (
    ConfigError,
)
from airflow_provider.runtime.jobdir.checkpoint_locations import location
from airflow_provider.runtime.jobdir.end_of_input import (
    DrainIntent,
    EndedSources,
    put_drain_intent,
    put_ended_sources,
)
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.jobdir.query_records import put_topology
from airflow_provider.runtime.jobdir.revised_runs import merged
from airflow_provider.runtime.jobdir.source_identities import put_identities
from airflow_provider.runtime.savepoints.catalog import (
    Repartition,
    check_repartitionable,
    check_restorable,
    folder_of,
    partitions_of,
    saved_offsets,
)
from airflow_provider.runtime.savepoints.history import read_queries, why_written_twice
from airflow_provider.runtime.savepoints.needed_input import LISTED_HERE, InputCheck
from airflow_provider.runtime.savepoints.record import without_checksums
from airflow_provider.runtime.savepoints.restore_plan import (
    RestoreSettings,
    plan_again,
    plan_restore,
)
from airflow_provider.runtime.savepoints.restores import Restores, is_of, open_restore
from airflow_provider.runtime.savepoints.revised_output import revised_runs
from airflow_provider.runtime.sinks.revert import check_native, revert_after
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import remove_tree
from airflow_provider.runtime.storage.open import open_storage, spark_url

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.journal import OperationRecord, RestorePlan
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.revised_runs import RevisedRun
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.savepoints.history import QueryHistory
    from airflow_provider.runtime.sinks.revert import OutputOfQuery, Revert


log = logging.getLogger(__name__)

_METADATA: Final = "metadata"
"""Put last: a checkpoint without it is none."""


@dataclasses.dataclass(frozen=True)
class Restore:
    """Sets the queries of a job to a savepoint; the caller holds the job's lease *fence*.

    *outputs* are the queries whose output after the savepoint is reverted; *input* checks that what
    they read again is still there. If *is_replay*, a run follows that replaces slices of outputs.
    """

    directory: JobDirectory
    fence: Fence
    clock: Clock
    outputs: Sequence[OutputOfQuery] = ()
    input: InputCheck = LISTED_HERE
    is_replay: bool = False

    def begin(self, settings: RestoreSettings) -> OperationRecord:
        """Put the operation, or return the open one.

        An open restore with another number of partitions is replaced, under new ids.

        Raises:
            ConfigError: an open restore is of another savepoint, or a query that is not one of
                *outputs* has published epochs after the savepoint.
            RevertError: an output cannot be reverted.
            LostInputError: input that would be read again is gone.
            JobDrainedError, CheckpointError: see :func:`check_restorable`.
            LeaseLostError: another driver has taken over.
        """
        last = Restores(self.directory).last()
        before = last if last is not None and last.is_open else None
        if before is not None and not (
            settings.supersedes and not is_of(before, settings.savepoint)
        ):
            return self._begin_again(before, settings)
        if settings.savepoint is not None:
            check_restorable(settings.savepoint)
            _check_spread(settings)
        rewinds = [*(before.rewinds if before is not None else ()), *settings.rewinds]
        plan = self.plan(settings, before.plan if before is not None else None)
        revised = before.revises or [] if before is not None else []
        operation = Restores(self.directory).begin(
            self.fence,
            to_iso(self.clock.now()),
            plan,
            rewinds=[*dict.fromkeys(rewinds)],
            by=settings.by,
            revises=self._revised(plan, revised),
            corrects=before.correction if before is not None and revised else 0,
        )
        failpoints.hit("restore.begun")
        return operation

    def plan(self, settings: RestoreSettings, before: RestorePlan | None = None) -> RestorePlan:
        """Return what :meth:`begin` would begin, in the place of the open one *before*, if any.

        It refuses what :meth:`begin` refuses of the outputs and the input; nothing is written.
        """
        savepoint, directory = settings.savepoint, self.directory
        queries = read_queries(directory, settings.names)
        plan = plan_restore(
            settings,
            queries,
            where=directory.url,
            committed={name: self._committed(name) for name in settings.names}
            if settings.keep_outputs
            else {},
            skipped=_skipped(savepoint, settings.names)
            if savepoint and settings.skip_in_flight
            else {},
            before=before,
            reverts=bool(self.outputs),
        )
        self._check_outputs(queries, plan)
        self.input.check(
            directory,
            savepoint,
            settings.names,
            outputs=self.outputs,
            skips_in_flight=settings.skip_in_flight,
            is_accepted=settings.keep_outputs,
        )
        return plan

    def _committed(self, name: str) -> int:
        return CheckpointLogs(self.directory.checkpoint(name)).position().last_commit

    def _check_outputs(self, queries: Mapping[str, QueryHistory], plan: RestorePlan) -> None:
        reverted = {query.name for query in self.outputs}
        _refuse(why_written_twice(queries, plan, reverted))
        for output, epoch in self._reverted(plan):
            planned = CheckpointLogs(self.directory.checkpoint(output.name)).position().last_offsets
            check_native(output.native, planned=planned, epoch=epoch)
        for revert in self._reverts(plan):
            revert.check()

    def _begin_again(self, last: OperationRecord, settings: RestoreSettings) -> OperationRecord:
        self._check_same(last, settings.savepoint)
        if last.plan.keep_outputs != settings.keep_outputs:  # a reset is no rewind
            raise open_restore(self.directory.url, last)
        plan, rewinds = last.plan, [*dict.fromkeys([*last.rewinds, *settings.rewinds])]
        if plan.partitions == settings.partitions and rewinds == last.rewinds:
            return last
        theirs = {name: query["from"] for name, query in plan.queries.items()}
        _check_spread(
            dataclasses.replace(settings, names=theirs, skip_in_flight=bool(plan.skipped))
        )
        plan = dataclasses.replace(plan, partitions=settings.partitions)
        return self._renew(dataclasses.replace(last, restore=plan, rewinds=rewinds))

    def _renew(self, last: OperationRecord, ready: Collection[str] = ()) -> OperationRecord:
        """Begin it again under the next number; queries that are *ready* stay as they are."""
        return Restores(self.directory).begin(
            self.fence,
            to_iso(self.clock.now()),
            plan_again(last.plan, ready),
            rewinds=last.rewinds,
            by=last.by,
            revises=last.revises or (),
            corrects=last.correction if last.revises else 0,
            kept={name: at for name, at in last.locations.items() if name in ready},
        )

    def finish(
        self,
        operation: OperationRecord,
        savepoint: Savepoint | None,
        repartition: Repartition | None = None,
    ) -> OperationRecord:
        """Carry out a restore, and record that it is done.

        Another driver's is continued under a new number. *savepoint* is the plan's, pinned; None
        for the job's very beginning, and for a restore that is done. A plan with partitions needs
        *repartition*.

        Raises:
            LeaseLostError: another driver has taken over.
            CheckpointError: the state cannot be repartitioned; the restore is open.

        Crash safety: calling it again completes it.
        """
        if operation.is_open:
            self._check_same(operation, savepoint)
            plan = operation.plan
            if plan.partitions is not None and repartition is None:
                raise open_restore(self.directory.url, operation)
            if operation.token != self.fence.token:
                operation = self._renew(operation, self._ready(operation))
            self._revert(plan)
            for name in plan.queries:
                self.fence.check()
                _retire(self.directory, name, operation.plan, self.clock)
                _restore_query(self.directory, name, operation, savepoint, repartition)
                failpoints.hit("restore.restored_one")
            self.fence.check()
            operation = Restores(self.directory).end(operation)
            failpoints.hit("restore.done")
        Restores(self.directory).remove_left()
        failpoints.hit("restore.removed")
        return operation

    def run(
        self, settings: RestoreSettings, repartition: Repartition | None = None
    ) -> OperationRecord:
        """Begin the restore, and carry it out."""
        return self.finish(self.begin(settings), settings.savepoint, repartition)

    def _revert(self, plan: RestorePlan) -> None:
        if plan.reverts and not self.outputs:
            _refuse(why_written_twice(read_queries(self.directory, plan.queries), plan))
        for revert in self._reverts(plan):
            revert.revert()

    def _reverts(self, plan: RestorePlan) -> Iterator[Revert]:
        for output, epoch in self._reverted(plan):
            yield from revert_after(
                output,
                storage=self.directory.committables(output.name),
                epoch=epoch,
                fence=self.fence,
                clock=self.clock,
                is_replay=self.is_replay,
            )

    def _reverted(self, plan: RestorePlan) -> Iterator[tuple[OutputOfQuery, int]]:
        for output in self.outputs:
            if output.name in plan.queries:
                yield output, plan.queries[output.name]["batch"]

    def _revised(self, plan: RestorePlan, before: Sequence[RevisedRun]) -> list[RevisedRun]:
        batches = {output.name: epoch for output, epoch in self._reverted(plan)}
        return merged(before, revised_runs(self.directory, batches))

    def _ready(self, operation: OperationRecord) -> set[str]:
        return {
            name
            for name, query in operation.plan.queries.items()
            if query["query_id"] is not None
            and CheckpointLogs(_location_of(self.directory, name, operation)).query_id()
            == query["query_id"]
        }

    def _check_same(self, last: OperationRecord, savepoint: Savepoint | None) -> None:
        if not is_of(last, savepoint):
            raise ConfigError(
                f"{self.directory.url}: a restore of {last.plan.savepoint or 'the beginning'} "
                f"began at {last.began} and did not end; give that command again, or set "
                "the job to another savepoint with 'spark-stream savepoint restore'"
            )


def _check_spread(settings: RestoreSettings) -> None:
    if settings.savepoint is not None and settings.partitions is not None:
        check_repartitionable(
            settings.savepoint, settings.names.values(), skip_in_flight=settings.skip_in_flight
        )


def _refuse(error: ConfigError | None) -> None:
    if error is not None:
        raise error


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


def _retire(directory: JobDirectory, name: str, plan: RestorePlan, clock: Clock) -> None:
    query, storage = plan.queries[name], directory.committables(name)
    if query["replaces"] is None:
        return
    at = to_iso(clock.now())
    if plan.keep_outputs:  # also what was written under earlier ids, and was not reverted
        for query_id in sorted({*query_ids(storage), query["replaces"]}):
            EpochRecords(storage, query_id).put_reverted(query["stays"] + 1, at, stays=True)
        return
    records = EpochRecords(storage, query["replaces"])
    found = records.find()
    # What a reset has left stays, also if it was cut short and this restore took its place.
    if found.reverted_from is None and not found.is_abandoned:
        records.put_reverted(query["batch"] + 1, at)


def _location_of(directory: JobDirectory, name: str, operation: OperationRecord) -> Storage:
    return directory.storage.at(location(name, operation.locations.get(name, 0)))


def _restore_query(
    directory: JobDirectory,
    name: str,
    operation: OperationRecord,
    savepoint: Savepoint | None,
    repartition: Repartition | None,
) -> None:
    checkpoint = _location_of(directory, name, operation)
    logs, plan = CheckpointLogs(checkpoint), operation.plan
    is_skipped = name in plan.skipped
    query_id, theirs = plan.queries[name]["query_id"], plan.queries[name]["from"]
    if query_id is None or savepoint is None or logs.query_id() == query_id:
        return
    remove_tree(checkpoint)  # what an earlier call of this driver has left unfinished
    _copy(checkpoint, savepoint, theirs, is_skipped=is_skipped)
    failpoints.hit("restore.copied")
    batch = savepoint.record.queries[theirs].batch
    if is_skipped:
        _skip(logs, savepoint, theirs, batch)
    if repartition is not None and _is_repartitioned(savepoint, theirs, plan.partitions):
        repartition(spark_url(checkpoint.url), logs, int(plan.partitions or 0))
        failpoints.hit("restore.repartitioned")
        batch = logs.position().last_commit
    EpochRecords(directory.committables(name), query_id).continue_after(batch)
    saved = savepoint.record.queries[theirs]
    put_topology(directory, name, query_id, saved.topology, saved.fingerprint)
    put_identities(directory, name, query_id, saved.identities)
    _put_ends(directory, name, operation, savepoint, batch)
    failpoints.hit("restore.numbered")
    checkpoint.put(_METADATA, json.dumps({"id": query_id}, separators=(",", ":")).encode())


def _put_ends(
    directory: JobDirectory, name: str, operation: OperationRecord, savepoint: Savepoint, batch: int
) -> None:
    query = operation.plan.queries[name]
    query_id, saved = str(query["query_id"]), savepoint.record.queries[query["from"]]
    # Of no run: the one that the savepoint was taken in may be rewound here, or never have been.
    run_id, at = "", operation.began
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
    location = open_storage(savepoint.url)
    for holder in {file.holder for file in query.files}:
        files = [file for file in query.files if file.holder == holder]
        wanted = [(file.path, file.size) for file in files if file.path not in left_out]
        copy_files(folder_of(location, theirs, holder), checkpoint, wanted)
    for path in query.addressed:
        saved = folder_of(location, theirs, None).read(path)
        root = spark_url(checkpoint.url)
        checkpoint.put(path, readdress(saved, root=root, where=f"{savepoint.url}/{path}"))


def _skip(logs: CheckpointLogs, savepoint: Savepoint, theirs: str, batch: int) -> None:
    last, in_flight = (saved_offsets(savepoint, theirs, b) for b in (batch, batch + 1))
    logs.put_offsets(batch, dataclasses.replace(in_flight, metadata=last.metadata))
