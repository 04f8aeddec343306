"""Symbolic links below a root: none is followed, also when it appears between a check and a use."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider.hooks.log_tail import LogFollower, log_folders
from airflow_provider.plugins.documents import read_document, read_folder
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import facts_under, files_under, folders_in
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.local_folder import LocalFolder, NotAFileError, open_file
from tests.pipes import stdout_of

if TYPE_CHECKING:
    from collections.abc import Callable

OTHERS = "fernet_key = of another user"
# Exchanges two names atomically, again and again: renameat2(2) with RENAME_EXCHANGE.
EXCHANGE = """
import ctypes, os, sys
one, other = map(os.fsencode, sys.argv[1:])
libc = ctypes.CDLL(None)
print("at work", flush=True)
while True:
    libc.renameat2(-100, one, -100, other, 2)
"""
_FOR_S = 0.4


class Job:
    """A job directory, and beside it a folder of another user's with files of the same names."""

    def __init__(self, root: Path) -> None:
        self.root = root / "job"
        self.logs = self.root / "runs/r/logs"
        self.secret = root / "secret"
        self.storage = LocalStorage(str(self.root))
        for folder, text in ((self.logs, "line"), (self.secret, OTHERS)):
            folder.mkdir(parents=True)
            for name in ("a.json", "d.log"):
                (folder / name).write_text(f"{text}\n")
        (self.root / "runs/r/a.json").write_text("line\n")


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path)


READS: dict[str, tuple[str, Callable[[Job], object]]] = {
    "the page's document": (
        "runs/r/a.json",
        lambda job: read_document(str(job.root), "runs/r/a.json").text,
    ),
    "the page's folder": ("runs/r", lambda job: read_folder(str(job.root), "runs/r").documents),
    "a log": (
        "runs/r/logs",
        lambda job: LogFollower(
            str(job.logs / "d.log"), log_folders(str(job.root), "r", job.root)
        ).new_lines(),
    ),
    "a document": ("runs/r", lambda job: job.storage.at("runs/r").read("a.json")),
    "a listing": ("runs/r/logs", lambda job: sorted(facts_under(job.storage.at("runs/r/logs")))),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", READS)
def test_a_link_that_comes_and_goes_is_never_followed(job, tmp_path, what):
    """Who exchanges a name for a link while it is read reaches no file beyond the job directory."""
    name, read = READS[what]
    (tmp_path / "secret/of-another.json").write_text(OTHERS)
    target = job.secret / "a.json" if name.endswith(".json") else job.secret
    (tmp_path / "link").symlink_to(target)
    command = [sys.executable, "-c", EXCHANGE, str(job.root / name), str(tmp_path / "link")]
    found = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert "at work\n" == stdout_of(other).readline()
            deadline = time.monotonic() + _FOR_S
            while time.monotonic() < deadline:
                with contextlib.suppress(LookupError, CorruptDocumentError, OSError):
                    found.append(str(read(job)))
        finally:
            other.kill()

    assert [] == [text for text in found if "of another" in text or "of-another" in text]
    assert found


@pytest.mark.parametrize("way", ["runs", "runs/r"])
def test_nothing_is_read_written_or_removed_behind_a_link(job, tmp_path, way):
    """Each use of a folder that a link has replaced is refused by one line that names the link."""
    (job.root / way).rename(tmp_path / "moved")
    (job.root / way).symlink_to(tmp_path / "moved")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    uses: list[Callable[[], object]] = [
        lambda: job.storage.read("runs/r/a.json"),
        lambda: job.storage.read_small("runs/r/a.json", at_most_bytes=9),
        lambda: job.storage.list("runs/r"),
        lambda: job.storage.exists("runs/r/a.json"),
        lambda: job.storage.put("runs/r/a.json", b"new"),
        lambda: job.storage.put_if_absent("runs/r/b.json", b"new"),
        lambda: job.storage.delete("runs/r/a.json"),
        lambda: job.storage.delete_all(["runs/r/a.json"]),
        lambda: job.storage.at("runs/r").read("a.json"),
        lambda: files_under(job.storage.at("runs/r")),
        lambda: folders_in(job.storage.at("runs/r")),
    ]

    for use in uses:
        with pytest.raises(CorruptDocumentError, match=f"job/{way}: is a symbolic link"):
            use()
    with pytest.raises(NotAFileError, match="a symbolic link"):
        copy_files(job.storage.at("runs/r"), str(tmp_path / "copy"), [("a.json", 5)])
    with pytest.raises(NotAFileError, match="a symbolic link"):
        copy_files(str(job.secret), job.storage.at("runs/r/logs/new"), [("a.json", 29)])
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*.json")}


def test_a_link_as_the_last_part_is_no_document(job):
    """A document that is a link is damage: it is neither absent nor what the link leads to."""
    (job.root / "job.json").symlink_to(job.secret / "a.json")

    with pytest.raises(CorruptDocumentError, match=r"job/job\.json: is a symbolic link"):
        job.storage.read("job.json")
    assert not job.storage.put_if_absent("job.json", b"new")
    job.storage.put("job.json", b"new")
    assert b"new" == job.storage.read("job.json")
    assert f"{OTHERS}\n" == (job.secret / "a.json").read_text()


def test_the_job_directory_itself_may_be_a_link(job, tmp_path):
    """Where a job directory lies is its user's choice; links that lead to it are followed."""
    (tmp_path / "link").symlink_to(job.root)
    linked = LocalStorage(str(tmp_path / "link"))

    assert b"line\n" == linked.at("runs").read("r/a.json")
    assert ["a.json", "logs"] == linked.list("runs/r")
    assert [("a.json", 5), ("d.log", 5)] == files_under(str(tmp_path / "link/runs/r/logs"))


def test_no_path_leads_out_of_its_folder(job):
    """A path goes down only, whatever has written it."""
    with pytest.raises(OSError, match="leads out of its folder"):
        job.storage.read("runs/../../secret/a.json")
    with pytest.raises(OSError, match="leads out of its folder"):
        job.storage.at("..")


def test_a_pipe_is_not_waited_for_and_nothing_stays_open(job):
    """
    A pipe, a folder or a link where a file should be is refused without a descriptor left behind.
    """
    os.mkfifo(job.logs / "pipe")
    (job.logs / "link").symlink_to(job.secret / "a.json")
    before = len(os.listdir("/proc/self/fd"))

    for name in ("pipe", "link", ".", "link/x", "d.log/x", "none/x"):
        with pytest.raises(OSError):  # noqa: PT011 - of several kinds
            open_file(LocalFolder(str(job.root), "runs/r/logs"), name)

    assert before == len(os.listdir("/proc/self/fd"))


def test_a_tree_that_has_no_end_is_an_error(job):
    """A path longer than the system takes is refused before it is walked."""
    with pytest.raises(OSError, match="name too long"):
        job.storage.list("x/" * 5_000)
