"""Retention: whose savepoints it counts, in which order, and what beside them it leaves alone."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from airflow_provider.extensions.state_tools.diff import state_growth
from airflow_provider.runtime.cli import main
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.savepoints.catalog import Savepoint, find_savepoints, verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import checkpoint_source, job_source
from airflow_provider.runtime.savepoints.record import SERIES, claim
from airflow_provider.runtime.savepoints.retention import (
    Retention,
    collect_garbage,
    dispose,
    retain,
)
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.local import LocalStorage
from tests.unit.savepoint_refusals import rights
from tests.unit.support import EpochBench, FakeClock, FakeFrame, FakeSink, counted

pytestmark = pytest.mark.slow

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture
def backup(tmp_path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "backup"))


def a_job(root: Path, name: str = "job") -> EpochBench:
    """Make a job of one published batch."""
    job = EpochBench(root, FakeSink()).begun().published(1)
    JobDirectory(job.storage).put_job(JobRecord(name=name, created="now"))
    return job


def another_batch(job: EpochBench) -> None:
    committer = job.recovered()
    epoch = job.spark.logs.position().last_commit + 1
    job.spark.plan(epoch)
    committer.pre_commit(FakeFrame(f"row {epoch}"), epoch, counted(1))
    job.spark.commit(epoch)
    committer.commit_ready()
    job.close()


def take(job: EpochBench, backup: LocalStorage, name: str, *, hour: int = 0, **how) -> Savepoint:
    """Take a savepoint by a clock that is so many hours after noon."""
    clock = FakeClock(NOON + dt.timedelta(hours=hour))
    how = {"origin": "periodic", "aligned_timeout_s": 0, **how}
    source = job_source(job.storage.url, clock)
    return take_savepoint(source, f"{backup.url}/{name}", clock=clock, **how)


def names(backup: LocalStorage) -> list[str]:
    return sorted(savepoint.folder for savepoint in find_savepoints(backup)[0])


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


# --- whose --------------------------------------------------------------------------------------


def test_each_job_is_counted_by_itself(tmp_path, backup):
    """Jobs that are saved into one folder do not push each other's savepoints out."""
    often, seldom = a_job(tmp_path / "often"), a_job(tmp_path / "seldom")  # of one name
    take(seldom, backup, "seldom")
    for number in range(4):
        another_batch(often)
        take(often, backup, f"often-{number}", hour=number + 1)

    gone = retain(backup.url, Retention(keep=2))

    assert ["often-0", "often-1"] == gone
    assert ["often-2", "often-3", "seldom"] == names(backup)


def test_each_series_of_a_job_is_counted_by_itself(tmp_path, backup):
    """Two tasks that save one job keep as many as each of them asks for."""
    job = a_job(tmp_path / "job")
    take(job, backup, "daily", labels={SERIES: "daily"})
    taken = []
    for number in range(3):
        another_batch(job)
        taken.append(take(job, backup, f"hourly-{number}", labels={SERIES: "hourly"}))

    assert ["hourly-0", "hourly-1"] == retain(backup.url, Retention(keep=1, just_taken=taken[-1]))
    assert ["daily", "hourly-2"] == names(backup)


def test_who_has_just_taken_one_looks_at_its_own_series_only(tmp_path, backup):
    """What another job keeps is its own affair, though it is more than this one would keep."""
    mine, other = a_job(tmp_path / "mine"), a_job(tmp_path / "other")
    for number in range(3):
        another_batch(other)
        take(other, backup, f"other-{number}")
    last = take(mine, backup, "mine")

    assert [] == retain(backup.url, Retention(keep=1, just_taken=last))
    assert ["mine", "other-0", "other-1", "other-2"] == names(backup)


def test_a_checkpoint_that_began_anew_is_another_history(tmp_path, backup):
    """
    Without a job directory the query's id tells; the lower batches of a new one are not older.
    """
    job = a_job(tmp_path / "job")
    source = checkpoint_source(str(job.spark.root))
    for number in range(2):
        another_batch(job)
        take_savepoint(source, f"{backup.url}/old-{number}", origin="periodic", clock=FakeClock())
    job.spark.storage.put("metadata", b'{"id":"0b0e0c1c-0000-4000-8000-000000000000"}')
    take_savepoint(source, f"{backup.url}/a-new", origin="periodic", clock=FakeClock())

    retain(backup.url, Retention(keep=1))

    assert ["a-new", "old-1"] == names(backup)


# --- in which order -----------------------------------------------------------------------------


@pytest.mark.parametrize("names_ahead", ["abc", "xyz"])
def test_a_clock_that_stood_ahead_takes_nothing_away(tmp_path, backup, names_ahead):
    """What is taken after it is newer, also while the job stands still, whatever it is called."""
    job = a_job(tmp_path / "job")
    for hour, name in enumerate(names_ahead):
        take(job, backup, name, hour=5 + hour)
    take(job, backup, "now", hour=0)

    gone = retain(backup.url, Retention(keep=3), clock=FakeClock(NOON))

    assert [names_ahead[0]] == gone


