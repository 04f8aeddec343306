"""Batches, crashes, restarts and second drivers in any order: each committed row appears once."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.errors import LeaseLostError
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted

PUBLISHING = ("sink.published_one", "sink.published", "sink.committed")
IN_SPARK = ("spark.planned", "spark.committing", "spark.committed")  # where Spark itself may die
IN_A_BATCH = ("sink.staged", "sink.precommitted", *IN_SPARK)


class SimulatedCrashError(BaseException):
    """Stands for ``kill -9``; not an ``Exception``, so that no handler lets the driver live on."""


def rows_of(epoch: int) -> list[str]:
    """Return what the batch computes: the same rows at every attempt, none for some epochs."""
    return [f"{epoch}.{number}" for number in range((epoch * 3 + 2) % 4)]


# The point, and at which hit of it: an epoch is published file by file.
no_crash = st.none()
while_publishing = st.tuples(st.sampled_from(PUBLISHING), st.integers(1, 3))
in_a_batch = st.tuples(st.sampled_from(IN_A_BATCH), st.just(1))
while_starting = st.just(("lease.acquired", 1))


class EpochsMachine(RuleBasedStateMachine):
    """A query with two sinks, whose Spark side is written by hand.

    The model is Spark's own commit log: its epochs' rows are what readers may see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.sinks = [HandStagedFiles(self.root / name) for name in ("out", "copy")]
        self.job = EpochBench(self.root / "job", *self.sinks)
        self.job.spark.begin()
        self.driver = None
        self.overtaken = []
        self.stalled = set()  # batches that a driver ran, and whose Spark may yet commit them
        self.armed = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(failpoints, "hit", self.hit)
        # Here a process dies and not the machine, so nothing needs to reach the disk.
        self.patch.setattr(os, "fsync", lambda descriptor: None)

    def teardown(self) -> None:
        try:
            self.recover_for_good()
        finally:
            self.patch.undo()
            self.job.close()
            shutil.rmtree(self.root)

    # --- crashing -------------------------------------------------------------------------------

    def hit(self, name: str) -> None:
        if self.armed is None or self.armed[0] != name:
            return
        left = self.armed[1] - 1
        self.armed = (name, left) if left else None
        if not left:
            raise SimulatedCrashError(name)

    @contextlib.contextmanager
    def dying_at(self, crash_at):
        """Run the block as the driver, which is gone afterwards if it crashes in there."""
        self.armed = crash_at
        try:
            yield
        except SimulatedCrashError:
            self.driver = None
        finally:
            self.armed = None

    # --- the driver -----------------------------------------------------------------------------

    @precondition(lambda self: self.driver is None)
    @rule(crash_at=no_crash | while_starting | while_publishing)
    def start(self, crash_at) -> None:
        self.start_driver(crash_at)

    @precondition(lambda self: self.driver is not None)
    @rule(crash_at=no_crash | while_starting | while_publishing)
    def take_over(self, crash_at) -> None:
        """A second driver takes the lease of one that is silent, but not dead."""
        self.overtaken.append(self.driver)
        self.driver = None
        self.start_driver(crash_at)

    def start_driver(self, crash_at) -> None:
        with self.dying_at(crash_at):
            driver = self.job.driver()
            driver.recover()
            self.driver = driver
            self.all_that_spark_committed_is_visible()

    @precondition(lambda self: self.driver is not None)
    @rule(crash_at=no_crash | in_a_batch | while_publishing, publish=st.booleans())
    def run_a_batch(self, crash_at, publish) -> None:
        """Spark runs the open batch, or the next one; publishing may lag behind."""
        with self.dying_at(crash_at):
            epoch = self.plan()
            self.hit("spark.planned")
            rows = rows_of(epoch)
            self.driver.pre_commit(FakeFrame(*rows), epoch, counted(len(rows)))
            self.driver.commit_ready()  # the driver looks while Spark is about to commit
            self.stalled.add(epoch)
            self.hit("spark.committing")
            self.job.spark.commit(epoch)
            self.hit("spark.committed")
            if publish:
                self.driver.commit_ready()

    def plan(self) -> int:
        position = self.job.spark.logs.position()
        if position.open_batch is None:
            self.job.spark.plan(position.last_commit + 1)
        return self.job.spark.logs.position().last_offsets

    @precondition(lambda self: self.driver is not None)
    @rule(crash_at=no_crash | while_publishing)
    def publish(self, crash_at) -> None:
        with self.dying_at(crash_at):
            self.driver.commit_ready()
            self.all_that_spark_committed_is_visible()

    @precondition(lambda self: self.driver is not None)
    @rule()
    def crash(self) -> None:
        self.driver = None

    # --- the driver that was overtaken ----------------------------------------------------------

    @precondition(lambda self: self.overtaken)
    @rule(data=st.data())
    def an_overtaken_driver_publishes(self, data) -> None:
        before = self.visible()
        old = data.draw(st.sampled_from(self.overtaken))
        with contextlib.suppress(LeaseLostError):
            old.commit_ready()

        assert before == self.visible()

    @precondition(lambda self: self.overtaken)
    @rule(data=st.data())
    def an_overtaken_driver_runs_a_batch(self, data) -> None:
        records = self.job.records()
        old = data.draw(st.sampled_from(self.overtaken))
        epoch = self.job.spark.logs.position().last_commit + 1

        with pytest.raises(LeaseLostError):
            old.pre_commit(FakeFrame("stale"), epoch, counted(1))
        assert records == self.job.records()

    @precondition(lambda self: self.job.spark.logs.position().open_batch in self.stalled)
    @rule()
    def an_overtaken_drivers_spark_wakes_up_and_commits(self) -> None:
        self.job.spark.commit(self.job.spark.logs.position().open_batch)

    # --- what holds -----------------------------------------------------------------------------

    def visible(self) -> list[Counter]:
        return [Counter(sink.visible()) for sink in self.sinks]

    def committed_rows(self) -> Counter:
        epochs = self.job.spark.logs.batches("commits")
        return Counter(row for epoch in epochs for row in rows_of(epoch))

    @invariant()
    def only_committed_rows_are_visible_and_none_twice(self) -> None:
        committed = self.committed_rows()
        for rows in self.visible():
            assert rows <= committed

    def all_that_spark_committed_is_visible(self) -> None:
        committed = self.committed_rows()
        assert [committed, committed] == self.visible()
        if self.driver is not None:
            assert not self.driver.has_pending()

    def recover_for_good(self) -> None:
        """Whatever happened, one more start makes it right, leaves nothing staged, and counts."""
        self.armed = None
        driver = self.job.driver()
        driver.recover()
        self.driver = driver

        self.all_that_spark_committed_is_visible()
        if self.job.spark.logs.position().open_batch is None:
            assert [] == sorted(path.name for path in self.root.glob(".*"))
        committed = sum(self.committed_rows().values())
        assert committed == driver.rows_read()
        assert [committed] * 2 == [driver.run_rows(sink.name) for sink in self.sinks]


# Without shrinking, which takes minutes here: a failing history is short enough to be read whole.
EpochsMachine.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


class TestEpochs(EpochsMachine.TestCase):
    """After any history, what readers see is what Spark has committed, once."""
