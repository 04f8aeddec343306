"""Taking and restoring savepoints of jobs whose Spark side is written by hand."""

from __future__ import annotations

import dataclasses
import json
import shutil

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.checkpoint.drain_step import MAX_WATERMARK_MS
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    JobDrainedError,
    RefusedCheckpointError,
    SavepointError,
    UnknownJobError,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.pinned_settings import pin_settings, read_pins
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.savepoints import take as take_module
from airflow_provider.runtime.savepoints.catalog import (
    find_savepoints,
    open_savepoint,
    verify_savepoint,
)
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import dispose
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.job_directories import QUERY_ID, identified
from tests.present import present
from tests.unit.support import EpochBench, FakeClock, FakeFrame, FakeSink, counted

SOURCES = {"sources/0/0", "sources/0/9"}
LOGS = {"metadata", "offsets/0", "offsets/1", "commits/0", "commits/1", *SOURCES}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def job(tmp_path):
    """Yield a job directory whose one query has committed and published two batches."""
    bench = EpochBench(tmp_path / "job", FakeSink())
    bench.spark.begin()
    for entry in (0, 9):
        bench.spark.storage.put(f"sources/0/{entry}", b"v1")
    JobDirectory(identified(bench.storage)).put_job(JobRecord(name="job", created="now"))
    run(bench, 0, 1)
    yield bench
    bench.close()


def run(job: EpochBench, *epochs: int, publish: bool = True) -> None:
    """Let a driver write epochs, and end."""
    committer = job.recovered()
    for epoch in epochs:
        job.spark.plan(epoch)
        committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
        job.spark.commit(epoch)
    if publish:
        committer.commit_ready()
    job.close()


def take(job: EpochBench, name: str = "s1", **how):
    clock = how.pop("clock", job.clock)
    url = f"{job.storage.url}/savepoints/{name}"
    return take_savepoint(job_source(job.storage.url, clock), url, clock=clock, **how)


def files_of(folder) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


# --- taking -------------------------------------------------------------------------------------


def test_a_savepoint_of_a_job(job, tmp_path):
    """
    The last batch that is published, whole, under the job's name; the job itself is not touched.
    """
    before = files_of(job.spark.root)

    savepoint = take(job, labels={"ticket": "7"})

    assert before == files_of(job.spark.root)
    record = open_savepoint(savepoint.url).record
    assert record == savepoint.record
    assert ("s1", "manual", {"ticket": "7"}, "job") == (
        record.name,
        record.origin,
        record.labels,
        record.job,
    )
    query = record.queries["q"]
    assert (QUERY_ID, 1, False, False) == (
        query.query_id,
        query.batch,
        query.planned,
        query.drained,
    )
    assert [{"logOffset": 0}] == query.sources
    taken = files_of(tmp_path / "job/savepoints/s1/queries/q")
    assert LOGS == set(taken)
    assert all(before[name] == data for name, data in taken.items())
    assert [] == verify_savepoint(savepoint)
    assert [] == [p for p in (tmp_path / "job/savepoints/s1").iterdir() if "writer" in p.name]


def test_files_are_shared_with_the_checkpoint(job, tmp_path):
    """On one filesystem nothing is copied."""
    take(job)

    saved = tmp_path / "job/savepoints/s1/queries/q/offsets/1"
    assert saved.samefile(job.spark.root / "offsets/1")


def test_what_is_not_published_is_not_taken(job):
    """
    Without a driver that could publish it, the batch before is taken, and the open one with its
    offsets: a restore runs it again.
    """
    run(job, 2, publish=False)

    query = take(job).record.queries["q"]

    assert (1, True) == (query.batch, query.planned)


def test_a_batch_in_flight_without_a_driver_is_not_waited_for(job):
    """Nobody will commit it."""
    job.spark.plan(2)

    query = take(job, aligned_timeout_s=3600).record.queries["q"]

    assert (1, True) == (query.batch, query.planned)
    assert 0 == job.clock.time


def test_a_batch_in_flight_is_waited_for(job, tmp_path):
    """
    A checkpoint of other origin may be in use: its batch in flight is given the time it may take.
    """
    job.spark.plan(2)
    source = checkpoint_source(str(job.spark.root), "windows")
    clock = FakeClock()
    clock.during_sleep = lambda: job.spark.commit(2) if clock.time > 7 else None

    savepoint = take_savepoint(source, str(tmp_path / "s"), aligned_timeout_s=30, clock=clock)

    assert (2, False) == (
        savepoint.record.queries["windows"].batch,
        savepoint.record.queries["windows"].planned,
    )
    assert (None, True) == (savepoint.record.job, savepoint.record.aligned)


