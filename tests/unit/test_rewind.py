"""Rewinding a run: outputs, checkpoint and records as they were before it."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.base.host import ProcessIdentity
from airflow_provider.runtime.driver import rewind_job as rewind_job_module
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.rewind_job import describe_restored, rewind_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    RevertError,
    SavepointBusyError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir import epochs as epoch_records
from airflow_provider.runtime.jobdir.end_of_input import DrainIntent, draining_run, put_drain_intent
from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord
from airflow_provider.runtime.jobdir.epochs import EpochRecords
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.lease_records import newest_token
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.savepoints import rewind as rewind_module
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.record import SavepointClaimRecord
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores, check_no_open_restore
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    begin_rewindable,
    check_rewinds,
    forget_older,
    replayable_runs,
    starting_savepoint,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.revert import output_of, revert_after
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from airflow_provider.runtime.testing.job_directories import (
    QUERY_ID,
    CheckpointBuilder,
    a_final,
    a_run,
)
from tests.dying import dies_at
from tests.present import present
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

pytestmark = pytest.mark.slow


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def job(tmp_path, sink):
    """Yield a job directory whose one query writes to ``sink``."""
    bench = EpochBench(tmp_path / "job", sink).begun()
    yield bench
    bench.close()


def run(job: EpochBench, run_id: str, *epochs: int, rewindable: bool = True, **others: int) -> None:
    """Let a run begin as a driver does, write epochs, and end; *others* are further queries."""
    directory = JobDirectory(job.storage)
    committer = job.recovered(run_id)
    record = a_run(
        run_id,
        at_end="suspend",
        starting={"q": job.spark.logs.position().last_commit, **others},
        started=run_id,
        replayable=rewindable,
    )
    record = directory.run(run_id).put_record(record)
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


def keep(job: EpochBench, run_id: str, runs: int) -> list[str]:
    """Dispose of the savepoints of older runs, and return the folders that are left."""
    directory = JobDirectory(job.storage)
    kept = replayable_runs(directory, run_id, runs)
    forget_older(directory, kept, job.clock, token=newest_token(job.storage))
    return job.storage.list("savepoints")


def rewind(job: EpochBench, run_id: str, *sinks) -> Rewind:
    query = SimpleNamespace(name="q", sinks=sinks or job.sinks, native=None)
    return Rewind(JobDirectory(job.storage), run_id, [query], OpenFence(99), job.clock)


def test_a_run_that_began_with_the_job(job, sink):
    """Nothing is left of it: no row, no checkpoint; the next run begins anew."""
    run(job, "r1", 0, 1)

    rewind(job, "r1").rewind()

    assert {} == sink.published
    assert not job.spark.logs.exists()
    check_no_open_restore(JobDirectory(job.storage))
    run(job, "r2", 0, 1)
    assert {0: ["r2 0"], 1: ["r2 1"]} == sink.published


def test_a_run_is_not_rewound_by_what_a_reset_has_planned(job, sink):
    """Both set queries to no savepoint; the one keeps rows that the other reverts."""
    run(job, "r1", 0, 1)
    directory = JobDirectory(job.storage)
    lease = job.lease("r2")
    reset = RestoreSettings(None, {"q": ""}, keep_outputs=True)
    with dies_at("restore.begun"):
        Restore(directory, lease, job.clock).begin(reset)
    job.close()

    with pytest.raises(CheckpointError, match="were to be reset, which began .* did not end"):
        rewind(job, "r1").rewind()
    assert {0: ["r1 0"], 1: ["r1 1"]} == sink.published
    assert directory.run("r1").rewound() is None


def test_a_driver_presumed_dead_leaves_the_starts_of_later_runs(job):
    """It has counted the runs to keep before it was paused, and knows of none since."""
    run(job, "r1", 0)
    run(job, "r2", 1)
    late = newest_token(job.storage)
    run(job, "r3", 2)

    forget_older(JobDirectory(job.storage), ["r2"], job.clock, token=late)
    assert ["rewind-r2", "rewind-r3"] == job.storage.list("savepoints")
    assert ["rewind-r3"] == keep(job, "r3", 1)


def test_a_run_that_began_in_the_middle(job, sink):
    """The rows of the runs before it stay, and the checkpoint is what it was when it began."""
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
    assert "rewind-r2" == present(starting_savepoint(JobDirectory(job.storage), "r2")).folder
    run(job, "r3", 2)
    assert {0: ["r1 0"], 1: ["r1 1"], 2: ["r3 2"]} == sink.published


def test_twice_is_once(job, sink):
    """A second call changes nothing, also after the run was executed again."""
    run(job, "r1", 0)
    rewind(job, "r1").rewind()
    run(job, "r2", 0)

    rewind(job, "r1").rewind()

    assert {0: ["r2 0"]} == sink.published


def test_later_runs_are_rewound_first(job, sink):
    """The error lists them, the newest first; then it goes."""
    for number in range(3):
        run(job, f"r{number}", number)

    with pytest.raises(RevertError, match=r"rewind them first, the newest first: r2, r1"):
        rewind(job, "r0").rewind()
    assert 3 == len(sink.published)

    for number in (2, 1, 0):
        rewind(job, f"r{number}").rewind()
    assert {} == sink.published


def test_a_drain_is_undone_with_its_run(job):
    """A job that a run has drained goes on when that run is rewound."""
    run(job, "r1", 0)
    directory = JobDirectory(job.storage)
    intent = DrainIntent(query_id=QUERY_ID, run_id="r1", batch=0, at="now")
    put_drain_intent(directory, "q", intent)
    check_preconditions(directory, "r2", replays="r1")

    rewind(job, "r1").rewind()

    assert draining_run(directory) is None
    check_preconditions(directory, "r2")


def test_what_cannot_be_rewound(job, sink):
    """An unknown run, and one that did not begin with a savepoint."""
    run(job, "r1", 0)
    run(job, "r2", 1, rewindable=False)

    with pytest.raises(UnknownJobError, match="no run 'nobody'"):
        rewind(job, "nobody").check()
    with pytest.raises(
        RevertError, match="run 'r2' cannot be rewound: it did not begin with a sav"
    ):
        rewind(job, "r2").check()
    assert {0: ["r1 0"], 1: ["r2 1"]} == sink.published


def test_a_run_that_wrote_with_one_of_sparks_own_sinks(job):
    """Nobody knows what it has written, so it is refused once a batch has committed."""
    run(job, "r1")
    query = SimpleNamespace(name="q", sinks=(), native=spark_sink("console"))
    spark = Rewind(JobDirectory(job.storage), "r1", [query], OpenFence(), job.clock)
    spark.check()
    job.spark.run(0).plan(1)

    with pytest.raises(RevertError, match="spark:console: what it has written cannot be reverted"):
        spark.rewind()
    assert job.spark.logs.exists()


def test_what_spark_has_written_by_itself_since_a_restore_is_noticed(job):
    """
    The id that the query had before has a record, and says nothing of the one that it has now.
    """
    job.spark.run(0)
    directory = JobDirectory(job.storage)
    source = job_source(job.storage.url, job.clock)
    saved = take_savepoint(source, f"{job.storage.url}/savepoints/s1", clock=job.clock)
    Restore(directory, OpenFence(), job.clock).run(RestoreSettings(saved, {"q": "q"}))
    starting = {"q": 0}
    run_record = a_run("r1", at_end="suspend", starting=starting, started="r1", replayable=True)
    begin_rewindable(directory, directory.run("r1").put_record(run_record), job.clock)
    job.spark.run(1)

    query = SimpleNamespace(name="q", sinks=(), native=spark_sink("console"))
    with pytest.raises(RevertError, match="spark:console: what it has written cannot be reverted"):
        Rewind(directory, "r1", [query], OpenFence(), job.clock).check()
    source = job_source(job.storage.url, job.clock)
    newest = take_savepoint(source, f"{job.storage.url}/savepoints/s2", clock=job.clock)
    assert 1 == newest.record.queries["q"].batch


def test_no_driver_runs_a_job_that_is_half_rewound(job):
    """Between the intent and its end the job is nobody's."""
    run(job, "r1", 0)
    half = rewind(job, "r1")
    lost = SimpleNamespace(token=9, check=lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        Rewind(half.directory, "r1", half.queries, lost, job.clock).rewind()
    with dies_at("revert.removed_one"):
        half.rewind()
    assert job.records.find().reverted_from is None
    with pytest.raises(CheckpointError, match="to end it: spark-stream rewind .*job r1, or"):
        check_no_open_restore(half.directory)

    rewind(job, "r1").rewind()
    check_no_open_restore(half.directory)


def test_the_savepoints_of_the_newest_runs_are_kept(job, sink):
    """
    Older ones are disposed of, and so are those of runs that were rewound; a run that lost its own
    says so, and how to keep more. Those of other origin stay.
    """
    for number in range(5):
        run(job, f"r{number}", number)
    source = job_source(job.storage.url, job.clock)
    take_savepoint(source, f"{job.storage.url}/savepoints/rewind-mine", clock=job.clock)

    assert ["rewind-mine", "rewind-r3", "rewind-r4"] == keep(job, "r4", 2)
    for number in (4, 3):
        rewind(job, f"r{number}").rewind()
    with pytest.raises(RevertError, match="was disposed of.*replayable_runs says how many"):
        rewind(job, "r2").rewind()
    assert [0, 1, 2] == sorted(sink.published)

    run(job, "r5", 3)
    assert ["rewind-mine", "rewind-r5"] == keep(job, "r5", 2)
    assert ["r5", "r2", "r1"] == replayable_runs(JobDirectory(job.storage), "r5", 3)


def test_a_run_is_not_made_replayable_in_its_middle(job, sink):
    """
    An attempt that is asked to be replayable after others were not takes no savepoint: rewinding to
    it would undo half of the run.
    """
    run(job, "r1", 0)
    run(job, "r2", 1, rewindable=False)
    run(job, "r2", 2)

    assert [] == job.storage.list("savepoints")
    with pytest.raises(RevertError, match="it did not begin with a savepoint"):
        rewind(job, "r2").rewind()
    assert 3 == len(sink.published)


def test_a_run_that_died_before_its_savepoint(job, sink):
    """
    It has written nothing, so it is rewound, and does not stand in the way of the one before it.
    """
    run(job, "r1", 0)
    run(job, "r2", 1)
    run(job, "r3", rewindable=False)
    rewind(job, "r2").rewind()
    assert {0: ["r1 0"]} == sink.published

    rewind(job, "r3").rewind()
    assert {0: ["r1 0"]} == sink.published
    assert JobDirectory(job.storage).run("r3").rewound() is not None


def test_a_savepoint_from_before_another_rewind_is_taken_anew(job, sink):
    """
    A run that has written nothing begins where the job stands when it is resumed, not where it stood.
    """
    run(job, "r1", 0)
    run(job, "r2", 1)
    run(job, "r3")
    rewind(job, "r2").rewind()
    run(job, "r2.r2", 1, 2)
    run(job, "r3", 3)

    rewind(job, "r3").rewind()

    assert [0, 1, 2] == sorted(sink.published)
    assert (2, 2) == (job.spark.logs.position().last_offsets, last_of(job))
    assert ["rewind-r2", "rewind-r2.r2", "rewind-r3"] == job.storage.list("savepoints")


def test_a_run_that_has_written_nothing_is_rewound_whatever_came_after_it(job, sink):
    """A driver that fails at once leaves nothing to undo, so what later runs have written stays."""
    run(job, "r1")
    run(job, "r2", 0)

    rewind(job, "r1").rewind()

    assert {0: ["r2 0"]} == sink.published
    assert 0 == last_of(job)
    run(job, "r1.r2", 1)
    assert [0, 1] == sorted(sink.published)


@pytest.mark.parametrize("step", ["restore.copied", "restore.done"])
def test_what_a_restore_has_copied_is_of_no_run(job, sink, step):
    """Nor while it is open: a run that has written nothing has none of the batches before it."""
    run(job, "r1")
    run(job, "r2", 0)
    source = job_source(job.storage.url, job.clock)
    saved = take_savepoint(source, f"{job.storage.url}/savepoints/s1", clock=job.clock)
    with job.lease("restore") as lease, dies_at(step):
        Restore(JobDirectory(job.storage), lease, job.clock).run(RestoreSettings(saved, {"q": "q"}))

    rewind(job, "r1").rewind()
    assert {0: ["r2 0"]} == sink.published
    last = present(Restores(JobDirectory(job.storage)).last())
    assert (saved.url, step == "restore.copied") == (last.plan.savepoint, last.is_open)


def last_of(job: EpochBench) -> int:
    return job.spark.logs.position().last_commit


def test_a_driver_that_was_lost_with_its_machine_leaves_its_folder(job, sink):
    """It may wake up and go on taking the savepoint, so the next attempt takes it elsewhere."""
    run(job, "r1", 0)
    lost = job.storage.at("savepoints/rewind-r2")
    owner = ProcessIdentity(host="elsewhere", space="another/machine", processes=((1, 1),))
    claim = SavepointClaimRecord(
        token=1,
        purpose="take",
        nonce="n",
        owner=owner,
        began=to_iso(job.clock.now()),
    )
    assert claim.put_if_absent(lost, "writer.1.json")

    run(job, "r2", 1)
    assert ["rewind-r2", "rewind-r2+2"] == keep(job, "r2", 1)
    lost.delete("writer.1.json")  # it has woken up, and saved what it found
    source = job_source(job.storage.url, job.clock)
    take_savepoint(source, lost.url, origin="rewind", clock=job.clock)
    assert "rewind-r2+2" == present(starting_savepoint(JobDirectory(job.storage), "r2")).folder
    rewind(job, "r2").rewind()
    assert {0: ["r1 0"]} == sink.published


def test_runs_that_took_turns_are_not_rewound_alone(job, sink):
    """An older run was resumed after this one had begun: its rows would go with this one's."""
    run(job, "r1", 0)
    run(job, "r2", 1)
    run(job, "r1", 2)

    with pytest.raises(RevertError, match="r1 has written to query 'q' since it began"):
        rewind(job, "r2").rewind()
    with pytest.raises(RevertError, match="the newest first: r2"):
        rewind(job, "r1").rewind()
    assert 3 == len(sink.published)


def test_rows_of_an_older_run_that_are_not_recorded_yet(job):
    """Spark has committed its epoch, whose rows may be visible: it counts as written."""
    run(job, "r1", 0)
    run(job, "r2", 1)
    committer = job.recovered("r1")
    job.spark.plan(2)
    committer.pre_commit(FakeFrame("r1 2"), 2, counted(1))
    rewind(job, "r2").check()
    job.spark.commit(2)
    job.close()

    with pytest.raises(RevertError, match="r1 has written to query 'q' since it began"):
        rewind(job, "r2").rewind()


def test_a_query_that_has_had_no_batch(job):
    """
    It has nothing to save, keeps no run from beginning, and begins anew when the run is rewound.
    """
    other = CheckpointBuilder(job.spark.root.parents[1] / "p" / "checkpoint")
    other.begin("e2a1bd0e-52f4-4f07-a20b-06e2a6a4f0e5").plan(0)
    run(job, "r1", 0)
    run(job, "r2", 1, p=-1)
    directory = JobDirectory(job.storage)

    assert ["q"] == list(present(starting_savepoint(directory, "r2")).record.queries)
    queries = [SimpleNamespace(name=name, sinks=job.sinks, native=None) for name in ("q", "p")]
    Rewind(directory, "r2", queries, OpenFence(9), job.clock).rewind()
    assert (0, False) == (last_of(job), other.logs.exists())


def test_a_query_that_the_job_no_longer_has(job, sink):
    """Its rows cannot be found without its sinks, so nothing is reverted."""
    run(job, "r1", 0)
    query = SimpleNamespace(name="renamed", sinks=job.sinks, native=None)
    directory = JobDirectory(job.storage)

    with pytest.raises(RevertError, match="ran query 'q', which the job no longer has"):
        Rewind(directory, "r1", [query], OpenFence(9), job.clock).rewind()
    assert {0: ["r1 0"]} == sink.published


def test_no_driver_writes_to_a_job_that_is_half_reverted(job):
    """It is refused before it has recorded its run, which would stand in the way of the rewind."""
    run(job, "r1", 0)
    run(job, "r2", 1)
    half = rewind(job, "r2")
    calls = iter([None])
    dies = SimpleNamespace(token=9, check=lambda: next(calls))
    with pytest.raises(StopIteration):
        Rewind(half.directory, "r2", half.queries, dies, job.clock).rewind()

    with pytest.raises(CheckpointError, match="to end it: spark-stream rewind .*job r2, or"):
        check_no_open_restore(half.directory)
    rewind(job, "r2").rewind()
    check_no_open_restore(half.directory)


def test_every_epoch_of_a_replayable_run_keeps_its_record(job, sink, monkeypatch):
    """Records are folded away by and by, but for those that a rewind needs."""
    monkeypatch.setattr(epoch_records, "KEEP_EPOCHS", 1)
    run(job, "r1", 0, 1, 2)
    run(job, "r2", 3, 4, 5)
    committer = EpochCommitter(
        "q",
        storage=job.committables,
        logs=job.spark.logs,
        sinks=job.sinks,
        lease=job.lease("r3"),
        run_id="r3",
        clock=job.clock,
        keep_runs=["r3", "r2"],
    )
    committer.recover()
    job.close()

    records = EpochRecords(job.committables, job.spark.logs.query_id())
    found = records.find()
    assert ((5,), ((3, 4),), ((0, 2),)) == (found.published, found.packed, found.folded)
    rewind(job, "r2").rewind()
    assert [0, 1, 2] == sorted(sink.published)


# --- what is said of it -----------------------------------------------------------------------------


@pytest.fixture
def undo(job, monkeypatch):
    """Return what undoes a run as the command does, with what the job's function would declare."""
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    monkeypatch.setattr(rewind_job_module, "declare_again", lambda *_: [query])
    monkeypatch.setattr(rewind_job_module, "using_spark", lambda *_: contextlib.nullcontext())

    def call(run_id: str, **how) -> list[str]:
        return [str(run) for run in rewind_job(job.storage.url, run_id, clock=job.clock, **how)]

    return call


def test_what_is_reverted_is_counted(job, undo):
    """Epochs, rows and sinks; another call says that there was nothing left to do."""
    run(job, "r1", 0)
    run(job, "r2", 1, 2)
    run(job, "r3")

    assert ["run r3: nothing to revert, it has written nothing; it does not count"] == undo("r3")
    assert [
        "run r2: rewound: 2 epoch(s), 2 row(s) in fake reverted",
        "run r1: rewound: 1 epoch(s), 1 row(s) in fake reverted",
    ] == undo("r1", with_later=True)[1:]
    again = "run r2: rewound: 2 epoch(s), 2 row(s) in fake had been reverted before by rewind"
    assert [again] == undo("r2")


def test_no_run_is_undone_if_one_of_them_cannot_be(job, sink, undo):
    """The newest one could; the job would stand between what it was and what was asked for."""
    run(job, "r1", 0)
    run(job, "r2", 1, rewindable=False)
    run(job, "r3", 2)

    with pytest.raises(RevertError, match="run 'r2' cannot be rewound: it did not begin with a"):
        undo("r1", with_later=True)
    assert {0: ["r1 0"], 1: ["r2 1"], 2: ["r3 2"]} == sink.published
    assert ["run r3: rewound: 1 epoch(s), 1 row(s) in fake reverted"] == undo("r3")


def test_no_run_is_undone_before_one_whose_rows_stay_in_part(job, sink, undo):
    """A restore has left rows of it, which the rewind of an older run would revert."""
    run(job, "r1", 0)
    final = a_final("r1")
    ended = {"q": dataclasses.replace(final.queries["q"], batch_id=0)}
    JobDirectory(job.storage).run("r1").put_final(dataclasses.replace(final, queries=ended))
    run(job, "r2", 1)
    saved = take_savepoint(
        job_source(job.storage.url, job.clock), f"{job.storage.url}/savepoints/s1", clock=job.clock
    )
    restore_job(job.storage.url, saved.url, clock=job.clock)  # r2 has no end: it is marked
    run(job, "r3", 2)

    with pytest.raises(RevertError, match="'r1' cannot be rewound alone: r2 has written"):
        undo("r1", with_later=True)
    assert {0: ["r1 0"], 1: ["r2 1"], 2: ["r3 2"]} == sink.published


def test_an_undo_that_would_undo_nothing_is_refused(job, sink, undo):
    """
    A restore has set the job into the middle of the run: what it has left is counted, and the way
    to undo that, too, is named.
    """
    run(job, "r1", 0, 1)
    source = job_source(job.storage.url, job.clock)
    saved = take_savepoint(source, f"{job.storage.url}/savepoints/s1", clock=job.clock)
    run(job, "r1", 2, 3, 4)
    query = SimpleNamespace(name="q", sinks=job.sinks, native=None)
    fence = OpenFence(99)
    for work in revert_after(
        query, storage=job.committables, epoch=1, fence=fence, clock=job.clock
    ):
        work.revert()
    restored = restore_job(job.storage.url, saved.url, clock=job.clock)

    assert [
        "run r1: rewound by restore 1: 3 epoch(s), 3 row(s) in fake reverted; "
        "2 epoch(s), 2 row(s) in fake stay, from before it"
    ] == list(describe_restored(job.storage.url, restored))
    said = (
        r"run 'r1' is rewound in part.*savepoints/s1 by restore 1 at .* UTC, .*\. 3 epoch\(s\), 3 row\(s\) in fake were "
        r"reverted; 2 epoch\(s\), 2 row\(s\) in fake stay.*savepoint restore"
    )
    with pytest.raises(RevertError, match=said):
        undo("r1")
    assert {0: ["r1 0"], 1: ["r1 1"]} == sink.published


def test_all_runs_are_rewound_or_none(job, sink, undo):
    """An older run that cannot be rewound is found before the newest one is, and under the lease."""
    run(job, "r1", 0)
    run(job, "r2", 1, rewindable=False)
    run(job, "r3", 2)

    with pytest.raises(RevertError, match="run 'r2' cannot be rewound: it did not begin"):
        undo("r2", with_later=True)
    with pytest.raises(RevertError, match="run 'r2' cannot be rewound: it did not begin"):
        check_rewinds([rewind(job, "r3"), rewind(job, "r2")])

    assert [0, 1, 2] == sorted(sink.published)
    assert JobDirectory(job.storage).run("r3").rewound() is None


def test_rows_whose_records_were_folded_are_not_guessed(job):
    """Their epochs are counted, and said to be without a number of rows."""
    run(job, "r1", 0)
    job.records.put_folded(HistoryRecord(query_id=QUERY_ID, ranges=[(0, 0, 1, "r1")]))
    run(job, "r1", 1)

    output = output_of([job.committables], "r1")
    said = "2 epoch(s), 1 row(s) (and those of 1 folded epochs) in fake"
    assert (said, "0 epoch(s), 0 row(s)") == (str(output.standing), str(output.reverted))


def test_long_stretches_of_folded_epochs_are_counted_without_a_walk(job):
    """A stretch of any length is divided where the rewind begins."""
    run(job, "r1", 0)
    long = 10**12
    job.records.put_folded(
        HistoryRecord(query_id=QUERY_ID, ranges=[(0, long, 1, "r1"), (long + 1, long + 9, 2, "r2")])
    )
    job.records.put_reverted(7, "then")

    output = output_of([job.committables], "r1")

    assert (7, long + 1 - 7) == (output.standing.folded, output.reverted.folded)


def test_a_sink_that_cannot_revert_is_asked_before_anything_goes(job, sink, monkeypatch):
    """The refusal comes from the look, while every row is still there."""
    run(job, "r1", 0)
    run(job, "r2", 1)

    def refuse(_: object) -> None:
        raise RevertError("rows were changed since")

    monkeypatch.setattr(sink, "check_revert", refuse)

    with pytest.raises(RevertError, match="rows were changed since"):
        rewind(job, "r2").check()
    assert {0: ["r1 0"], 1: ["r2 1"]} == sink.published


def test_a_run_that_nobody_can_save_the_start_of_does_not_begin(job, monkeypatch):
    """
    Where every name for its savepoint is taken by somebody, the run could not be rewound: an error.
    """
    run(job, "r1", 0)
    busy = SavepointBusyError("s: this savepoint is being taken by another process")
    monkeypatch.setattr(rewind_module, "take_savepoint", Mock(side_effect=busy))

    with pytest.raises(SavepointBusyError, match="being taken by another process"):
        run(job, "r2", 1)
