"""Revert of published epochs, those at the end of a query's history, in every sink.

The operation that reverts them is in the journal before the first row is removed, so the next call
continues instead of running the query on half-reverted outputs. The query's id has ended with it:
the restored checkpoint gets a new one, and a driver of the old one that wakes up later finds its
epochs reverted in every sink.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol, TypeGuard

from airflow_provider.runtime.api.sinks import OnePhaseSink, RevertibleSink, SliceSink
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.errors import RevertError
from airflow_provider.runtime.errors.fixes import RESTORE_ELSEWHERE
from airflow_provider.runtime.jobdir.epochs import EpochRecords, query_ids
from airflow_provider.runtime.sinks.committer import committable_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from airflow_provider.runtime.api.sinks import Committable, Fence, Sink
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord


class OutputOfQuery(Protocol):
    """A query as far as a rewind needs it: its name, and the sinks that it writes to."""

    @property
    def name(self) -> str:
        """The query's name."""

    @property
    def sinks(self) -> Sequence[Sink]:
        """The two-phase sinks."""

    @property
    def native(self) -> OnePhaseSink | None:
        """Spark's own sink, if it writes to one."""


def revert_after(
    query: OutputOfQuery,
    *,
    storage: Storage,
    epoch: int,
    fence: Fence,
    clock: Clock,
    is_replay: bool = False,
) -> list[Revert]:
    """Return the reverts of all that a query has published after *epoch*, under any of its ids.

    A restored checkpoint has a new id and continues the epochs, so the output before and after the
    restore is recorded under different ids.
    """
    found = [EpochRecords(storage, query_id) for query_id in query_ids(storage)]
    standing = [(max(after), r) for r in found if (after := r.active_epochs_after(epoch))]
    newest_first = sorted(standing, key=lambda pair: pair[0], reverse=True)
    sinks: list[Sink | OnePhaseSink] = [*query.sinks]
    sinks += [query.native] if query.native is not None else []
    return [
        Revert(
            query.name,
            records=records,
            sinks=sinks,
            first_epoch=epoch + 1,
            fence=fence,
            clock=clock,
            is_replay=is_replay,
        )
        for _, records in newest_first
    ]


def check_native(sink: OnePhaseSink | None, *, planned: int, epoch: int) -> None:
    """Refuse to go back before what one of Spark's own sinks has written, or begun to."""
    if sink is not None and planned > epoch:
        raise _irreversible(sink.name)


def runs_after(storage: Storage, epoch: int, committed: int) -> set[str]:
    """Return the runs that have written epochs after *epoch* which are not reverted.

    One that Spark has committed, up to *committed*, may be visible and not recorded as published.
    """
    runs = set()
    for query_id in query_ids(storage):
        records = EpochRecords(storage, query_id)
        found = records.find()
        for number in records.active_epochs_after(epoch):
            of = records.counting if number <= committed else records.published
            record = of(number, found)
            if record is not None:
                runs.add(record.run_id)
    return runs


