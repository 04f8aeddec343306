"""The epochs of a query: pre-committed in Spark's batch, published after Spark's commit."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from airflow_provider.runtime.errors import (
    CheckpointError,
    LateRowsError,
    LeaseLostError,
    SinkError,
)
from airflow_provider.runtime.jobdir import epochs as epoch_records
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, EpochRecord, LateCount
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.sinks.recovery import check_none_left
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.present import present
from tests.unit.support import EpochBench, FakeFrame, FakeSink, HandStagedFiles, bench, counted


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def job(tmp_path, sink):
    """Yield a job directory whose one query writes to ``sink``."""
    bench = EpochBench(tmp_path / "job", sink)
    bench.spark.begin()
    yield bench
    bench.close()


def run_epoch(job: EpochBench, committer, epoch: int, *rows: str, read: int | None = None) -> None:
    """Let Spark plan, run and commit a batch, without publishing it."""
    job.spark.plan(epoch)
    committer.pre_commit(FakeFrame(*rows), epoch, counted(len(rows) if read is None else read))
    job.spark.commit(epoch)


def record_of(job: EpochBench, epoch: int) -> EpochRecord:
    return present(job.record(epoch))


# --- the two phases -----------------------------------------------------------------------------


def test_pre_commit_stages_and_records(job, sink):
    """
    After a pre-commit the rows are staged, the record says for whom, and no reader sees a row.
    """
    committer = job.recovered("r1")
    job.spark.plan(0)
    committer.pre_commit(FakeFrame("a", "b"), 0, counted(7))
    record = record_of(job, 0)

    assert {"0-1": ["a", "b"]} == sink.staged
    assert {} == sink.published
    assert (0, QUERY_ID, "r1", 1, 7) == (
        record.epoch,
        record.query_id,
        record.run_id,
        record.token,
        record.rows_read,
    )
    assert record.committed is None
    assert [{"name": "fake", "rows": 2, "run_rows": 2, "data": {"key": "0-1"}}] == record.sinks


def test_an_epoch_is_published_only_after_sparks_commit(job, sink):
    """
    Publishing waits for the entry in Spark's commit log, then publishes and says so in the record.
    """
    committer = job.recovered()
    job.spark.plan(0)
    committer.pre_commit(FakeFrame("a"), 0, counted(1))
    committer.commit_ready()
    assert {} == sink.published
    assert not committer.has_pending()

    job.spark.commit(0)
    assert committer.has_pending()

    committer.commit_ready()
    assert {0: ["a"]} == sink.published
    assert not committer.has_pending()
    assert "2026-01-01T00:00:00.000Z" == record_of(job, 0).committed


def test_an_epoch_that_waits_keeps_its_sinks(job):
    """Spark's own sink does not take their place before they have published what is committed."""
    committer = job.recovered("r1")
    records = EpochRecords(job.committables, QUERY_ID)
    run_epoch(job, committer, 0, "a")

    with pytest.raises(CheckpointError, match="epoch 0 is committed, and other sinks than spark:x"):
        check_none_left(records.find(), 0, where=records.url, sink="spark:x")
    check_none_left(records.find(), -1, where=records.url, sink="spark:x")
    committer.commit_through(0)

    check_none_left(records.find(), 0, where=records.url, sink="spark:x")


def test_publishing_again_is_nothing(job, sink):
    """An epoch that was published is not published again."""
    committer = job.recovered()
    run_epoch(job, committer, 0, "a")
    committer.commit_ready()
    committer.commit_ready()
    committer.commit_through(0)

    assert [0] == sink.asked("commit")


def test_epochs_are_published_in_order(job, sink):
    """Epochs that waited are published by number, and those past the last commit wait on."""
    committer = job.recovered()
    for epoch in range(3):
        run_epoch(job, committer, epoch, f"row {epoch}")
    job.spark.plan(3)
    committer.pre_commit(FakeFrame("row 3"), 3, counted(1))

    committer.commit_through(1)
    assert [0, 1] == sink.asked("commit")

    committer.commit_ready()
    assert [0, 1, 2] == sink.asked("commit")
    assert [0, 1, 2, 3] == job.epochs()
    assert record_of(job, 3).committed is None


