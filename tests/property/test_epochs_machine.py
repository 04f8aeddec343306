"""Batches, crashes, restarts, lost replies, second drivers, other writers and take-backs, in any
order: what readers see is what Spark has committed, once, less what was taken back.
"""

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
from airflow_provider.runtime.sinks import EpochRecords, TakeBack
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted

IN_SPARK = ("spark.planned", "spark.committing", "spark.committed")  # where Spark itself may die
IN_A_BATCH = ("sink.staged", "sink.precommitted", *IN_SPARK)
PUBLISHING = ("files.published_one", "sink.published", "sink.committed", "sink.forgotten")
RECOVERING = ("recover.planned", "recover.aborted", "recover.published", "recover.cleaned")
TAKING_BACK = (
    "takeback.intended",
    "files.taken_back_one",
    "takeback.removed_one",
    "takeback.done",
)
WRITES = ("put", "put_if_absent", "delete")


class SimulatedCrashError(BaseException):
    """Stands for ``kill -9``; not an ``Exception``, so that no handler lets the driver live on."""


class LostReplyError(OSError):
    """The storage has done what it was asked, and the answer did not arrive."""


def rows_of(run: int, epoch: int) -> list[str]:
    """Return what the batch computes: the same rows at every attempt, none for some epochs."""
    return [f"{run}/{epoch}.{number}" for number in range((epoch * 3 + 2) % 4)]


# The point, and at which hit of it: an epoch is published file by file.
no_crash = st.none()
while_publishing = st.tuples(st.sampled_from(PUBLISHING), st.integers(1, 3))
in_a_batch = st.tuples(st.sampled_from(IN_A_BATCH), st.just(1))
while_starting = st.tuples(st.sampled_from(("lease.acquired", *RECOVERING)), st.just(1))
while_taking_back = st.tuples(st.sampled_from(TAKING_BACK), st.integers(1, 3))
losing_replies = st.tuples(st.sampled_from(WRITES), st.integers(1, 4))