def test_a_job_that_is_set_back_begins_a_newer_history(tmp_path, backup):
    """Its savepoints have lower batches than those of the time that was undone, and stay."""
    job = EpochBench(tmp_path / "job").begun()  # with Spark's own sink
    job.spark.plan(0).commit(0)
    first = take(job, backup, "before")
    for number in range(3):
        job.spark.plan(number + 1).commit(number + 1)
        take(job, backup, f"undone-{number}")
    restore_job(job.storage.url, first.url, clock=FakeClock())
    take(job, backup, "after")

    retain(backup.url, Retention(keep=2))

    assert ["after", "undone-2"] == names(backup)


def test_a_newer_driver_is_newer_whatever_its_batches(tmp_path, backup):
    """The lease counts before the batches."""
    old = take(a_job(tmp_path / "job"), backup, "z-old")
    raw = json.loads(backup.read("z-old/savepoint.json"))
    for name, token, batch in [("a-new", raw["token"] + 1, 0), ("m-old", raw["token"], 9)]:
        query = {**raw["queries"]["q"], "batch": batch}
        more = {**raw, "name": name, "token": token, "queries": {"q": query}, "beside": []}
        backup.put(f"{name}/savepoint.json", json.dumps(more).encode())

    assert old.record.token > 0
    assert ["z-old", "m-old"] == retain(backup.url, Retention(keep=1))


def test_what_was_just_taken_stays_though_it_looks_old(tmp_path, backup):
    """Whoever took it knows better than what the savepoints say."""
    job = a_job(tmp_path / "job")
    mine = take(job, backup, "mine", hour=-48)
    another_batch(job)
    for number in range(2):
        take(job, backup, f"other-{number}")

    retention = Retention(keep=1, max_age_s=3600, just_taken=mine)
    gone = retain(backup.url, retention, clock=FakeClock(NOON + dt.timedelta(days=9)))

    assert ["other-0", "other-1"] == gone
    assert ["mine"] == names(backup)


def test_the_newest_of_each_job_outlives_any_age(tmp_path, backup):
    """A clock may say that all are too old; one of each job stays, and not the one it says."""
    for name in ("a", "b"):
        job = a_job(tmp_path / name)
        take(job, backup, f"{name}-older", hour=7)
        another_batch(job)
        take(job, backup, f"{name}-newer", hour=0)

    retain(backup.url, Retention(max_age_s=1), clock=FakeClock(NOON + dt.timedelta(days=1)))

    assert ["a-newer", "b-newer"] == names(backup)


# --- what else lies there -----------------------------------------------------------------------


def test_job_directories_beside_savepoints_stay(tmp_path):
    """The folder of all jobs is given instead of one: each file of each job is as it was."""
    jobs = [a_job(tmp_path / "daily"), a_job(tmp_path / "hourly")]
    take(jobs[0], LocalStorage(str(tmp_path)), "saved")
    claim(jobs[1].storage, "take", FakeClock(NOON - dt.timedelta(days=9)))  # the mark of one
    before = {job.storage.url: tree(Path(job.storage.url)) for job in jobs}

    assert EXIT_OK == main.main(["savepoint", "retain", str(tmp_path), "--keep", "1"])
    assert [] == collect_garbage(str(tmp_path))

    assert before == {job.storage.url: tree(Path(job.storage.url)) for job in jobs}


@pytest.mark.parametrize("mark", ["job.json", "leases/1.json", "runs/r1/run.json"])
def test_what_marks_a_job_directory_outweighs_all_else(tmp_path, mark):
    """Nothing is removed there, though it looks like a savepoint and like garbage."""
    backup = LocalStorage(str(tmp_path / "backup"))
    job = a_job(tmp_path / "job")
    take(job, backup, "mixed")
    another_batch(job)
    take(job, backup, "newer")
    backup.put(f"mixed/{mark}", b"{}")
    before = tree(tmp_path)

    with pytest.raises(ConfigError, match="mixed: this is a job directory and no savepoint"):
        dispose(f"{backup.url}/mixed", clock=FakeClock())
    assert [] == retain(backup.url, Retention(keep=1), clock=FakeClock())

    assert before == tree(tmp_path)
    assert ["newer"] == names(backup)


def test_claiming_again_removes_nothing_of_others(tmp_path):
    """A restore that lets the savepoint go over to the job is given again, as after a crash."""
    job = a_job(tmp_path / "a")
    root = LocalStorage(str(tmp_path))
    saved = take(job, root, "saved")
    restore_job(str(tmp_path / "b"), saved.url, claim_mode="claim", clock=FakeClock())
    root.put("notes/queries/mine", b"mine")
    before = tree(tmp_path)

    restore_job(str(tmp_path / "b"), saved.url, claim_mode="claim", clock=FakeClock())

    assert before == tree(tmp_path)