def test_an_epoch_without_rows_is_an_epoch(job, sink):
    """A batch whose output is empty is staged, recorded and published like any other."""
    committer = job.recovered()
    run_epoch(job, committer, 0)
    committer.commit_ready()

    assert {0: []} == sink.published
    assert 0 == record_of(job, 0).sinks[0]["rows"]


def test_several_sinks_share_every_epoch(tmp_path):
    """All sinks get the same rows of a batch that is computed once, and are published together."""
    first, second = FakeSink("first"), FakeSink("second")
    job = EpochBench(tmp_path / "job", first, second)
    job.spark.begin().plan(0)
    committer = job.recovered()
    frame = FakeFrame("a")
    committer.pre_commit(frame, 0, counted(1))
    job.spark.commit(0)
    committer.commit_ready()
    job.close()

    assert {0: ["a"]} == first.published == second.published
    assert (1, 1) == (frame.persisted, frame.unpersisted)
    assert ["first", "second"] == [part["name"] for part in record_of(job, 0).sinks]


def test_one_sink_needs_no_copy(job):
    """With a single sink the batch's rows are not persisted."""
    committer = job.recovered()
    job.spark.plan(0)
    frame = FakeFrame("a")
    committer.pre_commit(frame, 0, counted(1))

    assert (0, 0) == (frame.persisted, frame.unpersisted)


def test_a_sink_that_cannot_stage_leaves_no_record(tmp_path):
    """
    When one of several sinks fails to stage, nothing is recorded, the rows are let go, and the
    batch fails with the sink's error.
    """

    class Full(FakeSink):
        def stage(self, df, epoch):
            raise OSError(28, "No space left on device")

    job = EpochBench(tmp_path / "job", FakeSink(), Full("full"))
    job.spark.begin().plan(0)
    committer = job.recovered()
    frame = FakeFrame("a")

    with pytest.raises(OSError, match="No space left"):
        committer.pre_commit(frame, 0, counted(1))
    job.close()

    assert [] == job.epochs()
    assert 1 == frame.unpersisted


def test_a_query_without_metadata_is_refused(tmp_path, sink):
    """A batch of a checkpoint that has no query id cannot be recorded."""
    job = EpochBench(tmp_path / "job", sink)
    committer = job.driver()

    with pytest.raises(SinkError, match="has written no metadata"):
        committer.pre_commit(FakeFrame("a"), 0, counted(1))
    job.close()

    assert [] == sink.asked("stage")


# --- recovery -----------------------------------------------------------------------------------


def test_recovery_of_nothing(job, sink):
    """A query that has never run has nothing to publish and no last epoch."""
    committer = job.recovered()

    assert committer.last_record() is None
    assert not committer.has_pending()
    assert [] == sink.asked("commit")


def test_recovery_publishes_what_spark_committed(job, sink):
    """
    Epochs that Spark committed and nobody published are published at the next start, in order.
    """
    first = job.recovered()
    run_epoch(job, first, 0, "a")
    first.commit_ready()
    run_epoch(job, first, 1, "b")
    run_epoch(job, first, 2, "c")

    second = job.recovered()

    assert {0: ["a"], 1: ["b"], 2: ["c"]} == sink.published
    assert [0, 1, 2] == sink.asked("commit")
    assert 2 == second.last_record().epoch
    assert all(record_of(job, epoch).committed for epoch in range(3))


def test_an_epoch_that_spark_did_not_commit_is_replaced_when_its_batch_runs_again(job, sink):
    """
    An epoch without a commit is neither published nor reverted at the start; what its batch
    stages when Spark runs it again takes its place, and only that is published.
    """
    first = job.recovered()
    run_epoch(job, first, 0, "a")
    job.spark.plan(1)
    first.pre_commit(FakeFrame("first run"), 1, counted(1))

    second = job.recovered()
    assert {0: ["a"]} == sink.published
    assert 0 == second.last_record().epoch
    assert not second.has_pending()

    second.pre_commit(FakeFrame("second run"), 1, counted(1))
    assert 2 == record_of(job, 1).token

    job.spark.commit(1)
    second.commit_ready()
    assert [1] == sink.asked("abort")
    assert {} == sink.staged
    assert {0: ["a"], 1: ["second run"]} == sink.published


