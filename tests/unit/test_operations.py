"""Storage operations of a driver: fixed numbers, which docs/storage.md lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from airflow_provider.runtime.api.sinks import Staged
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.requests import Inbox
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.files import FilesSink
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.counting import CountingStorage
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted, take_lease

if TYPE_CHECKING:
    from pathlib import Path

    from airflow_provider.runtime.api.sinks import EpochId
    from airflow_provider.runtime.jobdir.lease import Lease


class WrittenFiles(FilesSink):
    """The files sink, with so many files of each batch that Spark would have written."""

    def __init__(self, folder: Path, files: int) -> None:
        super().__init__(str(folder), "json", (), {})
        self._files = files

    def stage(self, df: Any, epoch: EpochId) -> Staged:
        folder = self._folder_of(epoch)
        folder.mkdir(parents=True)
        names = [f"part-{number}.json" for number in range(self._files)]
        for name in names:
            (folder / name).write_text("{}")
        final = [
            f"part-{epoch.epoch:010d}-{n:05d}-{epoch.query_id}.json" for n in range(len(names))
        ]
        return Staged({"files": [list(pair) for pair in zip(names, final, strict=True)]}, 1)


def committer(bench: EpochBench, storage: CountingStorage, lease: Lease) -> EpochCommitter:
    return EpochCommitter(
        "q",
        storage=storage.at("queries/q/committables"),
        logs=CheckpointLogs(storage.at("queries/q/checkpoint")),
        sinks=bench.sinks,
        lease=lease,
        run_id="r1",
        clock=bench.clock,
    )


class CountedJob:
    """A driver at work, whose operations are counted."""

    def __init__(self, root: Path, files: int = 1) -> None:
        self.bench = EpochBench(root / "job", WrittenFiles(root / "out", files))
        self.storage = CountingStorage(self.bench.storage)
        self.bench.begun()
        self.lease = take_lease(self.storage, self.bench.clock)
        self.epochs = committer(self.bench, self.storage, self.lease)
        self.epochs.recover()
        self.batch(0)

    def batch(self, epoch: int) -> tuple[dict[str, int], dict[str, int]]:
        """Run a batch; return what both phases have asked of the storage."""
        self.bench.spark.plan(epoch)
        self.storage.taken()
        self.epochs.pre_commit(FakeFrame("row"), epoch, counted(1))
        staged = self.storage.taken()
        self.bench.spark.commit(epoch)
        self.epochs.commit_ready()
        return staged, self.storage.taken()


@pytest.fixture
def job(tmp_path):
    job = CountedJob(tmp_path)
    yield job
    job.lease.release()


def test_a_batch_costs_so_many_operations(job):
    """Two writes and one removal, no listing, and reads by name: the fence, and Spark's commit."""
    staged, published = job.batch(1)

    assert {"put": 1, "read": 4} == staged
    assert {"delete": 1, "put": 1, "read": 6} == published
    assert (staged, published) == job.batch(2)


def test_each_file_of_a_batch_costs_a_look_at_the_fence(tmp_path):
    """Each rename can be seen by others."""
    job = CountedJob(tmp_path, files=5)
    staged, published = job.batch(1)
    job.lease.release()

    assert {"put": 1, "read": 4} == staged
    assert {"delete": 1, "put": 1, "read": 4 + 2 * 5} == published


def test_a_driver_that_waits_for_spark_reads_one_name(job):
    """Between a batch's first phase and Spark's commit."""
    job.bench.spark.plan(1)
    job.epochs.pre_commit(FakeFrame("row"), 1, counted(1))
    job.storage.taken()
    job.epochs.commit_ready()

    assert {"read": 1} == job.storage.taken()


def test_an_idle_driver_asks_so_much(job):
    """In each second: two looks for its next request, and one at its lease."""
    inbox = Inbox(job.storage, "d1")
    job.storage.taken()
    for _ in range(2):
        inbox.pending()
    job.lease.check()
    job.epochs.commit_ready()
    assert {"read": 4} == job.storage.taken()

    job.lease.beat()
    assert {"put": 1} == job.storage.taken()


def cost_after(root: Path, before: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return what a start, and a look of a savepoint, ask after so many batches and three more."""
    bench = EpochBench(root / "job", FakeSink()).begun()
    bench.records.continue_after(before - 1)
    storage = CountingStorage(bench.storage)
    lease = take_lease(storage, bench.clock)
    spark = bench.spark.run(before - 1)
    epochs = committer(bench, storage, lease)
    epochs.recover()
    for batch in range(before, before + 3):
        spark.plan(batch)
        epochs.pre_commit(FakeFrame("row"), batch, counted(1))
        spark.commit(batch)
        epochs.commit_ready()
    storage.taken()
    committer(bench, storage, lease).recover()
    start = storage.taken()
    lease.release()
    storage.taken()
    EpochRecords(storage.at("queries/q/committables"), QUERY_ID).active_epochs_after(before)
    return start, storage.taken()


def test_a_start_and_a_savepoint_cost_what_they_did_a_million_batches_ago(tmp_path):
    """What is left of old batches is one document, whatever their number."""
    start, look = cost_after(tmp_path / "few", 200)

    assert (start, look) == cost_after(tmp_path / "many", 1_000_000)
    assert sum(start.values()) < 20
    assert sum(look.values()) < 5