@pytest.mark.slow
def test_a_batch_in_flight_is_waited_for_no_longer_than_that(job, tmp_path):
    """Then the savepoint is unaligned."""
    job.spark.plan(2)
    clock = FakeClock()

    savepoint = take_savepoint(
        checkpoint_source(str(job.spark.root)),
        str(tmp_path / "s"),
        aligned_timeout_s=30,
        clock=clock,
    )

    assert (1, True) == (
        savepoint.record.queries["query"].batch,
        savepoint.record.queries["query"].planned,
    )
    assert 30 <= clock.time < 31
    assert not savepoint.record.aligned


@pytest.mark.slow
def test_spark_removes_files_meanwhile(job, tmp_path, monkeypatch):
    """When files are gone that were there a moment ago, a newer batch is taken."""
    from airflow_provider.runtime.savepoints import checkpoint_copies

    calls: list[str] = []

    def slow_copy(source, target, names):
        calls.append(source)
        if len(calls) == 1:
            run(job, 2, 3)
            for path in ("offsets/0", "commits/0", "offsets/1", "commits/1"):
                (job.spark.root / path).unlink()
        return copy_files(source, target, names)

    monkeypatch.setattr(checkpoint_copies, "copy_files", slow_copy)

    savepoint = take(job)

    assert 3 == savepoint.record.queries["q"].batch
    assert [] == verify_savepoint(savepoint)
    saved = set(files_of(tmp_path / "job/savepoints/s1/queries/q"))
    logs = {"offsets/2", "offsets/3", "commits/2", "commits/3"}
    assert {"metadata", *logs, *SOURCES} == saved


def test_a_file_that_nobody_needs_any_more_goes_meanwhile(job, tmp_path, monkeypatch):
    """When the batch can be had without what is gone, that batch is taken, from a newer listing."""
    from airflow_provider.runtime.savepoints import checkpoint_copies

    calls: list[str] = []

    def slow_copy(source, target, names):
        calls.append(source)
        (job.spark.root / "sources/0/0").unlink(missing_ok=True)
        return copy_files(source, target, names)

    monkeypatch.setattr(checkpoint_copies, "copy_files", slow_copy)

    savepoint = take(job)

    assert (1, 2) == (savepoint.record.queries["q"].batch, len(calls))
    assert LOGS - {"sources/0/0"} == set(files_of(tmp_path / "job/savepoints/s1/queries/q"))
    assert [] == verify_savepoint(savepoint)


# --- bad input ----------------------------------------------------------------------------------


def test_what_cannot_be_taken_is_said_before_anything_is_written(job, tmp_path, clock):
    """No job, no checkpoint, no committed batch, a missing file, a taken name: each is named."""
    fresh = EpochBench(tmp_path / "fresh", FakeSink())
    fresh.spark.begin().plan(0)
    root = job.storage.url
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    job_now = job_source(root, clock)

    with pytest.raises(UnknownJobError, match="no job there"):
        job_source(str(tmp_path / "nowhere"), clock)
    with pytest.raises(UnknownJobError, match="no Spark checkpoint there"):
        checkpoint_source(str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="no batch of query 'query' has committed yet"):
        take_savepoint(
            checkpoint_source(str(fresh.spark.root)),
            str(tmp_path / "s"),
            aligned_timeout_s=0,
            clock=clock,
        )
    with pytest.raises(ConfigError, match="full: the folder is not empty"):
        take_savepoint(job_now, str(tmp_path / "full"), clock=clock)
    with pytest.raises(ConfigError, match="savepoint 'a b': use letters"):
        take_savepoint(job_now, str(tmp_path / "a b"), clock=clock)
    with pytest.raises(ConfigError, match="origin 'nightly'"):
        take_savepoint(job_now, str(tmp_path / "s"), origin="nightly", clock=clock)
    (job.spark.root / "commits/1").rename(tmp_path / "kept")
    (job.spark.root / "offsets/1").unlink()
    (tmp_path / "kept").rename(job.spark.root / "commits/1")
    with pytest.raises(CheckpointError):
        take_savepoint(job_now, str(tmp_path / "s"), clock=clock)

    assert not (tmp_path / "s").exists()


def test_a_damaged_checkpoint_is_named(job, tmp_path):
    """A file that a batch needs and that is not there for good is no race with Spark."""
    (job.spark.root / "commits/1").rename(job.spark.root / "commits/1.lost")
    (job.spark.root / "offsets/0").unlink()

    with pytest.raises(RefusedCheckpointError, match=r"offsets/0"):
        take(job)
    assert not (tmp_path / "job/savepoints/s1").exists()


