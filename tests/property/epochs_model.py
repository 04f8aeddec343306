"""A query and all that can happen to it, for hypothesis to put in any order.

Batches, crashes, restarts in the driver, pauses between any two steps, lost replies, writes that
take effect after a takeover, second drivers, other writers, ends of runs and reverts: what
readers see is what Spark has committed, once, less what was reverted.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import LeaseLostError
from airflow_provider.runtime.jobdir import epochs as epoch_records
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.journal import RestorePlan
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_reports import FinalQuery, PublishedSink
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import FINISHED
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.sinks import committer
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.revert import revert_after
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import NOW, CheckpointBuilder, a_final, a_run
from tests.present import present
from tests.unit.support import EpochBench, FakeFrame, HandStagedFiles, counted

IN_SPARK = ("spark.planned", "spark.committing", "spark.committed")  # where Spark itself may die
IN_A_BATCH = ("sink.staged", "sink.precommitted", *IN_SPARK)
PUBLISHING = ("files.published_one", "sink.published", "sink.committed", "sink.forgotten")
RECOVERING = ("recover.planned", "recover.aborted", "recover.published", "recover.cleaned")
REVERTING = (
    "files.reverted_one",
    "revert.removed_one",
    "revert.done",
)
FINISHING = ("final.sealed", "final.put")
WRITES = ("put", "put_if_absent", "delete", "delete_all")
PAUSE = "pause"  # at a step of any kind; with its name only at those of this kind


class CommitsCounted(HandStagedFiles):
    """Remembers which stagings it was told to commit: it would publish the files of each."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.committed: dict[tuple[str, int], set[int]] = {}

    def commit(self, committable, fence) -> None:
        epoch = committable.epoch
        self.committed.setdefault((epoch.query_id, epoch.epoch), set()).add(epoch.token)
        super().commit(committable, fence)


class SimulatedCrashError(BaseException):
    """Stands for ``kill -9``; not an ``Exception``, so that no handler lets the driver live on."""


