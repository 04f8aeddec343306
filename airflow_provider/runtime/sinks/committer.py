"""The epochs of one query: pre-commit in Spark's batch, commit after Spark's commit, recovery.

An epoch's record is put when all sinks have staged it, before Spark can write ``commits/<epoch>``.
The commit log therefore decides: with a commit the epoch is published, without one it waits,
because Spark will run the batch again with the same offsets; what the second run has staged then
counts. It is not aborted before: the Spark of a driver presumed dead may wake up and still commit
the batch, and then its rows are the ones that count.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from airflow_provider.runtime.api.sinks import (
    Committable,
    EpochId,
    Fence,
    PrunableSink,
    Sink,
    Staged,
)
from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, to_iso
from airflow_provider.runtime.errors import LeaseLostError, RowCountsError, SinkError
from airflow_provider.runtime.jobdir.epoch_documents import (
    NOTHING_COUNTED,
    EpochRecord,
    add_rows,
    totals_after,
)
from airflow_provider.runtime.jobdir.epochs import KEEP_EPOCHS, EpochListing, EpochRecords, fold
from airflow_provider.runtime.jobdir.expiry import put_back_offsets
from airflow_provider.runtime.sinks.recovery import (
    QueryFence,
    Recovery,
    check_complete,
    check_not_ahead,
    check_same_query,
    plan_recovery,
    unrecorded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.api.sinks import Writer
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.logged_batch import LoggedBatch
    from airflow_provider.runtime.checkpoint.logs import CommitLog
    from airflow_provider.runtime.jobdir.epoch_documents import CountRows, LateRows
    from airflow_provider.runtime.jobdir.lease import Lease

log = logging.getLogger(__name__)

FOLD_EPOCHS = 100
"""After how many published epochs a driver folds the records of older ones."""


class QuarantinedRows(NamedTuple):
    """Rows that a batch has taken out, and the number of those that were counted as it ran."""

    rows: DataFrame
    expected: int


class EpochCommitter:
    """Takes the epochs of one query through both phases.

    Thread safety: :meth:`pre_commit` runs in Spark's callback thread, the rest in the driver's.
    """

    def __init__(
        self,
        query: str,
        *,
        storage: Storage,
        logs: CommitLog,
        sinks: Sequence[Sink],
        quarantine: Sink | None = None,
        lease: Lease,
        run_id: str,
        clock: Clock,
        keep_runs: Collection[str] | None = None,
        writer: Writer | None = None,
    ) -> None:
        self._query = query
        self._writer = writer
        self._storage = storage
        self._logs = logs
        self._sinks = sinks
        self._quarantine = quarantine
        self._lease = lease
        self._run_id = run_id
        self._clock = clock
        self._keep_runs = {run_id} if keep_runs is None else set(keep_runs)
        self._token = lease.token
        self._lock = threading.Lock()
        # By epoch and token; the highest counts.
        self._waiting: dict[int, dict[int, EpochRecord]] = {}
        self._settled = -1  # Invariant: every epoch up to here is published
        self._last: EpochRecord | None = None
        self._id: str | None = None
        self._published: dict[int, EpochRecord] = {}  # the newest, by this driver
        self._unfolded = 0

    # --- recovery -------------------------------------------------------------------------------

    def recover(self, through: int | None = None) -> None:
        """Bring the sinks in line with Spark's commit log; call before the query starts.

        Epochs that Spark has committed are published, a later one waits until its batch runs again,
        and staged data without a record is removed. Only epochs up to *through* are published,
        because a drain's output waits for ``finish()``; None for all.

        Raises:
            CheckpointError: Spark's log and the records contradict each other.

        Crash safety: calling it again completes it.
        """
        query_id = self._logs.query_id()
        check_same_query(self._storage, query_id, self._logs.url)
        if query_id is None:
            return
        records = EpochRecords(self._storage, query_id)
        records.ensure_not_rewound()
        last_commit = self._logs.position().last_commit
        found = records.find()
        self._settled = check_complete(found, last_commit, where=records.url, log=self._logs.url)
        if newest := records.published(max(found.published, default=-1)):
            self._check_quarantined(newest)
        check_not_ahead(self._sinks, query_id, max(found.newest, *found.precommitted, -1))
        plan = plan_recovery(found, records.published_tokens(found))
        failpoints.hit("recover.planned")
        self._clear(records, plan)
        failpoints.hit("recover.aborted")
        for epoch, token in plan.waiting:
            self._add(records.precommitted(epoch, token))
        self._last = self._record_of(records, last_commit)
        if self._logs.checkpoint is not None:
            put_back_offsets(records, self._logs.checkpoint, last_commit, found)
        self.commit_through(last_commit if through is None else min(through, last_commit))
        failpoints.hit("recover.published")
        self.remove_leftovers()
        failpoints.hit("recover.cleaned")

    def repair_logs(self) -> None:
        """Put back what a late write has replaced of Spark's offset log. Idempotent."""
        query_id, checkpoint = self._logs.query_id(), self._logs.checkpoint
        if query_id is not None and checkpoint is not None:
            records = EpochRecords(self._storage, query_id)
            put_back_offsets(records, checkpoint, self._logs.position().last_commit)

    def remove_leftovers(self) -> None:
        """Shut older drivers out, remove their leftovers, and fold old records. Idempotent."""
        query_id = self._logs.query_id()
        if query_id is None:
            return
        records = EpochRecords(self._storage, query_id)
        found = records.find()
        self._clear(records, plan_recovery(found, records.published_tokens(found)))
        is_garbage = self._garbage_of(records, found)
        for sink in self._sinks:
            sink.recover(query_id, is_garbage, self._fence)
        self._fold(records)

    def _fold(self, records: EpochRecords, *, unpacks: bool = True) -> None:
        folded = fold(records, keep_runs=self._keep_runs, known=self._published, unpacks=unpacks)
        for sink in self._sinks:
            if isinstance(sink, PrunableSink):
                sink.prune(records.query_id, folded)

    def _check_quarantined(self, newest: EpochRecord) -> None:
        for part in newest.sinks:
            for sink in self._sinks:
                if sink.name == part["name"] and isinstance(sink, PrunableSink):
                    sink.check_published(committable_of(self._query, newest, part))

    def _clear(self, records: EpochRecords, plan: Recovery) -> None:
        for epoch, token in plan.recorded:
            records.delete_precommit(epoch, token)
        for epoch, token in plan.obsolete:
            self._abort(records.precommitted(epoch, token))

    def _garbage_of(self, records: EpochRecords, found: EpochListing) -> Callable[[int, int], bool]:
        """Return a test for staged data that nothing will ever publish.

        An unpublished epoch's data from a driver that may be alive is not garbage: that driver may
        be about to write its record, and its Spark to commit the batch.
        """

        def is_garbage(epoch: int, token: int) -> bool:
            if token in found.precommitted.get(epoch, ()):
                return False
            if epoch > found.newest:
                return token == self._token or self._lease.outlived(token)
            return token != records.token_of(epoch, found)

        return is_garbage

    # --- first phase ----------------------------------------------------------------------------

    def pre_commit(
        self,
        df: DataFrame,
        epoch: int,
        count: CountRows,
        *,
        quarantined: Callable[[], QuarantinedRows | None] = lambda: None,
        logged: LoggedBatch | None = None,
        check: Callable[[EpochRecord], None] = lambda _: None,
    ) -> None:
        """Stage *df* in every sink and record it; Spark commits the batch when this returns.

        *count* is asked when *df* is staged, and then *quarantined*, whose rows go to their sink.

        Raises:
            LeaseLostError: another driver has taken over; nothing was recorded.
            RowCountsError: not as many rows were quarantined as were taken out.

        Crash safety: staged data without a record is removed by :meth:`recover`.
        """
        self._lease.check()
        query_id = self._begun_id()
        if query_id is None:
            raise SinkError(f"{self._logs.url}: batch {epoch} has written no metadata")
        records = EpochRecords(self._storage, query_id)
        staged = self._stage(df, named := EpochId(self._query, query_id, epoch, self._token))
        failpoints.hit("sink.staged")
        counts, quarantined_rows = count(), self._stage_quarantined(quarantined(), named, staged)
        before = self._before(records, epoch)
        ours = before if self._is_ours(before) else None
        record = EpochRecord(
            epoch=epoch,
            query_id=query_id,
            run_id=self._run_id,
            token=self._token,
            sinks=[self._part(name, part, before) for name, part in staged.items()],
            offsets=logged.offsets if logged is not None else None,
            log_digests=dict(logged.digests) if logged is not None else {},
            **totals_after(ours, counts, quarantined_rows),
        )
        check(record)
        self._lease.check()
        if not records.put_precommit(record):
            raise LeaseLostError(
                f"{records.url}: lease {record.token} has pre-committed epoch {epoch} before"
            )
        failpoints.hit("sink.precommitted")
        self._add(record)
        self._last = record

    def _begun_id(self) -> str | None:
        if self._id is None:
            self._id = self._logs.query_id()
        return self._id

    def _stage(self, df: DataFrame, epoch: EpochId) -> dict[str, Staged]:
        sinks = [sink for sink in self._sinks if sink is not self._quarantine]
        several = len(sinks) > 1  # each run of the batch may compute something different
        rows = df.persist() if several else df
        try:
            return {sink.name: sink.stage(rows, epoch) for sink in sinks}
        finally:
            if several:
                rows.unpersist()

    def _stage_quarantined(
        self, quarantined: QuarantinedRows | None, epoch: EpochId, staged: dict[str, Staged]
    ) -> int | None:
        if quarantined is None:
            return 0
        if self._quarantine is None:
            raise RowCountsError(f"query {self._query!r}: no sink is given for quarantined rows")
        part = self._quarantine.stage(quarantined.rows, epoch)
        failpoints.hit("sink.quarantined")
        if part.rows is not None and part.rows != quarantined.expected:
            raise RowCountsError(
                not_quarantined(self._query, epoch.epoch, quarantined.expected, part.rows)
            )
        staged[self._quarantine.name] = part
        return part.rows

    def _part(self, name: str, staged: Staged, before: EpochRecord | None) -> dict[str, Any]:
        return {
            "name": name,
            "rows": staged.rows,
            "run_rows": add_rows(self._run_rows(name, before), staged.rows),
            "data": staged.data,
        }

    def _before(self, records: EpochRecords, epoch: int) -> EpochRecord | None:
        if self._last is not None and self._last.epoch == epoch - 1:
            return self._last
        before = self._record_of(records, epoch - 1)
        if before is None and epoch - 1 > self._settled:  # an overtaken driver's Spark committed it
            self._find(records, epoch - 1)
            before = self._record_of(records, epoch - 1)
        return before

    def _record_of(self, records: EpochRecords, epoch: int) -> EpochRecord | None:
        if epoch < 0:
            return None
        with self._lock:
            staged = self._waiting.get(epoch)
        return staged[max(staged)] if staged else records.published(epoch)

    def give_up_open(self) -> None:
        """Count up to Spark's last commit, after the query has stopped in the middle of a batch.

        What is staged for the batch stays: a commit that was reported as failed may still take
        effect; if it does not, the batch's next run replaces what it has staged.
        """
        query_id = self._logs.query_id()
        if query_id is not None:
            records = EpochRecords(self._storage, query_id)
            self._last = self._record_of(records, self._logs.position().last_commit)

    def begin_again(self) -> None:
        """Stage under the driver's next token from now on; the query must not run."""
        self.give_up_open()
        self._lease.renew()
        self._token = self._lease.token

    # --- second phase ---------------------------------------------------------------------------

    def commit_ready(self) -> None:
        """Publish the epochs that Spark has committed; reads only commits not yet seen."""
        for epoch in self._epochs_waiting():
            if self._may_run_again(epoch) or not self._logs.is_committed(epoch):
                return
            self.commit_through(epoch)

    def has_pending(self) -> bool:
        return any(self._logs.is_committed(epoch) for epoch in self._epochs_waiting())

    def commit_through(self, last_commit: int) -> None:
        """Publish, in order, every unpublished epoch up to *last_commit* inclusive.

        Spark must not be running one of them again. The records of epochs that this driver has not
        staged are read again: until Spark began the next batch, an overtaken driver may have
        written its record, and its Spark committed the batch.

        Raises:
            LeaseLostError: another driver has taken over, and publishes the rest.
            SinkError: a sink failed; the next start continues.
            CheckpointError: Spark has committed a batch whose rows are not staged.
        """
        query_id = self._begun_id()
        if query_id is None:
            return
        records = EpochRecords(self._storage, query_id)
        for epoch in range(self._settled + 1, last_commit + 1):
            if self._token not in self._waiting.get(epoch, ()) and self._find(records, epoch):
                self._settled = epoch
                continue
            self._publish(epoch)

    def _epochs_waiting(self) -> list[int]:
        with self._lock:
            return sorted(self._waiting)

    def _may_run_again(self, epoch: int) -> bool:
        """Whether Spark may run the batch again, which an earlier driver or try has staged."""
        with self._lock:
            return self._token not in self._waiting[epoch] and epoch == max(self._waiting)

    def _add(self, record: EpochRecord) -> None:
        with self._lock:
            self._waiting.setdefault(record.epoch, {})[record.token] = record

    def _find(self, records: EpochRecords, epoch: int) -> bool:
        found = records.find()
        if found.is_published(epoch):
            return True
        tokens = found.precommitted.get(epoch)
        if not tokens:
            raise unrecorded(epoch, records.url, self._logs.url)
        for token in tokens:
            self._add(records.precommitted(epoch, token))
        return False

    def _publish(self, epoch: int) -> None:
        # After the look at Spark's log, never before. Records are put once, each under its own
        # token, so a driver that was overtaken cannot change which is the highest that counts.
        self._lease.check()
        staged = self._waiting[epoch]
        record = staged[max(staged)]
        for sink, committable in self._parts(record):
            sink.commit(committable, self._fence)
        failpoints.hit("sink.published")
        records = EpochRecords(self._storage, record.query_id)
        now, commit = to_iso(self._clock.now()), self._logs.commit_digest(epoch)
        done = dataclasses.replace(record, committed=now, commit=commit)
        records.put_published(done)
        failpoints.hit("sink.committed")
        records.delete_precommit(record.epoch, record.token)
        failpoints.hit("sink.forgotten")
        self._settled = epoch
        for token, other in staged.items():
            if token != record.token:
                self._abort(other)
        with self._lock:
            del self._waiting[epoch]
        if self._last is None or self._last.epoch < epoch:
            self._last = done
        self._remember(records, done)
        log.debug("query=%s epoch=%s published", self._query, epoch)

    def _remember(self, records: EpochRecords, done: EpochRecord) -> None:
        self._published[done.epoch] = done
        self._unfolded += 1
        if self._unfolded < FOLD_EPOCHS:
            return
        self._fold(records, unpacks=False)
        self._unfolded = 0
        for epoch in sorted(self._published)[:-KEEP_EPOCHS]:
            del self._published[epoch]

    @property
    def _fence(self) -> Fence:
        return QueryFence(self._lease, self._token)

    def _parts(self, record: EpochRecord) -> Iterator[tuple[Sink, Committable]]:
        by_name = {sink.name: sink for sink in self._sinks}
        for part in record.sinks:
            sink = by_name.get(part["name"])
            if sink is None:
                raise SinkError(
                    f"query {self._query!r}: epoch {record.epoch} was pre-committed for sink "
                    f"{part['name']!r}, which the job no longer writes to; put it back"
                )
            committable = committable_of(self._query, record, part)
            yield sink, dataclasses.replace(committable, writer=self._writer)

    def _abort(self, record: EpochRecord) -> None:
        by_name = {sink.name: sink for sink in self._sinks}
        for part in record.sinks:
            if part["name"] in by_name:
                by_name[part["name"]].abort(committable_of(self._query, record, part))
        EpochRecords(self._storage, record.query_id).delete_precommit(record.epoch, record.token)

    # --- what is known --------------------------------------------------------------------------

    def last_record(self) -> EpochRecord | None:
        return self._last

    def own_record(self) -> EpochRecord | None:
        """Return the record of the run's last epoch."""
        return self._last if self._is_ours(self._last) else None

    def run_rows(self, sink_name: str) -> int | None:
        return self._run_rows(sink_name, self._last)

    def rows_read(self) -> int | None:
        return self._last.rows_read if self._is_ours(self._last) else 0

    def late_rows(self) -> LateRows | None:
        return self._last.late_rows if self._is_ours(self._last) else {}

    def late_is_minimum(self) -> bool:
        return self._is_ours(self._last) and self._last.late_minimum

    def lost_rows(self) -> int | None:
        return self._last.lost_rows if self._is_ours(self._last) else 0

    def totals(self) -> Mapping[str, Any]:
        """Return the counts of the run so far, as the record of its last epoch has them."""
        return vars(self._last) if self._is_ours(self._last) else NOTHING_COUNTED

    def _run_rows(self, sink_name: str, record: EpochRecord | None) -> int | None:
        if not self._is_ours(record):
            return 0
        if self._quarantine is not None and sink_name == self._quarantine.name:
            return record.quarantined_rows  # not every epoch has some
        return next((s["run_rows"] for s in record.sinks if s["name"] == sink_name), 0)

    def _is_ours(self, record: EpochRecord | None) -> TypeGuard[EpochRecord]:
        return record is not None and record.run_id == self._run_id


def not_quarantined(query: str, epoch: int, expected: int, quarantined: int) -> str:
    """Return the message of a batch whose rows were not the same when they were read again."""
    return (
        f"query {query!r}: batch {epoch} has taken {expected:,} rows out, and {quarantined:,} were "
        "found when they were read again for their sink; nothing is published. A rule, or what is "
        "computed before it, gives another result each time, or the input has changed meanwhile"
    )


def committable_of(query: str, record: EpochRecord, part: dict[str, Any]) -> Committable:
    """Return what the sink of *part* pre-committed in *record*."""
    return Committable(
        EpochId(query, record.query_id, record.epoch, record.token), dict(part["data"])
    )
