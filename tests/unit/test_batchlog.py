"""The commit of a BATCH run: one document, from which its queries' epochs count."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.asking import check_not_drained
from airflow_provider.runtime.batchlog import commit_log_of
from airflow_provider.runtime.checkpoint import DrainStep, LogPosition, next_drain_step
from airflow_provider.runtime.errors import CheckpointError, JobDrainedError
from airflow_provider.runtime.final import verify_final
from airflow_provider.runtime.jobdir import BatchCommit, RewoundRecord
from airflow_provider.runtime.sinks import EpochRecords
from tests.unit.jobs import NOW, HandMadeJob, a_final, a_run, an_epoch
from tests.unit.support import QUERY_ID


@pytest.fixture
def job(tmp_path) -> HandMadeJob:
    """Return a job whose run r1 is in BATCH and has not committed."""
    job = HandMadeJob(tmp_path / "job").begin()
    job.directory.run("r1").put_record(a_run(mode="BATCH", query_ids={"q": QUERY_ID}))
    return job


def commit(job: HandMadeJob, run_id: str = "r1") -> None:
    record = BatchCommit(run_id=run_id, token=1, at=NOW)
    job.directory.run(run_id).put_batch_commit(record)


def log_of(job: HandMadeJob, query: str = "q", mode: str = "BATCH"):
    return commit_log_of(job.directory, job.directory.run("r1"), query, mode=mode)


def test_nothing_is_committed_before_the_run_is(job):
    """
    Before the commit there is no batch; with it there is one, epoch 0, and nothing to drain.
    """
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
    """
    A driver that was overtaken cannot replace the commit.
    """
    commit(job)
    late = BatchCommit(run_id="r1", token=99, at="later")
    job.directory.run("r1").put_batch_commit(late)

    assert 1 == job.directory.run("r1").batch_commit().token


def test_a_stream_asks_its_checkpoint(job):
    """
    In STREAMING Spark's own logs decide, whatever lies beside them.
    """
    commit(job)

    log = log_of(job, mode="STREAMING")

    assert job.directory.checkpoint("q").url == log.url


def test_a_query_that_the_run_does_not_know_is_refused(job):
    """
    A program that was changed between two attempts cannot add a query.
    """
    with pytest.raises(CheckpointError, match=r"no query 'other' \(it has: q\).*another run id"):
        log_of(job, "other")


def test_a_committed_run_ends_the_job(job):
    """
    Before the commit another run may begin; after it only this one goes on, unless it was rewound.
    """
    check_not_drained(job.directory, "r2")
    commit(job)

    check_not_drained(job.directory, "r1")
    check_not_drained(job.directory, "r2", replays="r1")
    with pytest.raises(JobDrainedError, match="is being drained by run 'r1'.*--run-id r1"):
        check_not_drained(job.directory, "r2")
    job.directory.run("r1").put_rewound(RewoundRecord(run_id="r1", savepoint=None, at=NOW))
    check_not_drained(job.directory, "r2")


def test_a_final_checkpoint_in_batch_is_verified_against_the_commit(job):
    """
    It holds with the commit and the epoch's record, and not without one of them.
    """
    final = a_final()
    final = type(final)(**{**vars(final), "mode": "BATCH"})
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    records.put_published(an_epoch())

    with pytest.raises(CheckpointError, match="committed batch 0, but"):
        verify_final(job.directory, final)
    commit(job)
    assert final == verify_final(job.directory, final)
    records.forget_published(0)
    with pytest.raises(CheckpointError, match="published epoch 0"):
        verify_final(job.directory, final)