def test_what_cannot_be_removed_is_no_savepoint_and_stays_claimed(job, tmp_path, monkeypatch):
    """
    When the answer to the last step is lost and the disk fails then, the record goes first, and the
    claim stays with what is left, so that nobody else completes it.
    """
    run(job, 0)

    def put_and_fail(target, mine, record):
        record.put(target, "savepoint.json")
        monkeypatch.setattr(take_module, "remove_tree", fail)
        raise OSError("no answer")

    def fail(url):
        raise OSError("no disk")

    monkeypatch.setattr(take_module, "_complete", put_and_fail)
    with pytest.raises(OSError, match="no answer"):
        take(job)
    left = tmp_path / "job" / "savepoints" / "s1"

    assert not (left / "savepoint.json").exists()
    assert (left / "queries").exists()
    assert [] != [name for name in files_of(left) if not name.startswith("queries")]


@pytest.mark.parametrize("look", [1, 2, 3])
def test_a_job_that_is_set_back_meanwhile_is_not_taken(job, tmp_path, look):
    """The source is looked at before each query is copied, and when all are; nothing is left."""
    looks = iter(range(1, 10))

    def check():
        if next(looks) == look:
            raise SavepointError("the job was set back")

    source = dataclasses.replace(job_source(job.storage.url, job.clock), check_current=check)
    with pytest.raises(SavepointError, match="set back"):
        take_savepoint(source, f"{job.storage.url}/savepoints/s1", clock=job.clock)

    assert not (tmp_path / "job/savepoints/s1").exists()


def test_what_was_copied_is_looked_at_byte_by_byte(job, tmp_path, monkeypatch):
    """A copy that is damaged is no savepoint, though every file has its name and its size."""

    def find(*_, just_copied=False, **__):
        return ["offsets/1: its bytes are others"] if just_copied else []

    monkeypatch.setattr(take_module, "find_damage", find)
    with pytest.raises(CheckpointError, match="its bytes are others"):
        take(job)

    assert not (tmp_path / "job/savepoints/s1").exists()


def test_a_name_is_given_once(job):
    """A second savepoint of one name is refused; after the first is disposed of it is not."""
    savepoint = take(job)
    with pytest.raises(ConfigError, match="there is a savepoint of this name"):
        take(job)

    dispose(savepoint.url, clock=job.clock)
    take(job)
    assert ["s1"] == [s.folder for s in find_savepoints(job.storage.at("savepoints"))[0]]


# --- restoring ----------------------------------------------------------------------------------


def test_restored_from_a_folder_of_another_name(job, tmp_path):
    """People call copies as they like; what is restored from one is a job as any other."""
    take(job)
    copy = tmp_path / "my copy (1) of all that there was"
    (tmp_path / "job/savepoints/s1").rename(copy)

    restore_job(str(tmp_path / "new"), str(copy), clock=job.clock)

    again = take_savepoint(job_source(str(tmp_path / "new"), job.clock), str(tmp_path / "s2"))
    assert 1 == again.record.queries["q"].batch


def test_restored_into_a_new_directory(job, tmp_path):
    """The same logs under an id of its own, and epochs that go on from there."""
    savepoint = take(job)
    before = files_of(tmp_path / "job")

    record = restore_job(str(tmp_path / "new"), savepoint.url, clock=job.clock)

    assert before == files_of(tmp_path / "job")
    sink = FakeSink()
    restored = EpochBench(tmp_path / "new", sink)
    query_id = restored.spark.logs.query_id()
    assert query_id not in {QUERY_ID, None}
    assert {
        "q": {"query_id": query_id, "from": "q", "batch": 1, "replaces": None}
    } == record.plan.queries
    assert 1 == restored.spark.logs.position().last_commit
    committer = restored.recovered()
    restored.spark.plan(2)
    committer.pre_commit(FakeFrame("row 2"), 2, counted(1))
    restored.spark.commit(2)
    committer.commit_ready()
    assert {2: ["row 2"]} == sink.published
    restored.close()


def test_a_moved_savepoint_restores_when_the_original_is_gone(job, tmp_path):
    """Nothing in it says where it was."""
    take(job)
    shutil.move(tmp_path / "job/savepoints/s1", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "job")

    restore_job(str(tmp_path / "new"), str(tmp_path / "elsewhere"), clock=job.clock)

    assert 1 == EpochBench(tmp_path / "new").spark.logs.position().last_commit


def test_restored_into_its_own_directory(job, tmp_path):
    """
    With nothing written after it the job goes on under another id; the old one publishes no more.
    """
    savepoint = take(job)

    restore_job(job.storage.url, savepoint.url, clock=job.clock)

    assert QUERY_ID != job.spark.logs.query_id()
    assert 2 == job.records.find().reverted_from
    job.recovered()
    assert 1 == present(Restores(JobDirectory(job.storage)).last()).number