@dataclasses.dataclass(frozen=True)
class Revert:
    """Reverts the epochs from *first_epoch* on under one id of a query, across all its runs.

    If *is_replay*, a run follows: its commit replaces the slices that these epochs have written.
    """

    query: str
    records: EpochRecords
    sinks: Sequence[Sink | OnePhaseSink]
    first_epoch: int
    fence: Fence
    clock: Clock
    is_replay: bool = False

    def check(self) -> None:
        """Refuse an impossible revert; nothing is removed or recorded."""
        self._plan()

    def revert(self) -> None:
        """Remove the published rows from every sink, or leave them to the replay's commit.

        Crash safety: calling it again completes it.
        Idempotent: by query id and first epoch.
        """
        taken = self.records.find().reverted_from
        if taken is not None and taken <= self.first_epoch:
            return
        first, work = self._plan()
        if not work:
            return
        for sink, committables in work:
            if self._is_left(sink, committables):
                sink.supersede(committables, self.fence)
            else:
                sink.revert(committables, self.fence)
            failpoints.hit("revert.removed_one")
        self.fence.check()
        self.records.put_reverted(first, to_iso(self.clock.now()))
        failpoints.hit("revert.done")

    def _plan(self) -> tuple[int, list[tuple[RevertibleSink, list[Committable]]]]:
        for own in self.sinks:
            if isinstance(own, OnePhaseSink):
                raise _irreversible(own.name)
        chosen = self._chosen()
        work = [(_revertible(s), self._committables(s, chosen)) for s in self._sinks_of(chosen)]
        for sink, committables in work:
            if not self._is_left(sink, committables):
                sink.check_revert(committables)
        return min((record.epoch for record in chosen), default=self.first_epoch), work

    def _is_left(
        self, sink: RevertibleSink, committables: Sequence[Committable]
    ) -> TypeGuard[SliceSink]:
        return self.is_replay and isinstance(sink, SliceSink) and sink.will_replace(committables)

    def _chosen(self) -> list[EpochRecord]:
        found = list(self.records.all())
        self._check_all_recorded()
        chosen = [record for record in found if record.epoch >= self.first_epoch]
        return sorted(chosen, key=lambda r: (r.epoch, r.token), reverse=True)

    def _check_all_recorded(self) -> None:
        history = self.records.history()
        if history.own_epochs_after(self.first_epoch - 1):
            raise RevertError(
                f"{self.records.url}: records of epochs up to {history.last} were folded "
                f"away, so these cannot be reverted; {RESTORE_ELSEWHERE}"
            )

    def _sinks_of(self, chosen: Sequence[EpochRecord]) -> list[Sink]:
        two_phase = [sink for sink in self.sinks if not isinstance(sink, OnePhaseSink)]
        names = {part["name"] for record in chosen for part in record.sinks}
        if missing := sorted(names - {sink.name for sink in two_phase}):
            raise RevertError(
                f"query {self.query!r}: rows were written to {missing[0]!r}, which the job "
                "no longer writes to; put it back"
            )
        return [sink for sink in two_phase if sink.name in names]

    def _committables(self, sink: Sink, chosen: Sequence[EpochRecord]) -> list[Committable]:
        return [
            committable_of(self.query, record, part)
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


@dataclasses.dataclass(frozen=True)
class Written:
    """Published rows."""

    epochs: int = 0
    rows: int = 0
    sinks: frozenset[str] = frozenset()
    folded: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(
            self.epochs + other.epochs,
            self.rows + other.rows,
            self.sinks | other.sinks,
            self.folded + other.folded,
        )

    def __sub__(self, other: Written) -> Written:
        return Written(
            self.epochs - other.epochs,
            self.rows - other.rows,
            self.sinks,
            self.folded - other.folded,
        )

    def __str__(self) -> str:
        where = f" in {', '.join(sorted(self.sinks))}" if self.sinks else ""
        unknown = f" (and those of {self.folded} folded epochs)" if self.folded else ""
        return f"{self.epochs:,} epoch(s), {self.rows:,} row(s){unknown}{where}"


@dataclasses.dataclass(frozen=True)
class Output:
    """The rows that a run has written: those that are visible, and those that were reverted."""

    standing: Written
    reverted: Written


def output_of(committables: Iterable[Storage], run_id: str) -> Output:
    """Return what a run has written to the folders of its queries, under any of their ids."""
    standing, reverted = Written(), Written()
    for storage in committables:
        for query_id in query_ids(storage):
            found = _under_id(EpochRecords(storage, query_id), run_id)
            standing, reverted = standing + found.standing, reverted + found.reverted
    return Output(standing, reverted)


def _under_id(records: EpochRecords, run_id: str) -> Output:
    reverted_from = records.find().reverted_from
    standing, reverted = Written(), Written()
    for epoch, written in _published(records, run_id, reverted_from):
        if reverted_from is not None and epoch >= reverted_from:
            reverted += written
        else:
            standing += written
    return Output(standing, reverted)


def _published(
    records: EpochRecords, run_id: str, cut: int | None
) -> Iterable[tuple[int, Written]]:
    history = records.history()
    for first, last, _, whose in history.ranges:
        if whose == run_id:
            after = last + 1 if cut is None else min(max(cut, first), last + 1)
            for begin, end in ((first, after), (after, last + 1)):
                if begin < end:
                    yield begin, Written(epochs=end - begin, folded=end - begin)
    for record in records.all():
        is_folded = history.token_of(record.epoch) is not None
        if record.run_id == run_id and record.committed is not None and not is_folded:
            names = frozenset(part["name"] for part in record.sinks)
            yield record.epoch, Written(epochs=1, rows=record.rows_written, sinks=names)
