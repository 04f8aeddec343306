"""Log tail: each line of a driver's log once in the task's log, and of no other file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_provider.hooks.log_tail import FollowedRecord, LogFollower, log_folders
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.local_folder import LocalFolder, NotAFileError, open_file


class Logged:
    """A run whose driver writes a log."""

    def __init__(self, root: Path, clock) -> None:
        self.root = root
        self.clock = clock
        self.run = JobDirectory(LocalStorage(str(root / "job"))).run("r1").storage
        (self.read_from,) = log_folders(str(root / "job"), "r1", root / "airflow")
        self.folder = Path(self.read_from.path)
        self.folder.mkdir(parents=True)
        self.log = self.folder / "d1.log"

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)

    def follower(self, path: Path | None = None, **how) -> LogFollower:
        how = {"kept": self.run, "driver_id": "d1", "clock": self.clock, **how}
        return LogFollower(str(path or self.log), [self.read_from], **how)


@pytest.fixture
def logged(tmp_path, clock) -> Logged:
    return Logged(tmp_path, clock)


def test_the_next_one_goes_on_where_the_last_one_ended(logged):
    """A trigger in another triggerer, or the task of the next DAG run, repeats no line."""
    logged.write("one\ntwo\n")
    first = logged.follower()
    assert ["one", "two"] == first.new_lines()
    first.keep()
    logged.write("three\n")

    second = logged.follower()

    assert len("one\ntwo\n") == second.offset
    assert ["three"] == second.new_lines()


def test_a_follower_that_dies_repeats_ten_seconds_at_most(logged):
    """
    How far it has come is put down every ten seconds, of lines that were logged, and not oftener.
    """
    follower = logged.follower()
    logged.write("one\n")
    assert ["one"] == follower.new_lines()
    assert [] == follower.new_lines()
    assert FollowedRecord.read(logged.run, "submissions/d1.followed.json") is None

    logged.clock.time += 10.0
    logged.write("two\n")
    assert ["two"] == follower.new_lines()

    assert ["two"] == logged.follower().new_lines(), "it may not have been logged yet"


def test_a_log_is_followed_from_where_the_trigger_was_told(logged):
    """The argument that is stored with a trigger counts where nothing was put down."""
    logged.write("one\ntwo\n")

    assert ["two"] == logged.follower(offset=4, kept=None).new_lines()


def test_a_folder_that_cannot_be_written_costs_only_repeated_lines(logged):
    """A task that may not write there follows the log all the same."""
    (logged.root / "job" / "runs" / "r1" / "submissions").write_text("in the way")
    logged.write("one\n")
    follower = logged.follower()

    assert ["one"] == follower.new_lines()
    follower.keep()
    assert ["one"] == logged.follower().new_lines()


def test_a_file_elsewhere_is_not_read(logged):
    """Neither by its own path, nor over a link, nor by a way through the folder."""
    secret = logged.root / "airflow.cfg"
    secret.write_text("fernet_key = secret\n")
    (logged.folder / "link.log").symlink_to(secret)
    others = logged.folder.parent.parent / "r2"
    others.mkdir()
    (others / "logs").symlink_to(logged.root)

    paths = [
        secret,
        logged.folder / "link.log",
        logged.folder / ".." / ".." / ".." / ".." / "airflow.cfg",
        others / "logs" / "airflow.cfg",
    ]
    assert all(path.read_text() for path in paths)
    assert [] == LogFollower(str(secret)).new_lines()
    assert [[]] * 4 == [logged.follower(path).new_lines() for path in paths]


def test_a_folder_of_logs_that_is_a_link_is_not_read(logged):
    """Whoever can write to the job directory could let it lead to Airflow's own logs."""
    elsewhere = logged.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "d1.log").write_text("secret\n")
    logged.folder.rmdir()
    logged.folder.symlink_to(elsewhere)

    assert [] == logged.follower().new_lines()


def test_a_pipe_is_no_log(logged):
    """It would hold the thread that opens it for ever."""
    os.mkfifo(logged.log)

    assert [] == logged.follower().new_lines()
    with pytest.raises(NotAFileError, match="a pipe"):
        open_file(logged.read_from, "d1.log")


def test_logs_lie_with_the_run_or_with_airflow(tmp_path):
    """A job directory in a bucket has no files that could be followed."""
    (tmp_path / "real").mkdir()
    (tmp_path / "job").symlink_to(tmp_path / "real")

    assert [LocalFolder(str(tmp_path / "real"), "runs/r1/logs")] == log_folders(
        str(tmp_path / "job"), "r1", tmp_path / "logs"
    )
    assert [LocalFolder(str(tmp_path / "logs"), "spark_stream/r1")] == log_folders(
        "s3://bucket/job", "r1", tmp_path / "logs"
    )