class Paused:
    """A driver in a thread of its own, of which one at a time runs: it can be stopped anywhere."""

    def __init__(self, driver, work) -> None:
        self.driver = driver
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self.has_ended = False
        self.error: BaseException | None = None

    def _run(self, work) -> None:
        self._turn.acquire()
        try:
            work()
        except BaseException as error:  # whatever ends it, the model looks at it
            self.error = error
        self.has_ended = True
        self._back.release()

    def go_on(self) -> None:
        """Let it run until it is paused or has ended."""
        if not self._thread.is_alive():
            self._thread.start()
        self._turn.release()
        self._back.acquire()

    def pause(self) -> None:
        """Called by itself: stand still until somebody lets it go on."""
        self._back.release()
        self._turn.acquire()

    def is_here(self) -> bool:
        return threading.current_thread() is self._thread


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
while_reverting = st.tuples(st.sampled_from(REVERTING), st.integers(1, 3))
while_finishing = st.tuples(st.sampled_from(FINISHING), st.just(1))
losing_replies = st.tuples(st.sampled_from(WRITES), st.integers(1, 4))
# What is paused, and before which of its steps: each takes about so many. The few of an end are
# drawn as often as those of a publication.
_STEPS_OF = {"batch": 30, "publish": 15, "start again": 15, "finish": 5}
pauses = st.sampled_from(
    [
        (what, (PAUSE, step))
        for what, steps in _STEPS_OF.items()
        for step in (*range(1, steps + 1),) * max(1, 15 // steps)
    ]
)


class EpochsMachine(RuleBasedStateMachine):
    """A query with two sinks, whose Spark side is written by hand.

    The model is Spark's own commit log, with the run that each batch was committed for: its rows
    are what readers may see.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.sinks = [CommitsCounted(self.root / name) for name in ("out", "copy")]
        self.job = EpochBench(self.root / "job", *self.sinks)
        self.incarnation = 0
        self.run = 0
        self.run_of: dict[int, int] = {}  # by batch
        self.reverting = False
        self.theirs = 0
        self.driver: EpochCommitter | None = None
        self.overtaken: list[EpochCommitter] = []
        self.paused: list[Paused] = []
        self.running: Paused | None = None  # the one of them that runs
        self.stalled: set[int] = (
            set()
        )  # batches that a driver ran, and whose Spark may yet commit them
        self.armed: tuple[str, int] | None = None
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(failpoints, "hit", self.hit)
        # Here a process dies and not the machine, so nothing needs to reach the disk.
        self.patch.setattr(os, "fsync", lambda descriptor: None)
        for write in WRITES:
            self.patch.setattr(LocalStorage, write, self.losing(getattr(LocalStorage, write)))
        files = importlib.import_module("airflow_provider.runtime.sinks.files")
        self.patch.setattr(files, "_publish", self.pausing("rename", files._publish))
        for module in (committer, epoch_records):  # few, so that short histories fold
            self.patch.setattr(module, "KEEP_EPOCHS", 2)
        self.patch.setattr(committer, "FOLD_EPOCHS", 2)
        self.patch.setattr(epoch_records, "PACK_EPOCHS", 3)
        self.directory = JobDirectory(self.job.storage)
        self.job.begun(self.query_id)
        self.begin_a_run()

    @property
    def query_id(self) -> str:
        return f"query-{self.incarnation}"

    @property
    def run_id(self) -> str:
        return f"run-{self.run}"

    def begin_a_run(self) -> None:
        last = self.job.spark.logs.position().last_commit
        self.directory.run(self.run_id).put_record(a_run(self.run_id, starting={"q": last}))

    def teardown(self) -> None:
        try:
            self.recover_for_good()
        finally:
            self.armed = None
            for one in self.paused:
                one.go_on()
            self.patch.undo()
            self.job.close()
            shutil.rmtree(self.root)

    # --- crashing -------------------------------------------------------------------------------

    def hit(self, name: str) -> None:
        self.pause_if_due(name)
        if self.due(name):
            raise SimulatedCrashError(name)

    def pause_if_due(self, name: str) -> None:
        if self.running is None or not self.running.is_here():
            return
        if self.due(PAUSE) or self.due(f"{PAUSE} {name}"):
            self.running.pause()

    def pausing(self, name, step):
        def done(*arguments):
            self.pause_if_due(name)
            return step(*arguments)

        return done

    def due(self, name: str) -> bool:
        if self.armed is None or self.armed[0] != name:
            return False
        left = self.armed[1] - 1
        self.armed = (name, left) if left else None
        return not left

    def losing(self, write):
        """Return the storage's *write*, whose answer may get lost after it was done."""

        def done(storage, *arguments):
            self.pause_if_due(write.__name__)
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

    @precondition(lambda self: self.driver is None and not self.reverting)
    @rule(fails_at=no_crash | while_starting | while_publishing | losing_replies)
    def start(self, fails_at) -> None:
        self.start_driver(fails_at)

    @precondition(lambda self: self.driver is not None)
    @rule(fails_at=no_crash | while_starting | while_publishing | losing_replies)
    def take_over(self, fails_at) -> None:
        """A second driver takes the lease of one that is silent, but not dead."""
        self.overtaken.append(present(self.driver))
        self.driver = None
        self.start_driver(fails_at)

    def start_driver(self, fails_at) -> None:
        with self.dying_at(fails_at):
            driver = self.job.driver(self.run_id)
            if self.directory.run(self.run_id).final() is not None:  # its driver had sealed it
                self.the_run_has_ended()
                return
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
            self.batch_of(self.driver, publish=publish)

    def batch_of(self, driver, *, publish) -> None:
        spark, run = self.job.spark, self.run  # what its JVM writes to, whatever happens meanwhile
        epoch = self.plan()
        self.hit("spark.planned")
        rows = rows_of(run, epoch)
        driver.pre_commit(FakeFrame(*rows), epoch, counted(len(rows)))
        if spark.root == self.job.spark.root:
            self.stalled.add(epoch)
        driver.commit_ready()  # the driver looks while Spark is about to commit
        self.hit("spark.committing")
        self.spark_commits(spark, epoch)
        self.hit("spark.committed")
        if publish:
            driver.commit_ready()

    @precondition(lambda self: self.driver is not None)
    @rule(
        at=st.sampled_from(
            ("spark.planned", "sink.staged", "sink.precommitted", "spark.committing")
        )
    )
    def a_batch_fails_and_the_query_is_started_again(self, at) -> None:
        """Also when Spark is told that its commit has failed, which then takes effect later."""
        driver = self.driver
        self.armed = (at, 1)
        with contextlib.suppress(SimulatedCrashError):
            self.batch_of(driver, publish=False)
        self.armed = None
        self.start_the_query_again(driver)

    @precondition(lambda self: self.driver is not None)
    @rule(fails_at=no_crash | while_publishing | losing_replies)
    def the_query_is_started_again(self, fails_at) -> None:
        with self.dying_at(fails_at):
            self.start_the_query_again(self.driver)

    def start_the_query_again(self, driver) -> None:
        driver.give_up_open()
        driver.begin_again()
        driver.commit_through(self.job.spark.logs.position().last_commit)

    # --- the driver that is paused --------------------------------------------------------------

    @precondition(lambda self: self.driver is not None)
    @rule(where=pauses)
    def a_driver_is_paused(self, where) -> None:
        """Between any two steps, such as its look at the lease and the put that follows."""
        (what, at), driver, run_id = where, present(self.driver), self.run_id
        if what == "finish" and self.job.spark.logs.position().open_batch is not None:
            return
        steps = {
            "batch": lambda: self.batch_of(driver, publish=True),
            "publish": driver.commit_ready,
            "start again": lambda: self.start_the_query_again(driver),
            "finish": lambda: self.end_of(driver, run_id),
        }
        one = Paused(driver, steps[what])
        self.armed = at
        self.let(one)
        self.driver = None if not one.has_ended or what == "finish" else self.driver
        if not one.has_ended:
            self.paused.append(one)
        elif what == "finish":
            self.the_run_has_ended()

    @precondition(lambda self: self.paused)
    @rule(data=st.data())
    def a_paused_driver_goes_on(self, data) -> None:
        """What it has begun takes effect now, whoever drives the job by then."""
        one = data.draw(st.sampled_from(self.paused))
        self.paused.remove(one)
        self.let(one)
        self.see_whether_the_run_has_ended()

    def let(self, one: Paused) -> None:
        self.running = one
        one.go_on()
        self.running = self.armed = None
        # A driver that was overtaken may find anything gone; of one that was not, nothing may be.
        if one.error is not None and not one.driver._lease.is_lost():
            raise one.error

    def plan(self) -> int:
        position = self.job.spark.logs.position()
        if position.open_batch is None:
            self.job.spark.plan(position.last_commit + 1)
        return self.job.spark.logs.position().last_offsets

    def spark_commits(self, spark: CheckpointBuilder, epoch: int) -> None:
        """Spark puts a commit once, and into the checkpoint that it was started with."""
        if not (spark.root / "commits" / str(epoch)).exists():
            spark.commit(epoch)
            if spark.root == self.job.spark.root:
                self.run_of[epoch] = self.run

    @precondition(lambda self: self.driver is not None)
    @rule(fails_at=no_crash | while_publishing | losing_replies)
    def publish(self, fails_at) -> None:
        with self.dying_at(fails_at):
            driver = present(self.driver)
            driver.commit_ready()
            if not driver.has_pending():  # as when Spark may be running an open batch again
                self.all_that_spark_committed_is_visible()

    @precondition(lambda self: self.driver is not None)
    @rule()
    def crash(self) -> None:
        self.driver = None

    @precondition(lambda self: self.driver is not None)
    @precondition(lambda self: self.job.spark.logs.position().open_batch is None)
    @rule(fails_at=no_crash | while_publishing | while_finishing | losing_replies)
    def end_the_run(self, fails_at) -> None:
        """All is published, the final checkpoint put, and the next run begins with the next driver.

        Also what an overtaken driver's Spark has committed since this driver has recovered.
        """
        with self.dying_at(fails_at):
            self.end_of(self.driver, self.run_id)
        self.driver = None
        self.see_whether_the_run_has_ended()

    def end_of(self, driver, run_id: str) -> None:
        """End a run as an attempt does."""
        last = self.job.spark.logs.position().last_commit
        driver.commit_through(last)
        query = FinalQuery(
            query_id=self.query_id,
            batch_id=last if last >= 0 else None,
            finished=True,
            sinks=tuple(
                PublishedSink(
                    name=s.name,
                    epoch=None if driver.last_record() is None else last,
                    rows=driver.run_rows(s.name),
                )
                for s in self.sinks
            ),
        )
        final = a_final(run_id, outcome=FINISHED)
        final = type(final)(**{**vars(final), "job": "job", "queries": {"q": query}})
        verify_final(self.directory, final)
        driver.remove_leftovers()
        driver._lease.seal(final)
        self.directory.run(run_id).put_final(final)

    def see_whether_the_run_has_ended(self) -> None:
        if self.directory.run(self.run_id).final() is not None:
            self.the_run_has_ended()

    def the_run_has_ended(self) -> None:
        """Its final checkpoint is true at the moment at which it is there."""
        self.armed = None
        final = present(self.directory.run(self.run_id).final())
        position = self.job.spark.logs.position()

        assert final.queries["q"].last_batch == position.last_commit
        assert position.open_batch is None
        self.all_that_spark_committed_is_visible()
        assert final is verify_final(self.directory, final)
        self.driver = None
        self.run += 1
        self.stalled.clear()
        self.begin_a_run()

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
        self.spark_commits(self.job.spark, present(self.job.spark.logs.position().open_batch))

    # --- reverting ----------------------------------------------------------------------------

    @precondition(lambda self: self.reverting or self.run in self.run_of.values())
    @rule(fails_at=no_crash | while_reverting | losing_replies)
    def take_the_run_back(self, fails_at) -> None:
        """The run is reverted, by one driver after the other if they die; then it begins anew."""
        if self.driver is not None:
            self.overtaken.append(self.driver)
            self.driver = None
        self.reverting = True
        with self.dying_at(fails_at):
            lease = self.job.lease(f"run-{self.run}")
            for work in revert_after(
                SimpleNamespace(name="q", sinks=self.sinks, native=None),
                storage=self.job.committables,
                epoch=present(self.directory.run(self.run_id).record()).starting["q"],
                fence=lease,
                clock=self.job.clock,
            ):
                work.revert()
            self.armed = None
            self.restore_the_checkpoint(lease)

    def restore_the_checkpoint(self, lease) -> None:
        """As a savepoint from before the run is restored: the copy has a query id of its own."""
        self.run_of = {epoch: run for epoch, run in self.run_of.items() if run != self.run}
        last = max(self.run_of, default=-1)
        restores, replaced = Restores(self.directory), self.query_id
        self.incarnation += 1
        query = {"query_id": self.query_id, "from": "q", "batch": last, "replaces": replaced}
        plan = RestorePlan(savepoint=None, taken=None, queries={"q": query})
        operation = restores.begin(lease, NOW, plan)
        shutil.rmtree(self.job.spark.root, ignore_errors=True)
        self.job.spark.begin(self.query_id)
        for epoch in range(last + 1):
            self.job.spark.run(epoch)
        EpochRecords(self.job.committables, self.query_id).continue_after(last)
        restores.end(operation)
        self.stalled.clear()
        self.reverting = False
        self.run += 1  # what is undone has perhaps a final checkpoint; another run takes its place
        self.begin_a_run()

    # --- what holds -----------------------------------------------------------------------------

    def visible(self) -> list[Counter[str]]:
        return [Counter(sink.visible()) for sink in self.sinks]

    def their_rows(self) -> Counter[str]:
        return Counter(f"theirs {number}" for number in range(1, self.theirs + 1))

    def committed_rows(self) -> Counter[str]:
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

    @invariant()
    def one_staging_of_an_epoch_is_committed(self) -> None:
        """Files have no location that refuses a second one, so no driver may try it."""
        for sink in self.sinks:
            assert {1} >= {len(tokens) for tokens in sink.committed.values()}

    def all_that_spark_committed_is_visible(self) -> None:
        committed = self.committed_rows()
        assert [committed, committed] == self.visible()
        if self.driver is not None:
            assert not self.driver.has_pending()

    def recover_for_good(self) -> None:
        """Whatever happened, one more start makes it right, leaves nothing staged, and counts."""
        if self.reverting:
            self.take_the_run_back(None)
        self.armed = None
        driver = self.job.driver(f"run-{self.run}")
        driver.recover()
        self.driver = driver

        self.all_that_spark_committed_is_visible()
        if self.job.spark.logs.position().open_batch is None:
            staged = [p for p in self.root.glob(".*/*") if p.name == self.query_id]
            assert [] == staged
        ours = sum(len(rows_of(r, e)) for e, r in self.run_of.items() if r == self.run)
        assert ours == driver.rows_read()
        assert [ours] * 2 == [driver.run_rows(sink.name) for sink in self.sinks]