def test_recovery_removes_what_no_record_names(job, sink):
    """
    What a driver that has ended staged without a record is removed; what one that may be alive
    staged stays until its epoch is published by another.
    """
    job.recovered()
    job.recovered()
    job.end(1)
    sink.staged.update({"0-1": ["half"], "0-2": ["half"]})

    third = job.recovered()
    assert {"0-2"} == set(sink.staged)

    run_epoch(job, third, 0, "a")
    third.commit_ready()
    third.remove_leftovers()
    assert {} == sink.staged


def test_what_waits_for_the_end_is_kept(job, sink):
    """
    What a drain has produced waits for ``finish()``: a start keeps it staged, whoever staged it.
    """
    died = job.recovered()
    run_epoch(job, died, 0, "a")
    run_epoch(job, died, 1, "the last windows")
    job.end(1)
    committer = job.driver()
    committer.recover(through=0)
    assert {0: ["a"]} == sink.published

    committer.commit_through(1)
    assert {0: ["a"], 1: ["the last windows"]} == sink.published


def test_recovery_twice_is_recovery(job, sink):
    """A second recovery finds nothing left to do."""
    first = job.recovered()
    run_epoch(job, first, 0, "a")
    second = job.recovered()
    second.recover()

    assert [0] == sink.asked("commit")


def test_a_sink_that_the_job_no_longer_has_stops_recovery(tmp_path):
    """
    A committed epoch of a sink that was removed from the job is an error that names the sink, and
    its record stays for when the sink is back.
    """
    kept, dropped = FakeSink("kept"), FakeSink("dropped")
    job = EpochBench(tmp_path / "job", kept, dropped)
    job.spark.begin()
    run_epoch(job, job.recovered(), 0, "a")

    without = job.driver("r1", kept)
    with pytest.raises(SinkError, match="'dropped', which the job no longer writes to"):
        without.recover()
    assert record_of(job, 0).committed is None

    job.recovered()
    job.close()
    assert {0: ["a"]} == dropped.published == kept.published


# --- fencing ------------------------------------------------------------------------------------


def test_a_driver_that_lost_its_lease_stages_nothing(job, sink):
    """A pre-commit of an overtaken driver fails before it computes a row."""
    old = job.recovered()
    job.recovered()
    job.spark.plan(0)

    with pytest.raises(LeaseLostError):
        old.pre_commit(FakeFrame("stale"), 0, counted(1))
    assert [] == sink.asked("stage")
    assert [] == job.epochs()


def test_a_driver_overtaken_while_it_stages_records_nothing(job, sink):
    """When the lease is lost between staging and recording, no record is put."""
    old = job.recovered()
    job.spark.plan(0)

    class Overtaken(FakeFrame):
        @property
        def rows(self):
            job.driver("r1")
            return ("stale",)

        @rows.setter
        def rows(self, _):
            pass

    with pytest.raises(LeaseLostError):
        old.pre_commit(Overtaken(), 0, counted(1))
    assert [] == job.epochs()


def test_a_driver_that_lost_its_lease_publishes_nothing(job, sink):
    """
    An epoch that Spark committed for an overtaken driver is published by the new driver alone.
    """
    old = job.recovered()
    run_epoch(job, old, 0, "a")
    new = job.driver()

    with pytest.raises(LeaseLostError):
        old.commit_ready()
    assert {} == sink.published
    assert record_of(job, 0).committed is None

    new.recover()
    assert {0: ["a"]} == sink.published


def test_a_driver_overtaken_while_it_publishes_stops_there(job, sink):
    """
    A sink can ask before each visible step whether its driver may go on, and is told when not.
    """
    old = job.recovered()
    run_epoch(job, old, 0, "a")
    publish = sink.commit

    def publish_slowly(committable, fence) -> None:
        job.driver()
        publish(committable, fence)

    sink.commit = publish_slowly
    with pytest.raises(LeaseLostError):
        old.commit_ready()
    assert {} == sink.published
    assert record_of(job, 0).committed is None


