"""The commit of a BATCH run: one document, from which its queries' epochs count."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.runtime.checkpoint.drain_step import DrainStep, LogPosition, next_drain_step
from airflow_provider.runtime.errors import CheckpointError, JobDrainedError
from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.jobdir.run_commit import commit_log_of, verify_final
from airflow_provider.runtime.jobdir.run_records import BatchCommit
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.testing.job_directories import (
    NOW,
    QUERY_ID,
    JobDirectoryBuilder,
    a_final,
    a_run,
    an_epoch,
    rewind_run,
)
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    """Return a job whose run r1 is in BATCH and has not committed."""
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    job.directory.run("r1").put_record(a_run(mode="batch", query_ids={"q": QUERY_ID}))
    return job


def commit(job: JobDirectoryBuilder, run_id: str = "r1") -> None:
    record = BatchCommit(run_id=run_id, token=1, at=NOW)
    job.directory.run(run_id).put_batch_commit(record)


def log_of(job: JobDirectoryBuilder, query: str = "q", mode: str = "BATCH"):
    return commit_log_of(job.directory, job.directory.run("r1"), query, mode=mode)


def test_nothing_is_committed_before_the_run_is(job):
    """Before the commit there is no batch; with it there is one, epoch 0, and nothing to drain."""
    log = log_of(job)
    before = (log.position(), log.is_committed(0))
    commit(job)

    assert (LogPosition(-1, -1, None), False) == before
    assert (LogPosition(0, 0, None), True, False) == (
        log.position(),
        log.is_committed(0),
        log.is_committed(1),
    )
    assert DrainStep.NOTHING == next_drain_step(log.position(), stateful=log.is_stateful())
    assert (QUERY_ID, []) == (log.query_id(), log.offsets(0).source_offsets())


def test_the_first_commit_stays(job):
    """A driver that was overtaken cannot replace the commit."""
    commit(job)
    late = BatchCommit(run_id="r1", token=99, at="later")
    job.directory.run("r1").put_batch_commit(late)

    assert 1 == job.directory.run("r1").batch_commit().token


def test_a_stream_asks_its_checkpoint(job):
    """In STREAMING Spark's own logs decide, whatever lies beside them."""
    commit(job)

    log = log_of(job, mode="STREAMING")

    assert job.directory.checkpoint("q").url == log.url


def test_a_query_that_the_run_does_not_know_is_refused(job):
    """A program that was changed between two attempts cannot add a query."""
    with pytest.raises(CheckpointError, match=r"no query 'other' \(it has: q\).*another run id"):
        log_of(job, "other")


def test_a_committed_run_ends_the_job(job):
    """
    Before the commit another run may begin; after it only this one goes on, unless it was rewound.
    """
    check_preconditions(job.directory, "r2")
    commit(job)

    check_preconditions(job.directory, "r1")
    check_preconditions(job.directory, "r2", replays="r1")
    with pytest.raises(JobDrainedError, match="is being drained by run 'r1'.*--run-id r1"):
        check_preconditions(job.directory, "r2")
    rewind_run(job.directory, "r1")
    check_preconditions(job.directory, "r2")


def test_a_final_checkpoint_in_batch_is_verified_against_the_commit(job):
    """It holds with the commit and the epoch's record, and not without one of them."""
    final = a_final()
    final = type(final)(**{**vars(final), "mode": "BATCH"})
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    records.put_published(an_epoch())

    with pytest.raises(CheckpointError, match="committed batch 0, but"):
        verify_final(job.directory, final)
    commit(job)
    assert final == verify_final(job.directory, final)
    records.forget(EpochListing(published=(0,)))
    with pytest.raises(CheckpointError, match="published epoch 0"):
        verify_final(job.directory, final)


# --- drivers that overtake each other -----------------------------------------------------------


class BatchBench(EpochBench):
    """A job directory whose only query is a BATCH run's."""

    def __init__(self, root: Path, sink: FakeSink) -> None:
        super().__init__(root, sink)
        directory = JobDirectory(self.storage)
        self.run = directory.run("r1")
        self.run.put_record(a_run(mode="batch", query_ids={"q": QUERY_ID}))

    @property
    def spark(self) -> Any:
        """Return what commits the run, where a stream has Spark's log."""
        log = commit_log_of(JobDirectory(self.storage), self.run, "q", mode="BATCH")
        return types.SimpleNamespace(logs=log)

    def opened(self) -> EpochCommitter:
        """Take the lease as an attempt does, which holds everything back until finish()."""
        committer = self.driver()
        committer.recover(through=-1)
        return committer

    def commit(self, token: int) -> None:
        self.run.put_batch_commit(BatchCommit(run_id="r1", token=token, at=NOW))


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def batch(tmp_path, sink):
    """Yield a BATCH run of one query that writes to ``sink``."""
    bench = BatchBench(tmp_path / "job", sink)
    yield bench
    bench.close()


def test_an_attempt_that_died_before_the_commit_is_run_again(batch, sink):
    """What it staged is never published; what the next attempt stages takes its place."""
    batch.opened().pre_commit(FakeFrame("old"), 0, counted(1))
    again = batch.opened()
    again.commit_ready()
    again.pre_commit(FakeFrame("a", "b"), 0, counted(2))
    again.commit_ready()
    assert {} == sink.published

    batch.commit(2)
    again.commit_through(0)

    assert ({0: ["a", "b"]}, {}) == (sink.published, sink.staged)
    assert (2, 2) == (again.rows_read(), again.run_rows("fake"))


def test_from_the_commit_on_what_was_staged_counts(batch, sink):
    """The next attempt publishes it, not before it is asked to, and runs nothing."""
    batch.opened().pre_commit(FakeFrame("a"), 0, counted(1))
    batch.commit(1)
    again = batch.opened()
    assert {} == sink.published

    again.commit_through(position_of(batch))

    assert {0: ["a"]} == sink.published
    third = batch.opened()
    third.commit_through(position_of(batch))
    assert ([0], 1) == (sink.asked("commit"), third.rows_read())


def position_of(batch: BatchBench) -> int:
    return batch.spark.logs.position().last_commit


def test_a_commit_by_a_driver_that_was_overtaken_counts_once(batch, sink):
    """If its successor stages as well, that one's rows are published and no others."""
    batch.opened().pre_commit(FakeFrame("old"), 0, counted(1))
    second = batch.opened()
    batch.commit(1)
    second.pre_commit(FakeFrame("new"), 0, counted(1))
    second.commit_through(0)
    assert ({0: ["new"]}, {}) == (sink.published, sink.staged)


def test_a_commit_by_a_driver_that_was_overtaken_is_not_lost(batch, sink):
    """If its successor dies before it has staged, the one after it publishes what was committed."""
    batch.opened().pre_commit(FakeFrame("old"), 0, counted(1))
    batch.opened()
    batch.commit(1)

    batch.opened().commit_through(0)

    assert ({0: ["old"]}, {}) == (sink.published, sink.staged)
