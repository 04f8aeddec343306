"""Revert of published epochs: those at the end of a query's history, in every sink.

The intent is put before the first row is removed, so the next call continues instead of running the
query on outputs that are half there. The query's id has ended with it: the checkpoint that is
restored to before the run gets a new one, and a driver of the old one that wakes up later finds its
epochs reverted in every sink.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.api.sinks import OnePhaseSink, RevertibleSink
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.errors import RevertError
from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord, RevertRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.sinks.committer import committable_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.sinks import Committable, Fence, Sink
    from airflow_provider.runtime.api.storages import Storage


def revert_after(
    query: str,
    *,
    storage: Storage,
    sinks: Sequence[Sink | OnePhaseSink],
    epoch: int,
    fence: Fence,
    clock: Clock,
) -> list[Revert]:
    """Return the reverts of all that a query has published after *epoch*, under any of its ids.

    A restored checkpoint has a new id and continues the epochs, so the output before and after the
    restore is recorded under different ids.

    Args:
        query: the query's name.
        storage: its ``committables`` folder.
        sinks: all that it has written to.
        epoch: the last one that stays.
        fence: the caller's lease.
        clock: for the records' times.
    """
    found = [EpochRecords(storage, query_id) for query_id in query_ids(storage)]
    standing = [(max(after), r) for r in found if (after := r.active_epochs_after(epoch))]
    newest_first = sorted(standing, key=lambda pair: pair[0], reverse=True)
    return [
        Revert(query, records=records, sinks=sinks, first_epoch=epoch + 1, fence=fence, clock=clock)
        for _, records in newest_first
    ]


def check_native(sink: OnePhaseSink | None, *, planned: int, epoch: int) -> None:
    """Refuse to go back before what one of Spark's own sinks has written, or begun to.

    Args:
        sink: the query's; None for one with two-phase sinks.
        planned: the last batch that Spark has planned.
        epoch: the last one that stays.

    Raises:
        RevertError: the sink's output is unknown.
    """
    if sink is not None and planned > epoch:
        raise _irreversible(sink.name)


def runs_after(storage: Storage, epoch: int) -> set[str]:
    """Return the runs that have published epochs after *epoch* which are not reverted."""
    runs = set()
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        for number in records.active_epochs_after(epoch):
            record = records.published(number)
            if record is not None:
                runs.add(record.run_id)
    return runs


def has_written(storage: Storage, run_id: str) -> bool:
    """Whether a run has pre-committed or published an epoch of a query, under any of its ids."""
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        if any(run == run_id for *_, run in records.history().ranges):
            return True
        if any(record.run_id == run_id for record in records.all()):
            return True
    return False


class Revert:
    """Reverts what was written under one id of a query, from one epoch on.

    No query may run on the checkpoint meanwhile: the caller holds the lease.

    Args:
        query: the query's name.
        records: its records.
        sinks: all that it has written to.
        first_epoch: this epoch and all later ones are reverted, whatever their runs.
        fence: the caller's lease.
        clock: for the record's times.
    """

    def __init__(
        self,
        query: str,
        *,
        records: EpochRecords,
        sinks: Sequence[Sink | OnePhaseSink],
        first_epoch: int,
        fence: Fence,
        clock: Clock,
    ) -> None:
        self._query = query
        self._records = records
        self._native = [sink for sink in sinks if isinstance(sink, OnePhaseSink)]
        self._sinks = [sink for sink in sinks if not isinstance(sink, OnePhaseSink)]
        self._first_epoch = first_epoch
        self._fence = fence
        self._clock = clock

    def check(self) -> None:
        """Refuse an impossible revert; nothing is removed or recorded.

        Raises:
            RevertError: a revert from an earlier epoch has not ended, a record was folded away, a
                sink is missing, or a sink cannot remove exactly what it published.
        """
        self._plan()

    def revert(self) -> None:
        """Remove what was published from every sink.

        Raises:
            RevertError: as :meth:`check`.
            LeaseLostError: another driver has taken over; the next call continues.

        Crash safety: calling it again completes it.
        Idempotent: by query id and first epoch.
        """
        begun = self._records.revert()
        if begun is not None and begun.done and begun.first_epoch <= self._first_epoch:
            return
        first, work = self._plan()
        if not work:
            return
        self._fence.check()
        intent = RevertRecord(
            query_id=self._records.query_id,
            first_epoch=first,
            began=to_iso(self._clock.now()),
        )
        self._records.put_revert(intent)
        failpoints.hit("revert.intended")
        for sink, committables in work:
            sink.revert(committables, self._fence)
            failpoints.hit("revert.removed_one")
        self._fence.check()
        self._records.put_revert(dataclasses.replace(intent, done=to_iso(self._clock.now())))
        failpoints.hit("revert.done")

    def _plan(self) -> tuple[int, list[tuple[RevertibleSink, list[Committable]]]]:
        """Return the first epoch written, and for each sink the committables, newest first."""
        for native in self._native:
            raise _irreversible(native.name)
        begun = self._records.revert()
        # One that began later is a part of this one: of an id that began in the middle, the intent
        # names its own first epoch.
        if begun is not None and begun.done is None and begun.first_epoch < self._first_epoch:
            msg = (
                f"{self._records.url}: epoch {begun.first_epoch} on is being reverted, which began "
                f"at {begun.began}; finish that first"
            )
            raise RevertError(msg)
        chosen = self._chosen()
        work = [(_revertible(s), self._committables(s, chosen)) for s in self._sinks_of(chosen)]
        for sink, committables in work:
            sink.check_revert(committables)
        return min((record.epoch for record in chosen), default=self._first_epoch), work

    def _chosen(self) -> list[EpochRecord]:
        """Return the records, newest first, including those of unpublished epochs."""
        found = list(self._records.all())
        self._check_all_recorded()
        chosen = [record for record in found if record.epoch >= self._first_epoch]
        return sorted(chosen, key=lambda r: (r.epoch, r.token), reverse=True)

    def _check_all_recorded(self) -> None:
        history = self._records.history()
        if history.own_epochs_after(self._first_epoch - 1):
            msg = (
                f"{self._records.url}: records of epochs up to {history.last} were folded "
                "away, so these cannot be reverted; restore a savepoint into a new job "
                "directory and rebuild the output instead"
            )
            raise RevertError(msg)

    def _sinks_of(self, chosen: Sequence[EpochRecord]) -> list[Sink]:
        by_name = {sink.name: sink for sink in self._sinks}
        names = {part["name"] for record in chosen for part in record.sinks}
        if missing := sorted(names - set(by_name)):
            msg = (
                f"query {self._query!r}: rows were written to {missing[0]!r}, which the job "
                "no longer writes to; put it back"
            )
            raise RevertError(msg)
        return [sink for sink in self._sinks if sink.name in names]

    def _committables(self, sink: Sink, chosen: Sequence[EpochRecord]) -> list[Committable]:
        return [
            committable_of(self._query, record, part)
            for record in chosen
            for part in record.sinks
            if part["name"] == sink.name
        ]


def _revertible(sink: Sink) -> RevertibleSink:
    if not isinstance(sink, RevertibleSink):
        raise _irreversible(sink.name)
    return sink


def _irreversible(name: str) -> RevertError:
    msg = (
        f"{name}: what it has written cannot be reverted; use a sink that can remove an epoch "
        "(files, delta, iceberg, sql) for a run that may be replayed"
    )
    return RevertError(msg)