def test_rows_that_would_be_written_again_are_not_forgotten(job):
    """Epochs after the savepoint stand in the outputs: a restore says so, and does nothing."""
    savepoint = take(job)
    run(job, 2)

    with pytest.raises(ConfigError, match="'q' has written epochs 2 to 2 after this savepoint"):
        restore_job(job.storage.url, savepoint.url, clock=job.clock)
    assert QUERY_ID == job.spark.logs.query_id()
    assert Restores(JobDirectory(job.storage)).last() is None


@pytest.mark.slow
def test_a_claimed_savepoint_goes_over_to_the_job(job, tmp_path):
    """When the restore is done it is gone; without a claim it stays."""
    kept, claimed = take(job, "kept"), take(job, "claimed")
    restore_job(str(tmp_path / "a"), kept.url, clock=job.clock)
    restore_job(str(tmp_path / "b"), claimed.url, claim_mode="claim", clock=job.clock)

    assert ["kept"] == [s.folder for s in find_savepoints(job.storage.at("savepoints"))[0]]
    assert 1 == EpochBench(tmp_path / "b").spark.logs.position().last_commit


def test_a_batch_in_flight_can_be_skipped(job, tmp_path, caplog):
    """Explicit, loud, recorded: the sources go on after it, and nobody runs it."""
    job.spark.plan(2, sources=('{"logOffset":9}',))
    savepoint = take(job)

    record = restore_job(str(tmp_path / "new"), savepoint.url, skip_in_flight=True, clock=job.clock)

    logs = EpochBench(tmp_path / "new").spark.logs
    assert (1, 1) == (logs.position().last_offsets, logs.position().last_commit)
    assert [{"logOffset": 9}] == logs.offsets(1).source_offsets()
    assert {
        "q": {"batch": 2, "after": [{"logOffset": 0}], "up_to": [{"logOffset": 9}]}
    } == record.plan.skipped
    assert "DATA LOSS" in caplog.text
    stored = json.loads((tmp_path / "new/operations/1.2.json").read_text())
    assert record.plan.skipped == stored["restore"]["skipped"]


def test_a_savepoint_takes_the_pinned_settings_along(job, tmp_path):
    """A directory that is set to it has them from its first run on; a later pin changes nothing."""
    zone, new = "spark.sql.session.timeZone", tmp_path / "new"
    pin_settings(
        job.storage, read_pins(job.storage), {zone: "UTC"}, OpenFence(), job.clock, run_id="r1"
    )
    savepoint = take(job)

    restore_job(str(new), savepoint.url, clock=job.clock)

    pins = read_pins(open_storage(str(new)))
    assert {zone: "UTC"} == savepoint.record.settings == pins.values
    assert f"the savepoint {savepoint.url}" in pins.by[zone]
    assert [] == verify_savepoint(savepoint)


@pytest.mark.slow
def test_what_cannot_be_restored(job, tmp_path):
    """
    Nothing there, a drained job's, one that lacks a file or has a shorter one, another job's
    directory: each is named, and nothing is written.
    """
    new = tmp_path / "new"
    good, cut, holey = take(job), take(job, "cut"), take(job, "holey")
    location = tmp_path / "job/savepoints"
    (location / "holey/queries/q/commits/1").unlink()
    shutil.copy(location / "cut/queries/q/offsets/1", tmp_path / "offsets")
    (location / "cut/queries/q/offsets/1").unlink()
    (location / "cut/queries/q/offsets/1").write_bytes((tmp_path / "offsets").read_bytes()[:9])
    job.spark.plan(2, watermark_ms=MAX_WATERMARK_MS).commit(2)
    drained = take_savepoint(
        checkpoint_source(str(job.spark.root)), str(tmp_path / "drained"), clock=job.clock
    )
    JobDirectory(EpochBench(tmp_path / "other").storage).put_job(
        JobRecord(name="another", created="now")
    )

    for url, target, error, said in [
        (f"{location}/nowhere", new, UnknownJobError, "no savepoint there"),
        (drained.url, new, JobDrainedError, "drained when this savepoint was taken"),
        (holey.url, new, CheckpointError, "commits/1: is missing"),
        (cut.url, new, CheckpointError, "offsets/1: has 9 bytes instead of"),
        (good.url, tmp_path / "other", ConfigError, "holds the job 'another'"),
    ]:
        with pytest.raises(error, match=said):
            restore_job(str(target), url, clock=job.clock)
    assert not new.exists()
    assert 1 == len(verify_savepoint(cut)) == len(verify_savepoint(holey))
    assert [] == verify_savepoint(good)