def test_an_epoch_is_pre_committed_once(job):
    """A driver records an epoch once: what it has pre-committed is never replaced by itself."""
    committer = job.recovered()
    job.spark.plan(0)
    committer.pre_commit(FakeFrame("a"), 0, counted(1))
    first = record_of(job, 0)

    with pytest.raises(LeaseLostError, match="lease 1 has pre-committed epoch 0 before"):
        committer.pre_commit(FakeFrame("b"), 0, counted(1))
    assert first == record_of(job, 0)


def test_a_driver_that_lost_its_lease_records_nothing_about_an_epoch_without_rows(job, tmp_path):
    """Also where a sink has nothing to publish, an overtaken driver writes nothing."""
    files = HandStagedFiles(tmp_path / "out")
    old = job.recovered("r1", files)
    run_epoch(job, old, 0)
    job.driver()

    with pytest.raises(LeaseLostError):
        old.commit_ready()
    assert record_of(job, 0).committed is None


@pytest.mark.parametrize("noticed", ["while it runs", "by the next driver"])
def test_a_batch_that_an_overtaken_driver_commits_late_is_published(job, sink, noticed):
    """
    When the Spark of an overtaken driver wakes up and commits its batch after all, its rows are
    published once, and the next batch counts on from them.
    """
    old = job.recovered()
    job.spark.plan(0)
    old.pre_commit(FakeFrame("a"), 0, counted(1))
    new = job.recovered()
    job.spark.commit(0)
    if noticed == "by the next driver":
        new = job.recovered()
    run_epoch(job, new, 1, "b")
    new.commit_ready()

    assert {0: ["a"], 1: ["b"]} == sink.published
    assert [0, 1] == sink.asked("commit")
    assert (2, 2) == (new.rows_read(), new.run_rows("fake"))


def test_late_rows_are_counted_over_batches_and_drivers(job):
    """
    A run's late rows grow by operator; a batch that is run again counts once, and what a driver
    cannot count makes the sum unknown.
    """
    first = job.recovered()
    assert {} == first.late_rows()
    for epoch, late in enumerate([{"0": 0}, {"0": 40, "1": 2}]):
        job.spark.plan(epoch)
        first.pre_commit(FakeFrame("a"), epoch, lambda late=late: BatchCounts(1, LateCount(late)))
        job.spark.commit(epoch)
    job.spark.plan(2)
    first.pre_commit(
        FakeFrame("b"), 2, lambda: BatchCounts(1, LateCount({"0": 5}, is_minimum=True))
    )
    assert first.late_is_minimum()
    assert {"0": 45, "1": 2} == first.late_rows()

    second = job.recovered()
    assert {"0": 40, "1": 2} == second.late_rows()
    second.pre_commit(FakeFrame("b"), 2, lambda: BatchCounts(1, LateCount({"0": 5})))
    job.spark.commit(2)
    assert not second.late_is_minimum()
    assert {"0": 45, "1": 2} == second.late_rows()

    second.pre_commit(FakeFrame("c"), 3, lambda: BatchCounts(1, None))
    assert second.late_rows() is None


def test_an_epoch_that_is_refused_is_not_recorded(job, sink):
    """
    What a check of the epoch's totals raises leaves no record, and the next run of the batch counts
    from the epoch before.
    """
    first = job.recovered()
    job.spark.plan(0)
    seen = []

    def refuse(record):
        seen.append((record.epoch, record.rows_read, record.late_rows))
        raise LateRowsError(
            "q", record.epoch, record.late_rows, read=record.rows_read, limit="0 rows"
        )

    with pytest.raises(LateRowsError):
        first.pre_commit(
            FakeFrame("a"), 0, lambda: BatchCounts(9, LateCount({"0": 4})), check=refuse
        )

    second = job.recovered()
    second.pre_commit(FakeFrame("b"), 0, lambda: BatchCounts(9, LateCount({"0": 4})))
    job.spark.commit(0)
    second.commit_ready()
    assert [(0, 9, {"0": 4})] == seen
    assert ({0: ["b"]}, 9, {"0": 4}) == (sink.published, second.rows_read(), second.late_rows())


