"""The epochs of one query: pre-commit in Spark's batch, commit after Spark's commit, recovery.

``queries/<query>/committables/<epoch>.json`` is put when all sinks have staged, before Spark can
write ``commits/<epoch>``. The commit log therefore decides: with a commit the epoch is published,
without one it waits, because Spark will run the batch again with the same offsets; what the second
run has staged takes its place. It is not aborted before: the Spark of a driver that was taken for
dead may wake up and still commit the batch, and then its rows are the ones that count.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.clock import Clock, to_iso
from airflow_provider.runtime.errors import CheckpointError, LeaseLostError, SinkError
from airflow_provider.runtime.sinks.protocol import EpochId, Sink
from airflow_provider.runtime.storage import Document, Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime.checkpoint import CheckpointLogs
    from airflow_provider.runtime.lease import Lease

log = logging.getLogger(__name__)

CountInput = Callable[[], "int | None"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochRecord(Document):
    """``committables/<epoch>.json``: what each sink pre-committed for an epoch.

    Attributes:
        run_id: the run that wrote the epoch.
        token: the driver that wrote it.
        rows_read: input rows of the run up to and with this epoch, None when not known.
        sinks: for each sink its name, its rows in this epoch, its rows in the run so far
            (``run_rows``), and its committable.
        committed: when all sinks had published it; None before.
    """

    epoch: int
    query_id: str
    run_id: str
    token: int
    rows_read: int | None
    sinks: list[dict[str, Any]]
    committed: str | None = None


class EpochCommitter:
    """Takes the epochs of one query through both phases.

    Thread safety: :meth:`pre_commit` runs in Spark's callback thread, the rest in the driver's.

    Args:
        query: the query's name.
        storage: its ``committables`` folder.
        logs: its checkpoint.
        sinks: where its output goes; they share every epoch.
        lease: the right to commit.
        run_id: the run on whose behalf epochs are written.
        clock: for the records' times.
    """

    def __init__(
        self,
        query: str,
        *,
        storage: Storage,
        logs: CheckpointLogs,
        sinks: Sequence[Sink],
        lease: Lease,
        run_id: str,
        clock: Clock,
    ) -> None:
        self._query = query
        self._storage = storage
        self._logs = logs
        self._sinks = sinks
        self._lease = lease
        self._run_id = run_id
        self._clock = clock
        self._lock = threading.Lock()
        self._pending: dict[int, EpochRecord] = {}  # Invariant: staged by us, not yet published
        self._last: EpochRecord | None = None

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
        last_commit = self._logs.position().last_commit
        epochs = self._epochs_descending()
        if last_commit >= 0 and last_commit not in epochs:
            msg = (
                f"{self._logs.url}: batch {last_commit} is committed, but what it wrote is not "
                f"recorded in {self._storage.url}; another program ran the query on this checkpoint"
            )
            raise CheckpointError(msg)
        for epoch in epochs:
            record = self._read(epoch)
            if record.committed is None:
                self._pending[epoch] = record
                continue
            self._check_still_committed(record, last_commit)
            break  # epochs are published in order: all below are
        self._last = self._read(last_commit) if last_commit >= 0 else None
        self.commit_through(last_commit if through is None else min(through, last_commit))
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove staged data of this query that belongs to no epoch that waits. Idempotent."""
        query_id = self._logs.query_id()
        if query_id is not None:
            for sink in self._sinks:
                sink.clean(query_id, keep=tuple(self._pending))

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
        staged = self._stage(df, EpochId(self._query, query_id, epoch, self._lease.token))
        failpoints.hit("sink.staged")
        record = EpochRecord(
            epoch=epoch,
            query_id=query_id,
            run_id=self._run_id,
            token=self._lease.token,
            rows_read=_add(self._rows_read_before(epoch), count_input()),
            sinks=staged,
        )
        self._lease.check()
        self._record(record)
        failpoints.hit("sink.precommitted")

    def commit_ready(self) -> None:
        """Publish what Spark has committed; looks only for commits that are still missing."""
        with self._lock:
            pending = sorted(self._pending)
        for epoch in pending:
            if not self._logs.is_committed(epoch):
                return
            self.commit_through(epoch)

    def last_record(self) -> EpochRecord | None:
        """Return the newest epoch's record that holds; None before the first epoch."""
        return self._last

    def has_pending(self) -> bool:
        """Tell whether an epoch that Spark has committed waits to be published."""
        with self._lock:
            pending = tuple(self._pending)
        return any(self._logs.is_committed(epoch) for epoch in pending)

    def commit_through(self, last_commit: int) -> None:
        """Publish, in order, every pending epoch up to *last_commit* inclusive.

        Raises:
            LeaseLostError: another driver has taken over; what is left is published by it.
            SinkError: a sink could not; the next start goes on.
        """
        with self._lock:
            ready = sorted(epoch for epoch in self._pending if epoch <= last_commit)
        for epoch in ready:
            self._publish(self._pending[epoch])
            with self._lock:
                del self._pending[epoch]

    def _publish(self, record: EpochRecord) -> None:
        by_name = {sink.name: sink for sink in self._sinks}
        self._lease.check()
        for part in record.sinks:
            sink = by_name.get(part["name"])
            if sink is None:
                msg = (
                    f"query {self._query!r}: epoch {record.epoch} was pre-committed for sink "
                    f"{part['name']!r}, which the job no longer writes to; put it back"
                )
                raise SinkError(msg)
            sink.commit(part["committable"], self._lease.check)
        failpoints.hit("sink.published")
        done = dataclasses.replace(record, committed=to_iso(self._clock.now()))
        done.put(self._storage, f"{record.epoch}.json")
        with self._lock:
            if self._last is None or self._last.epoch <= record.epoch:
                self._last = done
        log.debug("query=%s epoch=%s published", self._query, record.epoch)
        failpoints.hit("sink.committed")

    def _stage(self, df: DataFrame, epoch: EpochId) -> list[dict[str, Any]]:
        # A second sink must not run the batch again: a query may compute something different each
        # time, and state would be written twice.
        several = len(self._sinks) > 1
        rows = df.persist() if several else df
        try:
            return [self._stage_one(sink, rows, epoch) for sink in self._sinks]
        finally:
            if several:
                rows.unpersist()

    def _stage_one(self, sink: Sink, df: DataFrame, epoch: EpochId) -> dict[str, Any]:
        staged = sink.stage(df, epoch)
        return {
            "name": sink.name,
            "rows": staged.rows,
            "run_rows": staged.rows + self._run_rows(sink.name, self._before(epoch.epoch)),
            "committable": staged.committable,
        }

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

    def _rows_read_before(self, epoch: int) -> int | None:
        before = self._before(epoch)
        return before.rows_read if self._is_ours(before) else 0

    def _is_ours(self, record: EpochRecord | None) -> TypeGuard[EpochRecord]:
        return record is not None and record.run_id == self._run_id

    def _before(self, epoch: int) -> EpochRecord | None:
        """Return the record of the epoch before; usually the last one, else one from storage."""
        if self._last is not None and self._last.epoch == epoch - 1:
            return self._last
        return EpochRecord.read(self._storage, f"{epoch - 1}.json")

    def _record(self, record: EpochRecord) -> None:
        """Put the record, in the place of one that an earlier driver left for the same batch."""
        path = f"{record.epoch}.json"
        with self._lock:
            replaced = self._pending.get(record.epoch)
        if replaced is not None and replaced.token < record.token:
            record.put(self._storage, path)
            self._abort(replaced)
        elif not record.put_if_absent(self._storage, path):
            msg = f"{self._storage.url}/{path}: another driver has pre-committed this epoch"
            raise LeaseLostError(msg)
        with self._lock:
            self._pending[record.epoch] = record
            self._last = record

    def _abort(self, record: EpochRecord) -> None:
        by_name = {sink.name: sink for sink in self._sinks}
        for part in record.sinks:
            if part["name"] in by_name:
                by_name[part["name"]].abort(part["committable"])

    def _check_still_committed(self, record: EpochRecord, last_commit: int) -> None:
        if record.epoch <= last_commit:
            return
        msg = (
            f"{self._logs.url}: epoch {record.epoch} is published, but Spark's log ends with batch "
            f"{last_commit}; the checkpoint was removed or rolled back by hand, and running on "
            "would publish the same rows again: restore it, or start a new job directory and output"
        )
        raise CheckpointError(msg)

    def _epochs_descending(self) -> list[int]:
        names = (name.removesuffix(".json") for name in self._storage.list(""))
        return sorted((int(name) for name in names if name.isdigit()), reverse=True)

    def _read(self, epoch: int) -> EpochRecord:
        record = EpochRecord.read(self._storage, f"{epoch}.json")
        if record is None:
            msg = f"{self._storage.url}/{epoch}.json: vanished while it was read"
            raise SinkError(msg)
        return record


def _add(before: int | None, more: int | None) -> int | None:
    return None if before is None or more is None else before + more
