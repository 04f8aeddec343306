"""Reverting a run's epochs of one query: which, in what order, and what is refused."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import CheckpointError, LeaseLostError, RevertError
from airflow_provider.runtime.jobdir.epochs import RevertRecord
from airflow_provider.runtime.sinks.protocol import OpenFence
from airflow_provider.runtime.sinks.revert import Revert
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from airflow_provider.runtime.testing import LosingFence
from tests.unit.support import QUERY_ID, EpochBench, FakeFrame, FakeSink, counted


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


def run(job: EpochBench, run_id: str, *epochs: int, publish: bool = True) -> None:
    """Let a run write epochs, and end."""
    committer = job.recovered(run_id)
    for epoch in epochs:
        job.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"{run_id} {epoch}"), epoch, counted(1))
        job.spark.commit(epoch)
    if publish:
        committer.commit_ready()


def revert(job: EpochBench, run_id: str, *sinks, fence=None) -> Revert:
    return Revert(
        "q",
        records=job.records,
        sinks=sinks or job.sinks,
        run_id=run_id,
        fence=fence or OpenFence(9),
        clock=job.clock,
    )


def test_a_run_is_reverted_newest_epoch_first(job, sink):
    """
    The run's epochs go, those of the run before stay, and the record says from where on.
    """
    run(job, "r1", 0, 1)
    run(job, "r2", 2, 3)

    assert 2 == revert(job, "r2").revert()

    assert {0: ["r1 0"], 1: ["r1 1"]} == sink.published
    assert [[3, 2]] == sink.asked("revert") == sink.asked("check_revert")
    assert ("r2", 2, QUERY_ID) == (
        job.records.revert().run_id,
        job.records.revert().first_epoch,
        job.records.revert().query_id,
    )
    assert job.records.revert().began == job.records.revert().done


def test_twice_is_once(job, sink):
    """
    A second call removes nothing more.
    """
    run(job, "r1", 0)
    first = [revert(job, "r1").revert() for _ in range(2)]

    assert [0, 0] == first
    assert [[0]] == sink.asked("revert")


def test_a_run_that_wrote_nothing(job, sink):
    """
    There is nothing to revert, and nothing is recorded.
    """
    run(job, "r1", 0)

    assert -1 == revert(job, "r2").revert()
    assert job.records.revert() is None
    assert {0: ["r1 0"]} == sink.published


def test_what_waits_to_be_published_is_reverted_too(job, sink):
    """
    An epoch that was only pre-committed will never be published.
    """
    run(job, "r1", 0)
    run(job, "r1", 1, publish=False)

    revert(job, "r1").revert()

    assert ({}, {}) == (sink.staged, sink.published)
    assert [[1, 0]] == sink.asked("revert")


def test_no_query_runs_on_what_was_reverted(job):
    """
    The checkpoint must be restored first, or the run's input would count as read.
    """
    run(job, "r1", 0)
    revert(job, "r1").revert()

    with pytest.raises(CheckpointError, match=r"'r1' wrote, from epoch 0 on, was reverted"):
        job.recovered("r2")


def test_earlier_runs_follow(job, sink):
    """
    Runs are reverted from the last one backwards; a second one does not stumble over the first.
    """
    run(job, "r1", 0)
    run(job, "r2", 1)
    revert(job, "r2").revert()

    assert 0 == revert(job, "r1").revert()
    assert {} == sink.published


def test_a_run_that_others_followed_is_refused(job, sink):
    """
    Nothing is removed, and the error names the run to begin with.
    """
    run(job, "r1", 0)
    run(job, "r2", 1)

    for attempt in (revert(job, "r1").check, revert(job, "r1").revert):
        with pytest.raises(RevertError, match="run 'r2' has written .* revert the later runs"):
            attempt()
    assert {0: ["r1 0"], 1: ["r2 1"]} == sink.published
    assert job.records.revert() is None


def test_all_from_an_epoch_on_are_reverted_whatever_run_they_are_of(job, sink):
    """
    A savepoint knows no runs: what was written after it goes, twice is once, another epoch waits.
    """
    run(job, "r1", 0, 1)
    run(job, "r2", 2)

    def from_epoch(first):
        return Revert(
            "q",
            records=job.records,
            sinks=job.sinks,
            first_epoch=first,
            fence=OpenFence(9),
            clock=job.clock,
        )

    assert [1, 1] == [from_epoch(1).revert() for _ in range(2)]
    assert {0: ["r1 0"]} == sink.published
    assert [[2, 1]] == sink.asked("revert")
    assert 0 == from_epoch(0).revert()
    assert {} == sink.published


def test_another_revert_is_finished_first(job, sink):
    """
    One that has begun and died is named; its own run may go on with it.
    """
    run(job, "r1", 0)
    run(job, "r2", 1)
    job.records.put_revert(
        RevertRecord(query_id=QUERY_ID, run_id="r2", first_epoch=1, began="yesterday")
    )

    with pytest.raises(RevertError, match="run 'r2' is being reverted, which began at yest"):
        revert(job, "r1").revert()
    assert 1 == revert(job, "r2").revert()
    assert {0: ["r1 0"]} == sink.published


def test_a_run_whose_records_were_folded_is_refused(job, sink):
    """
    What it wrote is no longer known epoch by epoch.
    """
    run(job, "r1", 0, 1)
    job.records.put_folded(job.records.history().with_epochs([job.record(0)]))
    job.records.forget_published(0)

    with pytest.raises(RevertError, match="up to 0 were folded away"):
        revert(job, "r1").revert()
    assert [] == sink.asked("revert")


def test_a_sink_that_the_job_no_longer_has_is_refused(job):
    """
    The rows there could not be removed.
    """
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="written to 'fake', which the job no longer writes to"):
        revert(job, "r1", FakeSink("other")).revert()


def test_sparks_own_sinks_are_refused(job, sink):
    """
    A native sink beside says so before anything is removed.
    """
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="spark:console: .* cannot be reverted"):
        revert(job, "r1", sink, spark_sink("console")).revert()
    assert {0: ["r1 0"]} == sink.published


def test_a_sink_that_refuses_stops_before_the_others_begin(tmp_path):
    """
    All sinks are asked before the first row goes.
    """

    class Refusing(FakeSink):
        def check_revert(self, committables):
            msg = "not exactly"
            raise RevertError(msg)

    willing = FakeSink("willing")
    job = EpochBench(tmp_path / "job", willing, Refusing("refusing"))
    job.spark.begin()
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="not exactly"):
        revert(job, "r1").revert()
    job.close()
    assert {0: ["r1 0"]} == willing.published
    assert job.records.revert() is None


def test_every_step_is_fenced(job, sink):
    """
    A driver that loses its lease stops before the intent, in a sink, or before the end.
    """
    run(job, "r1", 0, 1)
    begun = []
    for lost_at in range(1, 5):
        with pytest.raises(LeaseLostError):
            revert(job, "r1", fence=LosingFence(lost_at)).revert()
        record = job.records.revert()
        begun.append((record is not None, record is not None and record.done is not None))
    assert [(False, False), (True, False), (True, False), (True, False)] == begun

    assert 0 == revert(job, "r1", fence=LosingFence(5)).revert()
    assert {} == sink.published