class EpochsMachine(RuleBasedStateMachine):
    """A query with two sinks, whose Spark side is written by hand.

    The model is Spark's own commit log, with the run that each batch was committed for: its rows
    are what readers may see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.sinks = [HandStagedFiles(self.root / name) for name in ("out", "copy")]
        self.job = EpochBench(self.root / "job", *self.sinks)
        self.incarnation = 0
        self.job.spark.begin(self.query_id)
        self.run = 0
        self.run_of: dict[int, int] = {}  # by batch
        self.taking_back = False
        self.theirs = 0
        self.driver = None
        self.overtaken = []
        self.stalled = set()  # batches that a driver ran, and whose Spark may yet commit them
        self.armed = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(failpoints, "hit", self.hit)
        # Here a process dies and not the machine, so nothing needs to reach the disk.
        self.patch.setattr(os, "fsync", lambda descriptor: None)
        for write in WRITES:
            self.patch.setattr(LocalStorage, write, self.losing(getattr(LocalStorage, write)))

    @property
    def query_id(self) -> str:
        return f"query-{self.incarnation}"

    def teardown(self) -> None:
        try:
            self.recover_for_good()
        finally:
            self.patch.undo()
            self.job.close()
            shutil.rmtree(self.root)

    # --- crashing -------------------------------------------------------------------------------

    def hit(self, name: str) -> None:
        if self.due(name):
            raise SimulatedCrashError(name)

    def due(self, name: str) -> bool:
        if self.armed is None or self.armed[0] != name:
            return False
        left = self.armed[1] - 1
        self.armed = (name, left) if left else None
        return not left

    def losing(self, write):
        """Return the storage's *write*, whose answer may get lost after it was done."""

        def done(storage, *arguments):
            answer = write(storage, *arguments)
            if self.due(write.__name__):
                raise LostReplyError(write.__name__)
            return answer

        return done

    @contextlib.contextmanager
    def dying_at(self, fails_at):
        """Run the block as the driver, which is gone afterwards if it dies or fails in there."""
        self.armed = fails_at
        try:
            yield
        except (SimulatedCrashError, LostReplyError):
            self.driver = None
        finally:
            self.armed = None

    # --- the driver -----------------------------------------------------------------------------

    @precondition(lambda self: self.driver is None and not self.taking_back)
    @rule(fails_at=no_crash | while_starting | while_publishing | losing_replies)
    def start(self, fails_at) -> None:
        self.start_driver(fails_at)

    @precondition(lambda self: self.driver is not None)
    @rule(fails_at=no_crash | while_starting | while_publishing | losing_replies)
    def take_over(self, fails_at) -> None:
        """A second driver takes the lease of one that is silent, but not dead."""
        self.overtaken.append(self.driver)
        self.driver = None
        self.start_driver(fails_at)

    def start_driver(self, fails_at) -> None:
        with self.dying_at(fails_at):
            driver = self.job.driver(f"run {self.run}")
            driver.recover()
            self.driver = driver
            self.all_that_spark_committed_is_visible()

    @precondition(lambda self: self.driver is not None)
    @rule(
        fails_at=no_crash | in_a_batch | while_publishing | losing_replies,
        publish=st.booleans(),
    )
    def run_a_batch(self, fails_at, publish) -> None:
        """Spark runs the open batch, or the next one; publishing may lag behind."""
        with self.dying_at(fails_at):
            epoch = self.plan()
            self.hit("spark.planned")
            rows = rows_of(self.run, epoch)
            self.driver.pre_commit(FakeFrame(*rows), epoch, counted(len(rows)))
            self.driver.commit_ready()  # the driver looks while Spark is about to commit
            self.stalled.add(epoch)
            self.hit("spark.committing")
            self.spark_commits(epoch)
            self.hit("spark.committed")
            if publish:
                self.driver.commit_ready()

    def plan(self) -> int:
        position = self.job.spark.logs.position()
        if position.open_batch is None:
            self.job.spark.plan(position.last_commit + 1)
        return self.job.spark.logs.position().last_offsets

    def spark_commits(self, epoch: int) -> None:
        self.job.spark.commit(epoch)
        self.run_of[epoch] = self.run

    @precondition(lambda self: self.driver is not None)
    @rule(fails_at=no_crash | while_publishing | losing_replies)
    def publish(self, fails_at) -> None:
        with self.dying_at(fails_at):
            self.driver.commit_ready()
            self.all_that_spark_committed_is_visible()

    @precondition(lambda self: self.driver is not None)
    @rule()
    def crash(self) -> None:
        self.driver = None

    @precondition(lambda self: self.driver is not None)
    @precondition(lambda self: self.job.spark.logs.position().open_batch is None)
    @rule()
    def end_the_run(self) -> None:
        """All is published, and the next run begins with the next driver.

        Also what an overtaken driver's Spark has committed since this driver has recovered.
        """
        self.driver.commit_through(self.job.spark.logs.position().last_commit)
        self.driver = None
        self.run += 1
        self.stalled.clear()

    # --- other writers --------------------------------------------------------------------------

    @rule()
    def another_writer_adds_a_row(self) -> None:
        self.theirs += 1
        for sink in self.sinks:
            sink.folder.mkdir(exist_ok=True)
            (sink.folder / f"part-theirs-{self.theirs}").write_text(f"theirs {self.theirs}")

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
        records = self.records()
        old = data.draw(st.sampled_from(self.overtaken))
        epoch = self.job.spark.logs.position().last_commit + 1

        with pytest.raises(LeaseLostError):
            old.pre_commit(FakeFrame("stale"), epoch, counted(1))
        assert records == self.records()

    def records(self) -> list[str]:
        return sorted(str(path) for path in (self.root / "job").rglob("committables/*/*"))

    @precondition(lambda self: self.job.spark.logs.position().open_batch in self.stalled)
    @rule()
    def an_overtaken_drivers_spark_wakes_up_and_commits(self) -> None:
        self.spark_commits(self.job.spark.logs.position().open_batch)

    # --- taking back ----------------------------------------------------------------------------

    @precondition(lambda self: self.taking_back or self.run in self.run_of.values())
    @rule(fails_at=no_crash | while_taking_back | losing_replies)
    def take_the_run_back(self, fails_at) -> None:
        """The run is taken back, by one driver after the other if they die; then it begins anew."""
        if self.driver is not None:
            self.overtaken.append(self.driver)
            self.driver = None
        self.taking_back = True
        with self.dying_at(fails_at):
            lease = self.job.lease(f"run {self.run}")
            TakeBack(
                "q",
                records=EpochRecords(self.job.committables, self.query_id),
                sinks=self.sinks,
                run_id=f"run {self.run}",
                fence=lease,
                clock=self.job.clock,
            ).take_back()
            self.armed = None
            self.restore_the_checkpoint()

    def restore_the_checkpoint(self) -> None:
        """As a savepoint from before the run is restored: the copy has a query id of its own."""
        self.run_of = {epoch: run for epoch, run in self.run_of.items() if run != self.run}
        last = max(self.run_of, default=-1)
        shutil.rmtree(self.job.spark.root)
        self.incarnation += 1
        self.job.spark.begin(self.query_id)
        for epoch in range(last + 1):
            self.job.spark.run(epoch)
        EpochRecords(self.job.committables, self.query_id).continue_after(last)
        self.stalled.clear()
        self.taking_back = False

    # --- what holds -----------------------------------------------------------------------------

    def visible(self) -> list[Counter]:
        return [Counter(sink.visible()) for sink in self.sinks]

    def their_rows(self) -> Counter:
        return Counter(f"theirs {number}" for number in range(1, self.theirs + 1))

    def committed_rows(self) -> Counter:
        rows = Counter(row for epoch, run in self.run_of.items() for row in rows_of(run, epoch))
        return rows + self.their_rows()

    @invariant()
    def only_committed_rows_are_visible_and_none_twice(self) -> None:
        committed = self.committed_rows()
        for rows in self.visible():
            assert rows <= committed
            assert self.their_rows() <= rows

    @invariant()
    def what_earlier_runs_committed_stays(self) -> None:
        earlier = {epoch: run for epoch, run in self.run_of.items() if run < self.run}
        rows = Counter(row for epoch, run in earlier.items() for row in rows_of(run, epoch))
        for seen in self.visible():
            assert rows <= seen

    def all_that_spark_committed_is_visible(self) -> None:
        committed = self.committed_rows()
        assert [committed, committed] == self.visible()
        if self.driver is not None:
            assert not self.driver.has_pending()

    def recover_for_good(self) -> None:
        """Whatever happened, one more start makes it right, leaves nothing staged, and counts."""
        if self.taking_back:
            self.take_the_run_back(None)
        self.armed = None
        driver = self.job.driver(f"run {self.run}")
        driver.recover()
        self.driver = driver

        self.all_that_spark_committed_is_visible()
        if self.job.spark.logs.position().open_batch is None:
            staged = [p for p in self.root.glob(".*/*") if p.name == self.query_id]
            assert [] == staged
        ours = sum(len(rows_of(r, e)) for e, r in self.run_of.items() if r == self.run)
        assert ours == driver.rows_read()
        assert [ours] * 2 == [driver.run_rows(sink.name) for sink in self.sinks]


# Without shrinking, which takes minutes here: a failing history is short enough to be read whole.
EpochsMachine.TestCase.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


class TestEpochs(EpochsMachine.TestCase):
    """After any history, what readers see is what Spark has committed, once."""
