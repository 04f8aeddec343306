"""Local files: what is confirmed as written is on the disk, and a lost answer is no lost race."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.sinks.staging import stage_files
from airflow_provider.runtime.storage.file_tree import flush
from airflow_provider.runtime.storage.local import LocalStorage, make_folder, sync_folder
from airflow_provider.runtime.storage.mounts import check_folder
from airflow_provider.runtime.storage.open import local_path_of
from tests.present import present
from tests.unit.support import FakeClock, HandStagedFiles, stage_by_hand, take_lease

AN_ERROR = OSError(errno.EIO, "Input/output error")


class Calls:
    """What reaches the disk, in order: files and folders flushed, and names given.

    Attributes:
        seen: pairs of what was done, and the name of the file or folder; a hidden one is ``.tmp``.
        flushed_bytes: what the flushed files held when they were.
        failing: the errors of flushes, by "file" or "folder".
    """

    def __init__(self, monkeypatch, root: Path) -> None:
        check_folder(root)  # what that tries and flushes happens once in a process
        self._root = root
        self._real = {name: getattr(os, name) for name in ("fsync", "link", "replace")}
        self.seen: list[tuple[str, str]] = []
        self.flushed_bytes = 0
        self.failing: dict[str, OSError] = {}
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(os, "link", self.link)
        monkeypatch.setattr(os, "replace", self.replace)

    def fsync(self, descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        self.seen.append((kind, self._name(os.readlink(f"/proc/self/fd/{descriptor}"))))
        if kind == "file":
            self.flushed_bytes += os.fstat(descriptor).st_size
        if kind in self.failing:
            raise self.failing[kind]
        self._real["fsync"](descriptor)

    def link(self, source, target, **folders: int) -> None:
        self._real["link"](source, target, **folders)
        self.seen.append(("name", self._name(_path_in(target, **folders))))

    def replace(self, source, target, **folders: int) -> None:
        self._real["replace"](source, target, **folders)
        self.seen.append(("name", self._name(_path_in(target, **folders))))

    def _name(self, path) -> str:
        name = str(Path(path).relative_to(self._root))
        folder, _, last = name.rpartition("/")
        return f"{folder}/.tmp" if last.startswith(".tmp-") else name


def _path_in(name, *, dst_dir_fd: int | None = None, **_: int) -> Path:
    """Return the path of a name in an open folder."""
    return Path(os.readlink(f"/proc/self/fd/{dst_dir_fd}"), name) if dst_dir_fd else Path(name)


@pytest.fixture
def calls(monkeypatch, tmp_path) -> Calls:
    return Calls(monkeypatch, tmp_path)


@pytest.mark.parametrize("how", ["put", "put_if_absent"])
def test_a_document_is_on_the_disk_before_its_name_is(tmp_path, calls, how):
    """
    The bytes are flushed before the name is given, the folder after it, and the call returns last:
    a loss of power leaves the whole document, and what was told stays.
    """
    (tmp_path / "job" / "leases").mkdir(parents=True)

    assert getattr(LocalStorage(str(tmp_path / "job")), how)("leases/1.json", b"{}") in {None, True}

    expected = [
        ("file", "job/leases/.tmp"),
        ("name", "job/leases/1.json"),
        ("folder", "job/leases"),
    ]
    assert expected == calls.seen
    assert len(b"{}") == calls.flushed_bytes


@pytest.mark.parametrize("how", ["put", "put_if_absent"])
def test_folders_that_a_document_needs_are_on_the_disk_as_well(tmp_path, calls, how):
    """
    Each new folder is a name in the one above it, which is flushed before anything lies in it.
    """
    getattr(LocalStorage(str(tmp_path / "job")), how)("runs/r1/run.json", b"{}")

    assert [("folder", "."), ("folder", "job"), ("folder", "job/runs")] == calls.seen[:3]
    assert ("folder", "job/runs/r1") == calls.seen[-1]


@pytest.mark.parametrize("how", ["put", "put_if_absent"])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_flush_that_fails_is_an_error(tmp_path, calls, what, how):
    """A disk that cannot say that the bytes, or the name, are safe has not written them."""
    (tmp_path / "leases").mkdir()
    calls.failing[what] = AN_ERROR

    with pytest.raises(OSError, match="Input/output error"):
        getattr(LocalStorage(str(tmp_path)), how)("leases/1.json", b"{}")

    names = [] if what == "file" else ["1.json"]  # as after a lost answer: nobody was told
    assert names == os.listdir(tmp_path / "leases")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP])
def test_a_filesystem_that_cannot_flush_folders_is_used(tmp_path, calls, number):
    """
    Some network filesystems flush no folders, and say so; then the file's own flush is all there is.
    """
    calls.failing["folder"] = OSError(number, "not here")

    sync_folder(tmp_path)
    assert LocalStorage(str(tmp_path)).put_if_absent("final.json", b"{}")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE])
def test_other_errors_of_a_folder_are_told(tmp_path, calls, number):
    """A folder that may not be on the disk is never taken for one that is."""
    calls.failing["folder"] = OSError(number, "no")

    with pytest.raises(OSError, match="no"):
        sync_folder(tmp_path)


def test_staged_files_are_on_the_disk_with_their_folders(tmp_path, calls):
    """Staged files are flushed, and each folder down to them, and the name of the topmost."""
    (tmp_path / "staging" / "a" / "b").mkdir(parents=True)
    (tmp_path / "staging" / "a" / "b" / "part").write_bytes(b"row")

    flush(str(tmp_path / "staging"), ["a/b/part"])

    assert [("file", "staging/a/b/part")] == calls.seen[:1]
    folders = {"staging/a/b", "staging/a", "staging", "."}
    assert {("folder", folder) for folder in folders} == set(calls.seen[1:])


def test_published_files_are_on_the_disk_with_their_folders(tmp_path, calls):
    """
    A published file's new name, and each new folder of its partition, is flushed before the staging
    is removed and the epoch is told as published.
    """
    sink = HandStagedFiles(tmp_path / "out")
    committable = stage_by_hand(tmp_path / "out", ["a"], partition="day=1/hour=2/")
    calls.seen.clear()

    sink.commit(committable, OpenFence())

    assert [("folder", "."), ("folder", "out"), ("folder", "out/day=1")] == calls.seen[:3]
    assert ("folder", "out/day=1/hour=2") == calls.seen[-1]
    assert ["a"] == sink.visible()


def test_flushing_leaves_nothing_open(tmp_path, calls):
    """A driver flushes for months: no descriptor stays, also when a flush fails."""
    location = tmp_path / "out"
    location.mkdir()
    (location / "part").write_bytes(b"row")
    before = len(os.listdir("/proc/self/fd"))

    flush(str(location), ["part"])
    calls.failing["folder"] = calls.failing["file"] = AN_ERROR
    for failing in (lambda: sync_folder(location), lambda: flush(str(location), ["part"])):
        with pytest.raises(OSError, match="Input/output error"):
            failing()

    assert before == len(os.listdir("/proc/self/fd"))


def test_files_that_are_reverted_stay_away(tmp_path, calls):
    """
    The folder from which published files were removed is flushed before they are told as gone.
    """
    sink = HandStagedFiles(tmp_path / "out")
    committable = stage_by_hand(tmp_path / "out", ["a"], partition="day=1/")
    sink.commit(committable, OpenFence())
    calls.seen.clear()

    sink.revert([committable], OpenFence())

    assert [("folder", "out/day=1")] == calls.seen
    assert [] == sink.visible()


def test_what_spark_has_staged_is_on_the_disk(tmp_path, calls):
    """
    An epoch's staged files, and the folders down to them, are flushed before they can be recorded.
    """
    frame: Any = SparkFrame()
    staged = stage_files(frame, str(tmp_path / "staging"), "parquet", partition_by=["day"])

    ((name, _),) = staged.files
    own = name.partition("/")[0]
    folders = {f"staging/{own}/day=1", f"staging/{own}", "staging", "."}
    assert [("file", f"staging/{name}")] == calls.seen[:1]
    assert {("folder", folder) for folder in folders} == set(calls.seen[1:])


class SparkFrame:
    """A frame, and its writer, which puts one file into a partition as Spark does."""

    schema = SimpleNamespace(fields=())

    def __getattr__(self, name: str):
        return self if name == "write" else lambda *_, **__: self

    def save(self, location: str) -> None:
        folder = Path(present(local_path_of(location)), "day=1")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"n": [1]}), folder / "part-00000.parquet")


# --- a lost answer ------------------------------------------------------------------------------


LOST = [FileExistsError(errno.EEXIST, "File exists"), AN_ERROR, OSError(errno.ETIMEDOUT, "late")]


@pytest.mark.parametrize("error", LOST, ids=lambda error: errno.errorcode[error.errno])
def test_a_lost_answer_to_a_link_is_no_lost_race(tmp_path, monkeypatch, error):
    """
    A server on the network that has given the name, and whose answer got lost, says to the repeated
    request that the name is taken: by the writer itself, which looks whose file it is.
    """
    give_then_fail(monkeypatch, "link", error)

    assert LocalStorage(str(tmp_path)).put_if_absent("leases/1.json", b"mine")
    assert b"mine" == (tmp_path / "leases" / "1.json").read_bytes()


def test_a_driver_is_not_locked_out_by_itself(storage, monkeypatch):
    """The winner of a lease whose answer was lost holds it."""
    give_then_fail(monkeypatch, "link", LOST[0])

    lease = take_lease(storage, FakeClock())
    lease.check()
    lease.release()


def test_anothers_file_of_the_same_bytes_is_anothers(tmp_path):
    """Whose file it is, is told by the file and not by its bytes, which two writers may share."""
    storage = LocalStorage(str(tmp_path))

    assert [True, False] == [storage.put_if_absent("a", b"same") for _ in range(2)]


def test_a_link_that_was_not_made_is_an_error(tmp_path, monkeypatch):
    """Where nobody has the name, an error stays an error."""

    def refuse(*_, **__) -> None:
        raise AN_ERROR

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        LocalStorage(str(tmp_path)).put_if_absent("a", b"mine")
    (tmp_path / "a").write_bytes(b"another's")
    with pytest.raises(OSError, match="Input/output error"):
        LocalStorage(str(tmp_path)).put_if_absent("a", b"mine")
    assert ["a"] == os.listdir(tmp_path)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), AN_ERROR], ids=["ENOENT", "EIO"])
def test_a_lost_answer_to_a_rename_is_no_error(tmp_path, monkeypatch, error):
    """The same of a rename: what lies there in the end is this writer's file."""
    give_then_fail(monkeypatch, "replace", error)
    storage = LocalStorage(str(tmp_path))

    storage.put("heartbeats/1.json", b"beat")
    assert b"beat" == storage.read("heartbeats/1.json")