def test_a_batch_that_two_drivers_ran_is_published_once(job, sink):
    """
    When an overtaken driver commits a batch that the new one has just run again, what the new one
    staged is published, and nothing of the old one's.
    """
    old = job.recovered()
    job.spark.plan(0)
    old.pre_commit(FakeFrame("a"), 0, counted(1))
    new = job.recovered()
    new.pre_commit(FakeFrame("a"), 0, counted(1))
    job.spark.commit(0)
    with pytest.raises(LeaseLostError):
        old.commit_ready()
    job.recovered()

    assert {0: ["a"]} == sink.published
    assert [0] == sink.asked("commit")
    assert {} == sink.staged


def test_what_an_overtaken_driver_commits_is_not_published_while_its_batch_runs_again(job, sink):
    """
    Spark may be running the batch again, and what that stages would then be published as well.
    """
    old = job.recovered()
    job.spark.plan(0)
    old.pre_commit(FakeFrame("a"), 0, counted(1))
    new = job.recovered()
    job.spark.commit(0)
    new.commit_ready()
    assert {} == sink.published

    new.pre_commit(FakeFrame("a"), 0, counted(1))
    new.commit_ready()

    assert [0] == sink.asked("commit")
    assert {0: ["a"]} == sink.published
    assert {} == sink.staged


def test_a_batch_that_nobody_recorded_is_refused(job, sink):
    """
    A batch that Spark committed and whose output no record names was run by another program; its
    rows are not skipped in silence.
    """
    run_epoch(job, job.recovered(), 0, "a")
    job.spark.run(1)

    with pytest.raises(CheckpointError, match="batch 1 is committed, but what it wrote is not"):
        job.recovered()
    assert {} == sink.published


def test_a_checkpoint_older_than_what_was_published_is_refused(job, sink):
    """
    When Spark's log ends before an epoch that was published, the checkpoint was removed or rolled
    back by hand; running on would publish the same rows again.
    """
    committer = job.recovered()
    run_epoch(job, committer, 0, "a")
    committer.commit_ready()
    shutil.rmtree(job.spark.root)
    job.spark.begin("a-new-query-id")

    with pytest.raises(CheckpointError):
        job.recovered()
    assert record_of(job, 0).committed is not None


# --- late pre-commits and late commits ------------------------------------------------------------


class Forgetful(HandStagedFiles):
    """A sink that is told what to forget, and has lost what it is told to have lost."""

    def __init__(self, folder):
        super().__init__(folder)
        self.lost, self.asked, self.forgotten = False, [], []

    def check_published(self, committable):
        self.asked.append(committable.epoch.epoch)
        if self.lost:
            raise CheckpointError("lost")

    def prune(self, query_id, epochs):
        self.forgotten.append((query_id, epochs))


def test_a_location_that_has_lost_the_newest_epoch_is_refused_before_anything_is_published(
    tmp_path,
):
    """A start asks each sink that can lose what it has confirmed for the newest published epoch."""
    sink = Forgetful(tmp_path / "out")
    with bench(tmp_path / "job", sink) as job:
        driver = job.begun().published(2).recovered()
        assert [1] == sink.asked
        job.spark.plan(2)
        driver.pre_commit(FakeFrame("row 2"), 2, counted(1))
        job.spark.commit(2)
        sink.lost = True
        with pytest.raises(CheckpointError, match="lost"):
            job.recovered()

    assert ["row 0", "row 1"] == sink.visible()


def test_a_location_forgets_the_epochs_whose_records_are_folded(tmp_path, monkeypatch):
    """What a line of the history stands for is neither committed again nor reverted."""
    monkeypatch.setattr(epoch_records, "KEEP_EPOCHS", 2)
    sink = Forgetful(tmp_path / "out")
    with bench(tmp_path / "job", sink) as job:
        job.begun().published(5).recovered("a later run")

    assert (QUERY_ID, [(0, 2)]) == sink.forgotten[-1]


