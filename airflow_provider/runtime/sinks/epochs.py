"""The epochs of one query: pre-commit in Spark's batch, commit after Spark's commit, recovery.

An epoch's record is put when all sinks have staged it, before Spark can write ``commits/<epoch>``.
The commit log therefore decides: with a commit the epoch is published, without one it waits,
because Spark will run the batch again with the same offsets; what the second run has staged then
counts. It is not aborted before: the Spark of a driver that was taken for dead may wake up and
still commit the batch, and then its rows are the ones that count.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.errors import CheckpointError, LeaseLostError, SinkError
from airflow_provider.runtime.sinks.protocol import Committable, EpochId, Sink, Staged
from airflow_provider.runtime.sinks.records import (
    EpochRecord,
    EpochRecords,
    Found,
    query_ids,
)
from airflow_provider.runtime.sinks.recovery import check_complete, plan_recovery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.checkpoint import CommitLog
    from airflow_provider.runtime.lease import Lease
    from airflow_provider.runtime.storage import Storage

log = logging.getLogger(__name__)

CountInput = Callable[[], "int | None"]

KEEP_EPOCHS = 100
"""How many published epochs keep a record of their own, whatever run they are of."""


class EpochCommitter:
    """Takes the epochs of one query through both phases.

    Thread safety: :meth:`pre_commit` runs in Spark's callback thread, the rest in the driver's.

    Args:
        query: the query's name.
        storage: its ``committables`` folder.
        logs: what says which of its batches are committed: its checkpoint, in STREAMING.
        sinks: where its output goes; they share every epoch.
        lease: the right to commit.
        run_id: the run on whose behalf epochs are written.
        clock: for the records' times.
        keep_runs: the runs of which every epoch keeps its record, so that they can be taken back;
            None for this one. Of others the last :data:`KEEP_EPOCHS` do.
    """

    def __init__(
        self,
        query: str,
        *,
        storage: Storage,
        logs: CommitLog,
        sinks: Sequence[Sink],
        lease: Lease,
        run_id: str,
        clock: Clock,
        keep_runs: Collection[str] | None = None,
    ) -> None:
        self._query = query
        self._storage = storage
        self._logs = logs
        self._sinks = sinks
        self._lease = lease
        self._run_id = run_id
        self._clock = clock
        self._keep_runs = {run_id} if keep_runs is None else set(keep_runs)
        self._lock = threading.Lock()
        self._pending: dict[int, EpochRecord] = {}  # Invariant: the records that count
        self._open: int | None = None  # pending by an earlier driver; Spark may run it again
        self._superseded: list[EpochRecord] = []  # of an earlier driver, until we publish ours
        self._last: EpochRecord | None = None

    # --- recovery -------------------------------------------------------------------------------

    def recover(self, through: int | None = None) -> None:
        """Bring the sinks in line with Spark's commit log; call before the query starts.

        Epochs that Spark committed are published, a later one waits for its batch to be run again,
        and staged data that no record references is removed.

        Args:
            through: publish epochs up to this one only: what a drain has produced waits for
                ``finish()``. None for all.

        Raises:
            CheckpointError: Spark's log and the records contradict each other.

        Crash safety: calling it again completes it.
        """
        query_id = self._logs.query_id()
        self._check_same_query(query_id)
        if query_id is None:
            return
        records = EpochRecords(self._storage, query_id)
        records.check_standing()
        last_commit = self._logs.position().last_commit
        found = records.find()
        check_complete(found, records.history(), last_commit, where=records.url, log=self._logs.url)
        plan = plan_recovery(found, last_commit, published_token=_published_tokens(records, found))
        failpoints.hit("recover.planned")
        for epoch, token in plan.recorded:
            records.forget_precommit(epoch, token)
        for epoch, token in plan.obsolete:
            self._abort(records.precommitted(epoch, token))
        failpoints.hit("recover.aborted")
        counting = (*plan.publish, *plan.waiting)
        self._pending = {epoch: records.precommitted(epoch, token) for epoch, token in counting}
        self._open = plan.waiting[0][0] if plan.waiting else None
        if last_commit >= 0:
            self._last = self._pending.get(last_commit) or records.published(last_commit)
        self.commit_through(last_commit if through is None else min(through, last_commit))
        failpoints.hit("recover.published")
        self.remove_leftovers()
        failpoints.hit("recover.cleaned")

    def remove_leftovers(self) -> None:
        """Shut older drivers out, remove what they staged in vain, and fold old records away.

        Idempotent.
        """
        query_id = self._logs.query_id()
        if query_id is None:
            return
        records = EpochRecords(self._storage, query_id)
        found = records.find()
        is_garbage = self._garbage_of(records, found)
        for sink in self._sinks:
            sink.recover(query_id, is_garbage, self._lease)
        self._fold(records, found)

    def _garbage_of(self, records: EpochRecords, found: Found) -> Callable[[int, int], bool]:
        """Return what tells staged data that nothing will ever publish.

        What a driver that may still be alive staged for an epoch that is not published is not: it
        may be about to put its record, and its Spark to commit the batch.
        """
        history = records.history()
        newest = max((history.last_epoch, *found.published))

        def is_garbage(epoch: int, token: int) -> bool:
            if token in found.precommitted.get(epoch, ()):
                return False
            if epoch > newest:
                return token == self._lease.token or self._lease.outlived(token)
            record = records.published(epoch)
            counts = record.token if record is not None else history.token_of(epoch)
            return token != counts

        return is_garbage

    def _check_same_query(self, query_id: str | None) -> None:
        for other in query_ids(self._storage):
            records = EpochRecords(self._storage, other)
            taken = records.take_back()
            settled = taken is not None and taken.done is not None
            if other == query_id or settled or not records.find().published:
                continue
            msg = (
                f"{records.url}: epochs of query id {other} are published, but the checkpoint "
                f"{self._logs.url} is of {query_id or 'no query yet'}; it was removed or replaced "
                "by hand, and running on would publish the same rows again: restore it, or start "
                "a new job directory and output"
            )
            raise CheckpointError(msg)

    def _fold(self, records: EpochRecords, found: Found) -> None:
        """Fold the oldest published records into the history; the newest ones stay."""
        old = []
        for epoch in found.published[: -KEEP_EPOCHS or None]:
            record = records.published(epoch)
            if record is None or record.run_id in self._keep_runs:
                break
            old.append(record)
        if old:
            records.put_history(records.history().with_epochs(old))
            failpoints.hit("recover.folded")
        for record in old:
            records.forget_published(record.epoch)

    # --- first phase ----------------------------------------------------------------------------

    def pre_commit(self, df: DataFrame, epoch: int, count_input: CountInput) -> None:
        """Stage *df* in every sink and record it; Spark commits the batch when this returns.

        Args:
            df: the batch's output.
            epoch: the batch.
            count_input: called after the batch has run; returns its input rows, None if unknown.

        Raises:
            LeaseLostError: another driver has taken over; nothing was recorded.

        Crash safety: staged data without a record is removed by :meth:`recover`.
        """
        self._lease.check()
        query_id = self._logs.query_id()
        if query_id is None:
            msg = f"{self._logs.url}: Spark runs batch {epoch} but has written no metadata"
            raise SinkError(msg)
        records = EpochRecords(self._storage, query_id)
        staged = self._stage(df, EpochId(self._query, query_id, epoch, self._lease.token))
        failpoints.hit("sink.staged")
        before = self._before(records, epoch)
        record = EpochRecord(
            epoch=epoch,
            query_id=query_id,
            run_id=self._run_id,
            token=self._lease.token,
            rows_read=_add(before.rows_read if self._is_ours(before) else 0, count_input()),
            sinks=[self._part(name, part, before) for name, part in staged.items()],
        )
        self._lease.check()
        if not records.put_precommit(record):
            msg = f"{records.url}: lease {record.token} has pre-committed epoch {epoch} before"
            raise LeaseLostError(msg)
        failpoints.hit("sink.precommitted")
        with self._lock:
            if epoch in self._pending:
                self._superseded.append(self._pending[epoch])
            self._pending[epoch] = record
            self._open = None  # Spark has run it again, or gone past it
            self._last = record

    def _stage(self, df: DataFrame, epoch: EpochId) -> dict[str, Staged]:
        # A second sink must not run the batch again: a query may compute something different each
        # time, and state would be written twice.
        several = len(self._sinks) > 1
        rows = df.persist() if several else df
        try:
            return {sink.name: sink.stage(rows, epoch) for sink in self._sinks}
        finally:
            if several:
                rows.unpersist()

    def _part(self, name: str, staged: Staged, before: EpochRecord | None) -> dict[str, Any]:
        return {
            "name": name,
            "rows": staged.rows,
            "run_rows": staged.rows + self._run_rows(name, before),
            "data": staged.data,
        }

    def _before(self, records: EpochRecords, epoch: int) -> EpochRecord | None:
        """Return the record of the epoch before; usually the last one, else one from storage."""
        if self._last is not None and self._last.epoch == epoch - 1:
            return self._last
        return self._pending.get(epoch - 1) or records.published(epoch - 1)

    def give_up_open(self) -> None:
        """Remove what was staged for a batch in which the query was stopped: it will run again.

        The query must not run. What an earlier driver has staged for the batch stays.
        """
        query_id = self._logs.query_id()
        if query_id is None:
            return
        last_commit, token = self._logs.position().last_commit, self._lease.token
        records = EpochRecords(self._storage, query_id)
        # From the storage: a record may have been put, and the answer lost.
        for epoch, tokens in records.find().precommitted.items():
            if epoch <= last_commit or token not in tokens:
                continue
            record = records.precommitted(epoch, token)
            with self._lock:
                if epoch in self._pending and self._pending[epoch].token == token:
                    del self._pending[epoch]
            self._abort(record)
            self._last = self._before(records, epoch)

    # --- second phase ---------------------------------------------------------------------------

    def commit_ready(self) -> None:
        """Publish what Spark has committed; looks only for commits that are still missing."""
        for epoch in self._waiting():
            if epoch == self._open or not self._logs.is_committed(epoch):
                return
            self.commit_through(epoch)

    def has_pending(self) -> bool:
        """Tell whether an epoch that Spark has committed waits to be published."""
        return any(self._logs.is_committed(epoch) for epoch in self._waiting())

    def commit_through(self, last_commit: int) -> None:
        """Publish, in order, every pending epoch up to *last_commit* inclusive.

        Spark must not be running one of them again.

        Raises:
            LeaseLostError: another driver has taken over; what is left is published by it.
            SinkError: a sink could not; the next start goes on.
        """
        for epoch in self._waiting():
            if epoch > last_commit:
                return
            self._publish(self._pending[epoch])
            with self._lock:
                del self._pending[epoch]

    def _waiting(self) -> list[int]:
        with self._lock:
            return sorted(self._pending)

    def _publish(self, record: EpochRecord) -> None:
        # After the look at Spark's log, never before: see plan_recovery.
        self._lease.check()
        for sink, committable in self._parts(record):
            sink.commit(committable, self._lease)
        failpoints.hit("sink.published")
        records = EpochRecords(self._storage, record.query_id)
        done = dataclasses.replace(record, committed=to_iso(self._clock.now()))
        records.put_published(done)
        failpoints.hit("sink.committed")
        records.forget_precommit(record.epoch, record.token)
        failpoints.hit("sink.forgotten")
        while self._superseded:
            self._abort(self._superseded.pop())
        log.debug("query=%s epoch=%s published", self._query, record.epoch)

    def _parts(self, record: EpochRecord) -> Iterator[tuple[Sink, Committable]]:
        by_name = {sink.name: sink for sink in self._sinks}
        for part in record.sinks:
            sink = by_name.get(part["name"])
            if sink is None:
                msg = (
                    f"query {self._query!r}: epoch {record.epoch} was pre-committed for sink "
                    f"{part['name']!r}, which the job no longer writes to; put it back"
                )
                raise SinkError(msg)
            yield sink, committable_of(self._query, record, part)

    def _abort(self, record: EpochRecord) -> None:
        by_name = {sink.name: sink for sink in self._sinks}
        for part in record.sinks:
            if part["name"] in by_name:
                by_name[part["name"]].abort(committable_of(self._query, record, part))
        EpochRecords(self._storage, record.query_id).forget_precommit(record.epoch, record.token)

    # --- what is known --------------------------------------------------------------------------

    def last_record(self) -> EpochRecord | None:
        """Return the newest epoch's record that holds; None before the first epoch."""
        return self._last

    def run_rows(self, sink_name: str) -> int:
        """Return how many rows the run has given the sink so far."""
        return self._run_rows(sink_name, self._last)

    def rows_read(self) -> int | None:
        """Return how many input rows the run has read so far, None when not known."""
        return self._last.rows_read if self._is_ours(self._last) else 0

    def _run_rows(self, sink_name: str, record: EpochRecord | None) -> int:
        if not self._is_ours(record):
            return 0
        return next((s["run_rows"] for s in record.sinks if s["name"] == sink_name), 0)

    def _is_ours(self, record: EpochRecord | None) -> TypeGuard[EpochRecord]:
        return record is not None and record.run_id == self._run_id


def committable_of(query: str, record: EpochRecord, part: dict[str, Any]) -> Committable:
    """Return what the sink of *part* pre-committed in *record*."""
    return Committable(
        EpochId(query, record.query_id, record.epoch, record.token), dict(part["data"])
    )


def _published_tokens(records: EpochRecords, found: Found) -> dict[int, int | None]:
    both = set(found.published) & set(found.precommitted)
    read = {epoch: records.published(epoch) for epoch in both}
    return {epoch: record.token if record else None for epoch, record in read.items()}


def _add(before: int | None, more: int | None) -> int | None:
    return None if before is None or more is None else before + more