def test_what_somebody_has_put_into_a_savepoint_is_not_removed_with_it(tmp_path, backup):
    """Its own files are those that its record names; with others among them it stays, whole."""
    job = a_job(tmp_path / "job")
    saved = take(job, backup, "s0")
    another_batch(job)
    take(job, backup, "s1")
    backup.put("s0/queries/q/notes.txt", b"mine")

    with pytest.raises(ConfigError, match="queries/q/notes.txt: was put there by another program"):
        dispose(saved.url, clock=FakeClock())
    assert [] == retain(backup.url, Retention(keep=1), clock=FakeClock())
    assert [] == verify_savepoint(saved)
    assert ["queries", "savepoint.json"] == backup.list("s0")

    backup.delete("s0/queries/q/notes.txt")
    assert ["s0"] == retain(backup.url, Retention(keep=1), clock=FakeClock())


def strange(backup: LocalStorage, savepoint: Path) -> None:
    """Put beside savepoints what people and systems leave there."""
    backup.put("notes.txt", b"mine")
    backup.put(".DS_Store", b"\0")
    backup.put("collecting.json", b"mine")
    backup.put("folder/queries/q/precious", b"mine")
    backup.put("folder/notes.txt", b"mine")
    backup.put("other/writer.txt", b"mine")
    backup.put("third/writer.0.json/x", b"mine")
    root = Path(backup.url)
    (root / "latest").symlink_to(savepoint)
    (root / "broken").symlink_to(root / "nowhere")
    (root / "itself").symlink_to(root / "itself")
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe")


def test_strange_things_beside_savepoints_are_passed_over(tmp_path, capsys):
    """Every command works as if they were not there, and they are there afterwards."""
    job = a_job(tmp_path / "job")
    backup = job.storage.at("savepoints")
    taken = []
    for number in range(3):
        another_batch(job)
        taken.append(take(job, backup, f"s{number}"))
    strange(backup, Path(taken[-1].url))
    before = {str(path) for path in Path(backup.url).iterdir()}

    for command in (
        ["savepoint", "list", job.storage.url],
        ["savepoint", "retain", job.storage.url, "--keep", "2"],
        ["savepoint", "dispose", f"{backup.url}/s1"],
        ["savepoint", "restore", taken[-1].url, str(tmp_path / "new"), "--claim-mode", "claim"],
    ):
        assert [] == state_growth(job.storage.url)  # the job keeps none
        assert EXIT_OK == main.main(command), command

    left = {str(path) for path in Path(backup.url).iterdir()}
    assert before - {f"{backup.url}/s{number}" for number in range(3)} == left
    assert b"mine" == backup.read("folder/queries/q/precious")
    assert "notes" not in capsys.readouterr().out


def test_folders_that_cannot_be_read_are_passed_over(capsys):
    """They are nobody's business here, whoever they belong to."""
    location = Path(tempfile.mkdtemp(prefix="unreadable-"))  # pytest's own is root's alone
    backup = LocalStorage(str(location / "backup"))
    job = a_job(location / "job")
    for number in range(2):
        another_batch(job)
        take(job, backup, f"s{number}")
    (location / "backup/locked").mkdir()

    with rights(location, ("backup/locked", 0o000)):
        assert EXIT_OK == main.main(["savepoint", "list", backup.url])
        assert ["s0"] == retain(backup.url, Retention(keep=1))

    assert "locked" not in capsys.readouterr().out
    assert ["locked", "s1"] == backup.list("")
    shutil.rmtree(location)


def test_a_damaged_savepoint_hides_no_other(tmp_path, backup, capsys):
    """It is said to be damaged, is never removed, and is never the newest."""
    job = a_job(tmp_path / "job")
    for number in range(4):
        another_batch(job)
        take(job, backup, f"s{number}")
    backup.put("s3/savepoint.json", b'{"version": 1, "queries": ')
    (Path(backup.url) / "s9").mkdir()
    (Path(backup.url) / "s9/savepoint.json").mkdir()

    assert EXIT_OK == main.main(["savepoint", "list", backup.url])
    out = capsys.readouterr().out
    assert "s3: damaged: " in out
    assert all(f"s{number}: periodic" in out for number in range(3))
    assert EXIT_OK == main.main(["savepoint", "list", backup.url, "--json"])
    damaged = json.loads(capsys.readouterr().out)["damaged"]
    assert [f"{backup.url}/s3", f"{backup.url}/s9"] == [each["url"] for each in damaged]

    assert ["s0", "s1"] == retain(backup.url, Retention(keep=1))
    assert ["s2", "s3", "s9"] == backup.list("")
    assert "queries" in backup.list("s3")