def test_a_late_pre_commit_of_an_overtaken_driver_is_published(job, sink, monkeypatch):
    """
    A driver is paused between its last look at the lease and its record: what it puts after its
    successor has recovered is published before any later epoch, and counted.
    """
    old = job.recovered()
    run_epoch(job, old, 0, "a")
    old.commit_ready()
    job.spark.plan(1)
    put, took_over = EpochRecords.put_precommit, []

    def paused(records, record):
        monkeypatch.setattr(EpochRecords, "put_precommit", put)
        took_over.append(job.recovered())
        return put(records, record)

    monkeypatch.setattr(EpochRecords, "put_precommit", paused)
    old.pre_commit(FakeFrame("b"), 1, counted(1))
    job.spark.commit(1)
    new = took_over[0]
    run_epoch(job, new, 2, "the last windows")
    new.commit_ready()

    assert {0: ["a"], 1: ["b"], 2: ["the last windows"]} == sink.published
    assert [0, 1, 2] == sink.asked("commit")
    assert (3, 3) == (new.rows_read(), new.run_rows("fake"))


def test_rows_that_a_source_had_lost_add_up_over_a_run(job):
    """They stand in each record, so that a driver that comes later goes on counting."""
    committer = job.recovered()
    assert 0 == committer.lost_rows()
    for epoch, lost in enumerate((2, 3)):
        job.spark.plan(epoch)
        committer.pre_commit(FakeFrame("a"), epoch, lambda lost=lost: BatchCounts(1, lost=lost))
        job.spark.commit(epoch)
        committer.commit_ready()

    assert 5 == committer.lost_rows() == job.recovered().lost_rows()


@pytest.mark.parametrize("again", [True, False], ids=["with another batch", "as the last one"])
def test_a_commit_that_was_reported_as_failed_takes_effect_later(job, sink, again):
    """
    A query that is started again in its driver keeps what it has staged for the open batch, which
    Spark's own log may yet count.
    """
    committer = job.recovered()
    run_epoch(job, committer, 0, "a")
    job.spark.plan(1)
    committer.pre_commit(FakeFrame("b"), 1, counted(1))
    committer.give_up_open()
    assert (0, 1) == (committer.last_record().epoch, committer.rows_read())

    committer.begin_again()
    job.spark.commit(1)
    if again:
        run_epoch(job, committer, 2, "c")
        committer.commit_ready()
    committer.commit_through(job.spark.logs.position().last_commit)

    assert {0: ["a"], 1: ["b"], **({2: ["c"]} if again else {})} == sink.published
    assert (2 + again, 2 + again) == (committer.rows_read(), committer.run_rows("fake"))


def test_a_batch_that_its_driver_runs_again_is_staged_beside_its_first_run(job, sink):
    """
    What the second run has staged takes the place of the first one's, which is removed only when
    the epoch is published.
    """
    committer = job.recovered()
    job.spark.plan(0)
    committer.pre_commit(FakeFrame("first"), 0, counted(5))
    committer.begin_again()
    assert (None, 0) == (committer.last_record(), committer.rows_read())
    committer.pre_commit(FakeFrame("second"), 0, counted(5))
    assert {"0-1": ["first"], "0-2": ["second"]} == sink.staged

    job.spark.commit(0)
    committer.commit_ready()

    assert {0: ["second"]} == sink.published
    assert {} == sink.staged
    assert (5, 1) == (committer.rows_read(), committer.run_rows("fake"))
    assert [] == list(job.records.find().precommitted)


def test_a_restart_keeps_what_an_overtaken_driver_may_still_commit(job, sink):
    """
    A batch that two drivers have staged, and the second one's query failed in, is published once
    its commit appears, whoever wrote it, also when Spark has gone on to the next batch.
    """
    old = job.recovered()
    job.spark.plan(0)
    old.pre_commit(FakeFrame("a"), 0, counted(1))
    new = job.recovered()
    new.pre_commit(FakeFrame("a"), 0, counted(1))
    new.give_up_open()
    new.begin_again()
    job.spark.commit(0)
    run_epoch(job, new, 1, "b")
    new.commit_ready()
    new.remove_leftovers()

    assert {0: ["a"], 1: ["b"]} == sink.published
    assert {} == sink.staged
    assert [] == list(job.records.find().precommitted)


