"""Fakes that stand for time, for sinks, and for what Spark writes; shared by the JVM-free tests."""

from __future__ import annotations

import contextlib
import datetime as dt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.api.sinks import Committable, EpochId, Staged
from airflow_provider.runtime.base.host import ProcessIdentity, identify_this
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, EpochRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease import acquire_lease
from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, CheckpointBuilder, identified
from tests.unit.frames import FrameBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from airflow_provider.runtime.api.sinks import Fence, Sink
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.lease import Lease

# A process of another machine, of which only its heartbeat tells whether it lives.
ELSEWHERE = ProcessIdentity(host="elsewhere", space="other-boot/pid:[1]", processes=((7, 7),))
NEVER_S = 3600.0  # a heartbeat that does not beat by itself during a test


class FakeClock:
    """A clock that stands still until somebody sleeps or sets it.

    Attributes:
        time: what :meth:`monotonic` returns.
        wall: what :meth:`now` returns, of no relation to ``time``.
        during_sleep: called once per sleep, after the time has passed.
    """

    def __init__(self, wall: dt.datetime | None = None) -> None:
        self.time = 0.0
        self.wall = wall or dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
        self.during_sleep: Callable[[], None] | None = None

    def now(self) -> dt.datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        if self.during_sleep is not None:
            self.during_sleep()


class FakeFrame(FrameBase):
    """Rows that stand for a DataFrame, and how often they were persisted."""

    def __init__(self, *rows: str) -> None:
        self.rows = rows
        self.persisted = 0
        self.unpersisted = 0

    def persist(self, *_: Any, **__: Any) -> FakeFrame:
        self.persisted += 1
        return self

    def unpersist(self, *_: Any, **__: Any) -> FakeFrame:
        self.unpersisted += 1
        return self


class FakeSink:
    """A sink whose staged and published epochs are two dicts.

    Attributes:
        staged: rows by committable's key, invisible to readers.
        published: rows by epoch, in the order of publication.
        calls: what was asked of it, in order.
    """

    api_version = 1

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.staged: dict[str, list[str]] = {}
        self.published: dict[int, list[str]] = {}
        self.calls: list[tuple[str, Any]] = []

    def check(self, df: Any, output_mode: str) -> None:
        self.calls.append(("check", output_mode))

    def recover(self, query_id: str, is_garbage: Any, fence: Fence) -> None:
        self.calls.append(("recover", query_id))
        for key in list(self.staged):
            epoch, _, token = key.partition("-")
            if is_garbage(int(epoch), int(token)):
                del self.staged[key]

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        self.calls.append(("stage", epoch.epoch))
        key = f"{epoch.epoch}-{epoch.token}"
        self.staged[key] = list(df.rows)
        return Staged({"key": key}, len(df.rows))

    def commit(self, committable: Committable, fence: Fence) -> None:
        self.calls.append(("commit", committable.epoch.epoch))
        fence.check()
        rows = self.staged.pop(committable.data["key"], None)
        if rows is not None:
            self.published[committable.epoch.epoch] = rows

    def abort(self, committable: Committable) -> None:
        self.calls.append(("abort", committable.epoch.epoch))
        self.staged.pop(committable.data["key"], None)

    def check_revert(self, committables: Any) -> None:
        self.calls.append(("check_revert", [c.epoch.epoch for c in committables]))

    def revert(self, committables: Any, fence: Fence) -> None:
        self.calls.append(("revert", [c.epoch.epoch for c in committables]))
        for committable in committables:
            fence.check()
            self.staged.pop(committable.data["key"], None)
            self.published.pop(committable.epoch.epoch, None)

    def asked(self, what: str) -> list[Any]:
        return [argument for call, argument in self.calls if call == what]


