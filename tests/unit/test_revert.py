"""Reverting all that a query has written after an epoch: what, in what order, what is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.errors import CheckpointError, LeaseLostError, RevertError
from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords
from airflow_provider.runtime.sinks.revert import Revert, revert_after
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from airflow_provider.runtime.testing.sink_bench import LosingFence
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted


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


def revert(
    job: EpochBench, first_epoch: int, *sinks, fence=None, is_replay: bool = False
) -> Revert:
    return Revert(
        "q",
        records=job.records,
        sinks=sinks or job.sinks,
        first_epoch=first_epoch,
        fence=fence or OpenFence(9),
        clock=job.clock,
        is_replay=is_replay,
    )


def test_the_newest_epoch_goes_first(job, sink):
    """What was written from an epoch on goes, what is before it stays, and the record says so."""
    run(job, "r1", 0, 1)
    run(job, "r2", 2, 3)

    revert(job, 2).revert()

    assert {0: ["r1 0"], 1: ["r1 1"]} == sink.published
    assert [[3, 2]] == sink.asked("revert") == sink.asked("check_revert")
    assert 2 == job.records.find().reverted_from


def test_twice_is_once(job, sink):
    """A second call removes nothing more, nor does one for a part of what is reverted."""
    run(job, "r1", 0, 1)
    for first_epoch in (0, 0, 1):
        revert(job, first_epoch).revert()

    assert [[1, 0]] == sink.asked("revert")
    assert 0 == job.records.find().reverted_from


def test_where_nothing_was_written(job, sink):
    """There is nothing to revert, and nothing is recorded."""
    run(job, "r1", 0)

    revert(job, 1).revert()

    assert job.records.find().reverted_from is None
    assert {0: ["r1 0"]} == sink.published


def test_what_waits_to_be_published_is_reverted_too(job, sink):
    """An epoch that was only pre-committed will never be published."""
    run(job, "r1", 0)
    run(job, "r1", 1, publish=False)

    revert(job, 0).revert()

    assert ({}, {}) == (sink.staged, sink.published)
    assert [[1, 0]] == sink.asked("revert")


def test_no_query_runs_on_what_was_reverted(job):
    """The checkpoint must be restored first, or the input of what is gone would count as read."""
    run(job, "r1", 0)
    revert(job, 0).revert()

    with pytest.raises(CheckpointError, match=r"what was written under this id was reverted"):
        job.recovered("r2")


def test_earlier_epochs_follow(job, sink):
    """A revert that goes back further does not stumble over the one before."""
    run(job, "r1", 0)
    run(job, "r2", 1)
    revert(job, 1).revert()

    revert(job, 0).revert()

    assert {} == sink.published
    assert 0 == job.records.find().reverted_from


def test_epochs_are_reverted_whatever_run_they_are_of(job, sink):
    """A savepoint knows no runs: what was written after it goes."""
    run(job, "r1", 0, 1)
    run(job, "r2", 2)

    revert(job, 1).revert()

    assert {0: ["r1 0"]} == sink.published
    assert [[2, 1]] == sink.asked("revert")


def test_a_late_record_of_less_changes_nothing(job, sink):
    """A process that was paused before it recorded its revert, and was overtaken by a further one."""
    run(job, "r1", 0, 1)
    run(job, "r2", 2)
    revert(job, 1).revert()

    job.records.put_reverted(2, "late")

    assert [0] == job.records.active_epochs_after(-1)
    assert 1 == job.records.find().reverted_from


@pytest.mark.parametrize("lost_at", range(1, 7))
def test_a_revert_across_a_restore_goes_on_wherever_it_has_died(job, sink, lost_at):
    """
    A copy begins in the middle, and its record names its own first epoch; the next call knows it.
    """
    run(job, "r1", 0, 1, 2)
    copy = EpochRecords(job.committables, "copy")
    copy.continue_after(2)
    now = to_iso(job.clock.now())  # what a restore leaves of the id that the query had
    job.records.put_reverted(3, now)
    job.spark.root.joinpath("metadata").unlink()
    job.spark.begin("copy")
    run(job, "r2", 3, 4)

    def revert_under(fence) -> None:
        for work in revert_after(
            SimpleNamespace(name="q", sinks=job.sinks, native=None),
            storage=job.committables,
            epoch=0,
            fence=fence,
            clock=job.clock,
        ):
            work.revert()

    with pytest.raises(LeaseLostError):
        revert_under(LosingFence(lost_at))
    revert_under(OpenFence(9))

    assert {0: ["r1 0"]} == sink.published
    assert 3 == copy.find().reverted_from
    assert 1 == job.records.find().reverted_from


def test_epochs_whose_records_were_folded_are_refused(job, sink):
    """What was written there is no longer known epoch by epoch."""
    run(job, "r1", 0, 1)
    job.records.put_folded(job.records.history().with_epochs([job.record(0)]))
    job.records.forget(EpochListing(published=(0,)))

    with pytest.raises(RevertError, match="up to 0 were folded away"):
        revert(job, 0).revert()
    assert [] == sink.asked("revert")
    revert(job, 1).revert()
    assert {0: ["r1 0"]} == sink.published


def test_a_sink_that_the_job_no_longer_has_is_refused(job):
    """The rows there could not be removed."""
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="written to 'fake', which the job no longer writes to"):
        revert(job, 0, FakeSink("other")).revert()


def test_sparks_own_sinks_are_refused(job, sink):
    """A native sink beside says so before anything is removed."""
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="spark:console: .* cannot be reverted"):
        revert(job, 0, sink, spark_sink("console")).revert()
    assert {0: ["r1 0"]} == sink.published


def test_a_sink_that_refuses_stops_before_the_others_begin(tmp_path):
    """All sinks are asked before the first row goes."""

    class Refusing(FakeSink):
        def check_revert(self, committables):
            raise RevertError("not exactly")

    willing = FakeSink("willing")
    job = EpochBench(tmp_path / "job", willing, Refusing("refusing"))
    job.spark.begin()
    run(job, "r1", 0)

    with pytest.raises(RevertError, match="not exactly"):
        revert(job, 0).revert()
    job.close()
    assert {0: ["r1 0"]} == willing.published
    assert job.records.find().reverted_from is None


def test_every_step_is_fenced(job, sink):
    """A driver that loses its lease stops in a sink, or before it says that all is reverted."""
    run(job, "r1", 0, 1)
    for lost_at in range(1, 4):
        with pytest.raises(LeaseLostError):
            revert(job, 0, fence=LosingFence(lost_at)).revert()
        assert job.records.find().reverted_from is None

    revert(job, 0, fence=LosingFence(4)).revert()
    assert {} == sink.published
    assert job.records.find().reverted_from is not None


class SliceOf(FakeSink):
    """A sink that replaces a slice, and records which epochs it leaves to a replay."""

    replaces = "n = 1"

    def __init__(self, *, will_replace: bool) -> None:
        super().__init__()
        self.left: list[list[int]] = []
        self._will_replace = will_replace

    def will_replace(self, committables):
        del committables
        return self._will_replace

    def supersede(self, committables, fence):
        fence.check()
        self.left.append([committable.epoch.epoch for committable in committables])


@pytest.mark.parametrize(
    ("will_replace", "is_replay", "left"),
    [(True, True, [[0]]), (False, True, []), (True, False, [])],
    ids=["a replay", "a replay of another slice", "a rewind"],
)
def test_a_replay_leaves_the_rows_of_a_slice_to_its_commit(tmp_path, will_replace, is_replay, left):
    """Only a replay does, and only of the same slice; a revert need not even be possible then."""
    sink = SliceOf(will_replace=will_replace)
    bench = EpochBench(tmp_path / "job", sink)
    bench.spark.begin()
    run(bench, "r1", 0)
    revert(bench, 0, is_replay=is_replay).revert()

    reverted = [] if left else [[0]]
    assert (left, reverted) == (sink.left, sink.asked("revert"))
    assert reverted == sink.asked("check_revert")
    assert 0 == bench.records.find().reverted_from
    bench.close()