def test_a_start_publishes_an_epoch_that_was_passed_over(job, sink):
    """
    Where a later epoch was published and an earlier one only pre-committed, the earlier one is
    published at the next start.
    """
    first = job.recovered()
    for epoch in range(3):
        run_epoch(job, first, epoch, f"row {epoch}")
    done = dataclasses.replace(record_of(job, 2), committed="then")
    job.records.put_published(done)
    job.recovered()

    assert [0, 1] == sink.asked("commit")
    assert (0, 1, 2) == job.records.find().published


def test_a_run_does_not_end_over_a_batch_that_nobody_recorded(job, sink):
    """
    Also while a driver runs, a batch that is committed and whose output no record names is refused.
    """
    committer = job.recovered()
    run_epoch(job, committer, 0, "a")
    job.spark.run(1)

    with pytest.raises(CheckpointError, match="batch 1 is committed, but what it wrote is not"):
        committer.commit_through(1)
    with pytest.raises(CheckpointError, match="batch 1 is committed, but what it wrote is not"):
        run_epoch(job, committer, 2, "c")
    assert {0: ["a"]} == sink.published
    assert 2 == job.spark.logs.position().open_batch


def test_a_late_pre_commit_of_a_published_epoch_is_removed_at_the_end(job, sink):
    """
    A record that an overtaken driver puts after its epoch was published leaves nothing behind.
    """
    committer = job.recovered()
    run_epoch(job, committer, 0, "a")
    late = record_of(job, 0)
    committer.begin_again()
    committer.commit_through(0)
    sink.staged["0-7"] = ["late"]
    late_sinks = [{**late.sinks[0], "data": {"key": "0-7"}}]
    job.records.put_precommit(dataclasses.replace(late, token=7, sinks=late_sinks))
    committer.remove_leftovers()

    assert ({}, {}) == (sink.staged, dict(job.records.find().precommitted))
    assert {0: ["a"]} == sink.published


# --- counting -----------------------------------------------------------------------------------


def test_rows_are_counted_over_a_run(job):
    """Rows read and written add up over the epochs of a run."""
    committer = job.recovered()
    assert 0 == committer.rows_read()

    run_epoch(job, committer, 0, "a", "b", read=10)
    run_epoch(job, committer, 1, "c", read=5)

    assert 15 == committer.rows_read()
    assert 3 == committer.run_rows("fake")
    assert 0 == committer.run_rows("unknown")


def test_rows_are_counted_across_restarts(job):
    """A restarted attempt counts on from the epochs that hold, without those that were reverted."""
    first = job.recovered()
    run_epoch(job, first, 0, "a", "b", read=10)
    job.spark.plan(1)
    first.pre_commit(FakeFrame("lost"), 1, counted(100))

    second = job.recovered()
    assert (10, 2) == (second.rows_read(), second.run_rows("fake"))

    second.pre_commit(FakeFrame("c"), 1, counted(5))
    assert (15, 3) == (second.rows_read(), second.run_rows("fake"))


@pytest.mark.parametrize("published", [True, False])
def test_a_start_knows_what_was_written_before_it(job, published):
    """A start with nothing left to run counts the rows of its run, and names the last epoch."""
    before = job.recovered()
    run_epoch(job, before, 0, "a", "b", read=7)
    if published:
        before.commit_ready()
    after = job.recovered()

    assert (0, 7, 2) == (after.last_record().epoch, after.rows_read(), after.run_rows("fake"))


def test_another_run_counts_from_zero(job):
    """What an earlier run read and wrote is not counted again."""
    first = job.recovered("r1")
    run_epoch(job, first, 0, "a", "b", read=10)
    second = job.recovered("r2")

    assert (0, 0) == (second.rows_read(), second.run_rows("fake"))

    run_epoch(job, second, 1, "c", read=5)
    assert (5, 1) == (second.rows_read(), second.run_rows("fake"))


def test_what_is_not_known_stays_unknown(job):
    """Once a batch's input could not be counted, the run's count is unknown and not too low."""
    committer = job.recovered()
    job.spark.plan(0)
    committer.pre_commit(FakeFrame("a"), 0, counted(None))
    job.spark.commit(0)
    run_epoch(job, committer, 1, "b", read=5)

    assert committer.rows_read() is None
    assert 2 == committer.run_rows("fake")