class HandStagedFiles(FilesSink):
    """The ``files`` sink, whose staging writes one small file per row without Spark."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), "json", (), {})
        self.folder = folder

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        committable = stage_by_hand(
            self.folder, df.rows, query_id=epoch.query_id, epoch=epoch.epoch, token=epoch.token
        )
        return Staged(committable.data, len(df.rows))

    def visible(self) -> list[str]:
        """Return the rows that a reader of the folder sees, sorted, with any duplicates."""
        return sorted(path.read_text() for path in self.folder.rglob("part-*"))


def staging_of(folder: Path, query_id: str = QUERY_ID) -> Path:
    return folder.parent / f".{folder.name}.staging" / query_id


def stage_by_hand(
    folder: Path,
    rows: Sequence[str],
    *,
    query_id: str = QUERY_ID,
    epoch: int = 0,
    token: int = 1,
    partition: str = "",
) -> Committable:
    """Write one staged file per row, and return the committable that names them."""
    staging = staging_of(folder, query_id) / f"{epoch}-{token}"
    moves = []
    for number, row in enumerate(rows):
        staged = f"{partition}part-{number:05d}-{query_id}-c000.json"
        (staging / staged).parent.mkdir(parents=True, exist_ok=True)
        (staging / staged).write_text(row)
        final = f"{partition}part-{epoch:010d}-{number:05d}-{query_id}.json"
        moves.append([staged, final])
    return Committable(EpochId("q", query_id, epoch, token), {"files": moves})


def a_lease(run_id: str = "r1", driver_id: str = "d1") -> LeaseRecord:
    """Return a lease of a machine that is none."""
    return LeaseRecord(
        token=3,
        run_id=run_id,
        driver_id=driver_id,
        nonce="n",
        owner=ProcessIdentity(host="worker-7", space=None, processes=()),
        heartbeat_s=2.0,
        timeout_s=20.0,
        acquired="2026-01-01T00:00:00.000Z",
    )


def take_lease(
    storage: Storage,
    clock: FakeClock,
    *,
    run_id: str = "r1",
    driver_id: str = "d1",
    owner: ProcessIdentity | None = None,
    timeout_s: float = 20.0,
    heartbeat_s: float = NEVER_S,
) -> Lease:
    return acquire_lease(
        storage,
        run_id=run_id,
        driver_id=driver_id,
        owner=owner or identify_this(),
        clock=clock,
        timeout_s=timeout_s,
        heartbeat_s=heartbeat_s,
    )


class EpochBench:
    """A job directory with one query, whose Spark side is written by hand.

    Args:
        root: the job directory.
        sinks: where the query writes.
        kept: the one of them that takes quarantined rows.
        query: its name.
    """

    def __init__(
        self, root: Path, *sinks: Sink, kept: Sink | None = None, query: str = "q"
    ) -> None:
        self.storage, self.query = LocalStorage(str(root)), query
        self.committables = self.storage.at(f"queries/{query}/committables")
        self.clock = FakeClock()
        self.sinks = sinks
        self.kept = kept
        self._leases: list[Lease] = []

    @property
    def spark(self) -> CheckpointBuilder:
        """Return the checkpoint of the query that counts now."""
        return CheckpointBuilder(Path(JobDirectory(self.storage).checkpoint(self.query).url))

    def begun(self, query_id: str = QUERY_ID) -> EpochBench:
        """Put down what a job has as soon as it has begun: its record, an id, a source's log."""
        self.spark.begin(query_id)
        self.spark.storage.put("sources/0/0", b"v1")
        JobDirectory(identified(self.storage)).put_job(JobRecord(name="job", created="now"))
        return self

    def published(self, epochs: int) -> EpochBench:
        """Let a driver write and publish so many epochs, a row each, and end."""
        committer = self.recovered()
        for epoch in range(epochs):
            self.spark.plan(epoch)
            committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
            self.spark.commit(epoch)
        committer.commit_ready()
        self.close()
        return self

    def driver(self, run_id: str = "r1", *sinks: Sink) -> EpochCommitter:
        """Take the lease, waiting out any holder, and return a committer under it."""
        return self.committer(self.lease(run_id), run_id, *sinks)

    def committer(self, lease: Lease, run_id: str, *sinks: Sink) -> EpochCommitter:
        return EpochCommitter(
            self.query,
            storage=self.committables,
            logs=self.spark.logs,
            sinks=sinks or self.sinks,
            quarantine=self.kept,
            lease=lease,
            run_id=run_id,
            clock=self.clock,
        )

    def lease(self, run_id: str = "r1") -> Lease:
        """Take the lease, waiting out any holder."""
        lease = take_lease(self.storage, self.clock, run_id=run_id, timeout_s=0.1)
        self._leases.append(lease)
        return lease

    def recovered(self, run_id: str = "r1", *sinks: Sink) -> EpochCommitter:
        committer = self.driver(run_id, *sinks)
        committer.recover()
        return committer

    @property
    def records(self) -> EpochRecords:
        return EpochRecords(self.committables, QUERY_ID)

    def epochs(self) -> list[int]:
        """Return the epochs that have a record, pre-committed or published."""
        found = self.records.find()
        return sorted({*found.published, *found.precommitted})

    def record(self, epoch: int) -> EpochRecord | None:
        """Return the record that counts for *epoch*."""
        tokens = self.records.find().precommitted.get(epoch)
        published = self.records.published(epoch)
        return published or (self.records.precommitted(epoch, tokens[-1]) if tokens else None)

    def end(self, token: int) -> None:
        """Let the driver of *token* release its lease."""
        self._leases[token - 1].release()

    def close(self) -> None:
        for lease in self._leases:
            lease.release()


@contextlib.contextmanager
def bench(root: Path, *sinks: Sink) -> Iterator[EpochBench]:
    made = EpochBench(root, *sinks)
    try:
        yield made
    finally:
        made.close()


def counted(rows: int | None) -> Callable[[], BatchCounts]:
    return lambda: BatchCounts(rows)
