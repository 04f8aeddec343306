"""Loss of power: what was confirmed as written is on the disk, and a job goes on from it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.runtime.api.sinks import Staged
from airflow_provider.runtime.errors import SparkStreamError
from airflow_provider.runtime.storage.file_tree import flush
from airflow_provider.runtime.testing.job_directories import CheckpointBuilder
from tests.crash.power import NoDiskError, PowerDisk
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted, stage_by_hand

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.soak  # it needs root, and a loop device

EPOCHS = 3
ROWS = [f"row {epoch}{part}" for epoch in range(EPOCHS) for part in "ab"]


class FlushedFiles(HandStagedFiles):
    """The ``files`` sink, which stages in folders of partitions and flushes as Spark's side does."""

    def stage(self, df, epoch) -> Staged:
        location = f"day={epoch.epoch}/hour=1/"
        ids = {"query_id": epoch.query_id, "epoch": epoch.epoch, "token": epoch.token}
        committable = stage_by_hand(self.folder, df.rows, partition=location, **ids)
        flush(str(self._folder_of(epoch)), [staged for staged, _ in committable.data["files"]])
        return Staged(committable.data, len(df.rows))


class BenchBesideSpark(EpochBench):
    """A bench whose checkpoint lies elsewhere."""

    def __init__(self, root: Path, spark: Path, sink: HandStagedFiles) -> None:
        self._beside = CheckpointBuilder(spark)
        super().__init__(root, sink)

    @property
    def spark(self) -> CheckpointBuilder:
        return self._beside


class Machine:
    """A job on a disk that can lose its power, and Spark's checkpoint on one that cannot.

    Args:
        location: the disk.
        spark: the checkpoint, which Spark's own storage keeps.
    """

    def __init__(self, location: Path, spark: Path) -> None:
        self.sink = FlushedFiles(location / "deep" / "out" / "table")
        self.bench = BenchBesideSpark(location / "job", spark, self.sink)

    def run(self) -> Iterator[list[str]]:
        """Go on from what is there to the last epoch; yield, after each step, what is published."""
        spark, published = self.bench.spark, set[str]()
        committer = self.bench.recovered()
        published |= set(self.sink.visible())
        for epoch in range(spark.logs.position().last_commit + 1, EPOCHS):
            spark.plan(epoch)
            rows = FakeFrame(*ROWS[2 * epoch : 2 * epoch + 2])
            committer.pre_commit(rows, epoch, counted(2))
            yield sorted(published)
            spark.commit(epoch)
            yield sorted(published)
            committer.commit_ready()
            published |= set(rows.rows)
            yield sorted(published)


@dataclasses.dataclass
class Loss:
    """A moment at which the power went.

    Attributes:
        disk: the disk as it is found.
        spark: Spark's checkpoint at that moment.
        published: the rows that were told as published by then.
    """

    disk: Path
    spark: Path
    published: list[str]


@pytest.fixture
def disk(tmp_path) -> PowerDisk:
    made = PowerDisk(tmp_path)
    try:
        with made.mounted():
            pass
    except NoDiskError as error:
        pytest.skip(f"no disk can be mounted here: {error}")
    return made


def losses_of(disk: PowerDisk, tmp_path: Path) -> list[Loss]:
    """Run a job to its end, and let the power go at each of its steps."""
    losses = []
    with disk.mounted() as location:
        machine = Machine(location, tmp_path / "spark")
        machine.bench.begun()
        os.sync()
        with contextlib.closing(machine.bench):
            for step, published in enumerate(machine.run()):
                spark = tmp_path / f"spark-{step}"
                losses.append(Loss(disk.cut(), spark, published))
                shutil.copytree(tmp_path / "spark", spark)
    return losses


def recovered_rows(disk: PowerDisk, loss: Loss) -> list[str]:
    """Start the job again on what is found, to its end; return what readers see then."""
    with disk.found(loss.disk) as location:
        machine = Machine(location, loss.spark)
        with contextlib.closing(machine.bench):
            visible = machine.sink.visible()
            assert loss.published == sorted(set(visible) & set(loss.published))
            for _ in machine.run():
                pass
            return machine.sink.visible()


def test_a_job_goes_on_after_a_loss_of_power(disk, tmp_path):
    """
    Whenever the power goes, what was told as published is there, and the next start publishes the
    rest: every row once.
    """
    losses = losses_of(disk, tmp_path)

    assert 3 * EPOCHS == len(losses)
    assert [ROWS] * len(losses) == [recovered_rows(disk, loss) for loss in losses]


@pytest.mark.parametrize(
    ("skipped", "losing"), [("files", 6), ("folders", 3), ("files, folders", 8)]
)
def test_without_flushes_it_would_not(disk, tmp_path, monkeypatch, skipped, losing):
    """
    The test above can fail: when files, or folders, are not flushed, rows are gone for good after
    some of the losses, or the job cannot go on.
    """
    real = os.fsync

    def fsync(descriptor: int) -> None:
        is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        if ("folders" if is_folder else "files") not in skipped:
            real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        losses = losses_of(disk, tmp_path)

    assert losing <= sum(is_lost(disk, loss) for loss in losses)


def is_lost(disk: PowerDisk, loss: Loss) -> bool:
    try:
        return recovered_rows(disk, loss) != ROWS
    except (AssertionError, SparkStreamError):
        return True