def test_a_rename_that_did_not_happen_is_an_error(tmp_path, monkeypatch):
    """Where the old document still lies, the new one was not put."""
    storage = LocalStorage(str(tmp_path))
    storage.put("progress.json", b"old")

    def refuse(*_, **__) -> None:
        raise AN_ERROR

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        storage.put("progress.json", b"new")
    assert b"old" == storage.read("progress.json")


def give_then_fail(monkeypatch, name: str, error: OSError) -> None:
    """Let the first call of ``os.<name>`` be done, and its answer be *error*."""
    real, left = getattr(os, name), [error]

    def call(*arguments, **folders: int) -> None:
        real(*arguments, **folders)
        if left:
            raise left.pop()

    monkeypatch.setattr(os, name, call)


def test_a_tree_that_cannot_be_removed_is_not_taken_for_gone(tmp_path, monkeypatch):
    """Whoever removes a tree learns that some of it is still there."""
    storage = LocalStorage(str(tmp_path))
    storage.put("tree/a/b", b"")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(OSError, match="Input/output error"):
            storage.delete("tree")
    storage.delete("tree")
    storage.delete("tree")

    assert not (tmp_path / "tree").exists()


def test_a_folder_is_made_while_others_remove_its_empty_parents(tmp_path, monkeypatch):
    """As a commit does with the folders of staging, beside the staging of the next epoch."""
    mkdir, races = Path.mkdir, iter(range(5))

    def beside_another(self: Path) -> None:
        if self.name == "c" and next(races, None) is not None:
            self.parent.rmdir()
            self.parent.parent.rmdir()
        mkdir(self)

    monkeypatch.setattr(Path, "mkdir", beside_another)
    make_folder(tmp_path / "a" / "b" / "c")

    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert next(races, None) is None


def test_a_folder_that_cannot_be_made_is_tried_a_few_times(tmp_path, monkeypatch):
    """Where the parent seems to be there and is not, as below /proc, nothing is repeated for ever."""
    tried = []

    def mkdir(self: Path) -> None:
        tried.append(self)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)

    with pytest.raises(FileNotFoundError, match="new"):
        make_folder(tmp_path / "new", tries=3)
    assert 3 * [tmp_path / "new"] == tried
