"""Rewinding a run: outputs, checkpoint and records as they were before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider.runtime.asking import check_not_drained
from airflow_provider.runtime.drains import DrainIntent, draining_run, put_drain_intent
from airflow_provider.runtime.errors import CheckpointError, TakeBackError, UnknownJobError
from airflow_provider.runtime.jobdir import JobDirectory, JobRecord, RunRecord
from airflow_provider.runtime.rewinding import Rewind, begin_rewindable, starting_savepoint
from airflow_provider.runtime.savepoint import check_no_open_restore, open_savepoint
from airflow_provider.runtime.sinks import native
from airflow_provider.runtime.sinks.protocol import OpenFence
from tests.unit.support import QUERY_ID, EpochBench, FakeFrame, FakeSink, counted


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def job(tmp_path, sink):
    """Yield a job directory whose one query writes to ``sink``."""
    bench = EpochBench(tmp_path / "job", sink)
    bench.spark.begin()
    bench.spark.storage.put("sources/0/0", b"v1")
    JobDirectory(bench.storage).put_job(JobRecord(name="job", created="now"))
    yield bench
    bench.close()


def run(job: EpochBench, run_id: str, *epochs: int, rewindable: bool = True) -> None:
    """Let a run begin as a driver does, write epochs, and end."""
    directory = JobDirectory(job.storage)
    committer = job.recovered(run_id)
    record = RunRecord(
        run_id=run_id,
        entry="jobs.py:q",
        params={},
        mode="STREAMING",
        until="end",
        at_end="suspend",
        trigger_s=None,
        interval=None,
        starting={"q": job.spark.logs.position().last_commit},
        started=run_id,
    )
    directory.run(run_id).put_record(record)
    if rewindable:
        begin_rewindable(directory, record, job.clock)
    if epochs and job.spark.logs.query_id() is None:
        job.spark.begin(f"7d0f2a34-5f5e-4c0e-9f0a-{run_id:0>12}")
    for epoch in epochs:
        job.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"{run_id} {epoch}"), epoch, counted(1))
        job.spark.commit(epoch)
    committer.commit_ready()
    job.close()


def rewind(job: EpochBench, run_id: str, *sinks) -> Rewind:
    query = SimpleNamespace(name="q", sinks=sinks or job.sinks, native=None)
    return Rewind(JobDirectory(job.storage), run_id, [query], OpenFence(99), job.clock)


def test_a_run_that_began_with_the_job(job, sink):
    """
    Nothing is left of it: no row, no checkpoint; the next run begins anew.
    """
    run(job, "r1", 0, 1)

    rewind(job, "r1").rewind()

    assert {} == sink.published
    assert not job.spark.logs.exists()
    check_no_open_restore(JobDirectory(job.storage))
    run(job, "r2", 0, 1)
    assert {0: ["r2 0"], 1: ["r2 1"]} == sink.published


def test_a_run_that_began_in_the_middle(job, sink):
    """
    The rows of the runs before it stay, and the checkpoint is what it was when it began.
    """
    run(job, "r1", 0, 1)
    before = job.spark.logs.query_id()
    run(job, "r2", 2, 3)

    rewind(job, "r2").rewind()

    assert {0: ["r1 0"], 1: ["r1 1"]} == sink.published
    assert (1, 1) == (
        job.spark.logs.position().last_offsets,
        job.spark.logs.position().last_commit,
    )
    assert before != job.spark.logs.query_id()
    assert (
        "rewind"
        == open_savepoint(starting_savepoint(JobDirectory(job.storage), "r2")).record.origin
    )
    run(job, "r3", 2)
    assert {0: ["r1 0"], 1: ["r1 1"], 2: ["r3 2"]} == sink.published


def test_twice_is_once(job, sink):
    """
    A second call changes nothing, also after the run was executed again.
    """
    run(job, "r1", 0)
    rewind(job, "r1").rewind()
    run(job, "r2", 0)

    rewind(job, "r1").rewind()

    assert {0: ["r2 0"]} == sink.published


def test_later_runs_are_rewound_first(job, sink):
    """
    The error lists them, the newest first; then it goes.
    """
    for number in range(3):
        run(job, f"r{number}", number)

    with pytest.raises(TakeBackError, match=r"rewind them first, the newest first: r2, r1"):
        rewind(job, "r0").rewind()
    assert 3 == len(sink.published)

    for number in (2, 1, 0):
        rewind(job, f"r{number}").rewind()
    assert {} == sink.published


def test_a_drain_is_undone_with_its_run(job):
    """
    A job that a run has drained goes on when that run is rewound.
    """
    run(job, "r1", 0)
    directory = JobDirectory(job.storage)
    intent = DrainIntent(query_id=QUERY_ID, run_id="r1", batch=0, at="now")
    put_drain_intent(directory, "q", intent)
    check_not_drained(directory, "r2", replays="r1")

    rewind(job, "r1").rewind()

    assert draining_run(directory) is None
    check_not_drained(directory, "r2")


def test_what_cannot_be_rewound(job, sink):
    """
    An unknown run, one that did not begin with a savepoint, and a sink that keeps no account.
    """
    run(job, "r1", 0)
    run(job, "r2", 1, rewindable=False)

    with pytest.raises(UnknownJobError, match="no run 'nobody'"):
        rewind(job, "nobody").check()
    with pytest.raises(TakeBackError, match="run 'r2' did not begin with a savepoint"):
        rewind(job, "r2").check()
    run_of = SimpleNamespace(name="q", sinks=(), native=native("console"))
    with pytest.raises(TakeBackError, match="did not begin with a savepoint|cannot be taken back"):
        Rewind(JobDirectory(job.storage), "r2", [run_of], OpenFence(), job.clock).check()
    assert {0: ["r1 0"], 1: ["r2 1"]} == sink.published


def test_no_driver_runs_a_job_that_is_half_rewound(job):
    """
    Between the intent and its end the job is nobody's.
    """
    run(job, "r1", 0)
    half = rewind(job, "r1")
    lost = SimpleNamespace(token=9, check=lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Rewind(half.directory, "r1", half.queries, lost, job.clock).rewind()
    assert job.records.take_back() is None  # stopped before the first step

    calls = iter([None, None, None])
    dies_later = SimpleNamespace(token=9, check=lambda: next(calls))
    with pytest.raises(StopIteration):
        Rewind(half.directory, "r1", half.queries, dies_later, job.clock).rewind()
    with pytest.raises(CheckpointError, match="must be restored to before that run"):
        job.recovered("r2")

    rewind(job, "r1").rewind()
    check_no_open_restore(half.directory)
