"""Files brought from one local folder to another; stores have theirs in tests/contract."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.copy_files import (
    ArrivalFolder,
    Copied,
    WrongSizeError,
    copy_files,
)
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.local_folder import LocalFolder

DIED = 137
SEVERAL = ("1.delta", "state/0/1/2.delta", "state/0/1/_metadata/schema", "offsets/7")
# Dies by itself in the middle: `what` is a function of os that works `times` times.
DYING_PROCESS = """
import errno, os, sys
from airflow_provider.runtime.storage import copy_files as copying
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.storage.file_tree import files_under

source, target, what, times = sys.argv[1:5]
left = int(times)

def refuse(*_args, **_folders):
    raise OSError(errno.EXDEV, "no links here")

def work_or_die(*args, **folders):
    global left
    if left == 0:
        os._exit(137)
    left -= 1
    return real(*args, **folders)

real = getattr(os, what)
if what != "link":
    os.link = refuse
    copying._STEP_BYTES = copying._KERNEL_STEP_BYTES = 1
setattr(os, what, work_or_die)
copy_files(source, target, files_under(source))
"""
UNPRIVILEGED_PROCESS = """
import os, sys
from airflow_provider.runtime.storage.copy_files import copy_files

os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    copy_files(sys.argv[1], sys.argv[2], [("a", 1)])
except PermissionError as error:
    print(error.filename)
"""


def written(folder: Path, names=SEVERAL) -> list[tuple[str, int]]:
    """Write a file of its own size under each name, and return names and sizes."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(number * 7))
    return [(name, number * 7) for number, name in enumerate(names)]


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name, _ in files_under(str(folder))}


@pytest.fixture
def source(tmp_path) -> Path:
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path) -> Path:
    return tmp_path / "new" / "target"


@pytest.fixture
def elsewhere(tmp_path) -> Iterator[Path]:
    """Return a folder on another device."""
    shm = Path("/dev/shm")  # noqa: S108 - it is the only other device that there mostly is
    if not shm.is_dir() or shm.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second device to write to")
    folder = shm / f"test-copies-{uuid.uuid4().hex}"
    yield folder / "target"
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def without_links(monkeypatch):
    def refuse(*_args, **_folders):
        raise OSError(errno.EXDEV, "no links here")

    monkeypatch.setattr(os, "link", refuse)


@pytest.fixture
def flushed(monkeypatch) -> list[int]:
    """Return the descriptors that are flushed."""
    seen, fsync = [], os.fsync

    def count(descriptor):
        seen.append(descriptor)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", count)
    return seen


# --- Links ----------------------------------------------------------------------------------------


def test_files_on_one_device_are_linked(source, target):
    """On one device nothing is written: each file gets a second name, in folders that are made."""
    names = written(source)

    copied = copy_files(str(source), f"file://{target}", names)

    assert Copied(files=4, kept_files=0, linked_bytes=42, copied_bytes=0) == copied
    assert contents(source) == contents(target)
    for name, _ in names:
        assert (source / name).stat().st_ino == (target / name).stat().st_ino


def test_only_what_is_named_is_brought(source, target):
    """Other files of the source stay where they are; other files of the target stay."""
    names = written(source)
    target.mkdir(parents=True)
    (target / "other").write_bytes(b"other")

    copy_files(str(source), str(target), names[1:2])

    assert ["other", "state/0/1/2.delta"] == sorted(contents(target))


def test_a_second_call_keeps_what_is_there(source, target):
    """What has arrived with the right size is neither linked nor copied again."""
    names = written(source)
    copy_files(str(source), str(target), names[:2])
    (target / "offsets").mkdir()
    (target / "offsets/7").write_bytes(b"x" * 21)
    own = (target / "offsets/7").stat().st_ino

    copied = copy_files(str(source), str(target), names)

    assert Copied(files=4, kept_files=3, linked_bytes=14, copied_bytes=0) == copied
    assert own == (target / "offsets/7").stat().st_ino
    again = copy_files(str(source), str(target), names)
    assert Copied(files=4, kept_files=4, linked_bytes=0, copied_bytes=0) == again


def test_a_file_of_another_size_is_replaced(source, target):
    """A target that is not what it should be is replaced by a whole file."""
    names = written(source)
    target.mkdir(parents=True)
    (target / "offsets").mkdir()
    (target / "offsets/7").write_bytes(b"wrong")

    copied = copy_files(str(source), str(target), names)

    assert Copied(files=4, kept_files=0, linked_bytes=21, copied_bytes=21) == copied
    assert contents(source) == contents(target)


def test_nothing_named_is_nothing_done(source, target):
    """Without names no folder is made."""
    copied = copy_files(str(source), str(target), [])

    assert Copied(files=0, kept_files=0, linked_bytes=0, copied_bytes=0) == copied
    assert not target.exists()


def test_names_of_any_kind(source, target):
    """Blanks, escapes, patterns and letters of any alphabet are only letters of a name."""
    names = written(source, ["a b/c d", "a%20b", "[a]*?", "k=é/ß", "-", ".hidden/.x", "#1"])

    copy_files(str(source), str(target), names)

    assert contents(source) == contents(target)


def test_each_folder_is_flushed_once(source, target, flushed):
    """
    Names are flushed by folder and not by file: once for each, and for the one the target is in.
    """
    names = written(source, [f"{folder}/{number}" for folder in "abc" for number in range(9)])
    target.parent.mkdir()

    copy_files(str(source), str(target), names)

    assert len(["a", "b", "c", "target", "new"]) == len(flushed)


# --- Copies ---------------------------------------------------------------------------------------


def test_files_for_another_device_are_copied(source, elsewhere):
    """Where no link can be, bytes and permissions are copied, and nothing else stays there."""
    names = written(source)
    (source / "offsets/7").chmod(0o640)
    (source / "1.delta").chmod(0o444)

    copied = copy_files(str(source), str(elsewhere), names)

    assert Copied(files=4, kept_files=0, linked_bytes=0, copied_bytes=42) == copied
    assert contents(source) == contents(elsewhere)
    assert 0o640 == (elsewhere / "offsets/7").stat().st_mode & 0o777
    assert 0o444 == (elsewhere / "1.delta").stat().st_mode & 0o777
    assert 4 == copy_files(str(source), str(elsewhere), names).kept_files


@pytest.mark.parametrize("why", ["EXDEV", "EPERM", "EMLINK", "ENOTSUP", "ENOSYS"])
def test_files_that_cannot_be_linked_are_copied(source, target, monkeypatch, why):
    """Whatever the reason why a filesystem makes no link, the file is copied."""
    names = written(source)

    def refuse(*_args, **_folders):
        raise OSError(getattr(errno, why), "no links here")

    monkeypatch.setattr(os, "link", refuse)
    copied = copy_files(str(source), str(target), names)

    assert 42 == copied.copied_bytes
    assert contents(source) == contents(target)
    assert (source / "1.delta").stat().st_ino != (target / "1.delta").stat().st_ino


def test_other_errors_of_links_are_raised(source, target, monkeypatch):
    """A disk that fails is not answered with a copy."""
    names = written(source)

    def fail(*_args, **_folders):
        raise OSError(errno.EIO, "the disk is broken")

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="the disk is broken"):
        copy_files(str(source), str(target), names)


@pytest.mark.parametrize("then", ["refuses", "stops", "fails"])
def test_a_kernel_that_does_not_copy_all(source, target, monkeypatch, without_links, then):
    """What the kernel has not copied is copied by hand; a disk that fails is an error."""
    names = written(source)
    kernel_copy, calls = os.copy_file_range, []

    def copy_five_bytes(reading, writing, _count):
        calls.append(reading)
        if len(calls) % 2 == 1:
            return kernel_copy(reading, writing, 5)
        if then == "stops":
            return 0
        raise OSError(errno.EXDEV if then == "refuses" else errno.EIO, then)

    monkeypatch.setattr(os, "copy_file_range", copy_five_bytes)
    if then == "fails":
        with pytest.raises(OSError, match="fails"):
            copy_files(str(source), str(target), names)
        return
    copy_files(str(source), str(target), names)

    assert len(calls) > 2
    assert contents(source) == contents(target)


def test_a_kernel_that_cannot_copy(source, target, monkeypatch, without_links):
    """A system without the call copies by hand."""
    names = written(source)
    monkeypatch.delattr(os, "copy_file_range")

    copy_files(str(source), str(target), names)

    assert contents(source) == contents(target)


def test_copies_are_flushed(source, target, without_links, flushed):
    """Each copied file is flushed before it gets its name, and each folder once."""
    names = written(source)

    copy_files(str(source), str(target), names)

    folders = ["target", "new", "state", "0", "1", "_metadata", "offsets", "what new lies in"]
    assert len(names) + len(folders) == len(flushed)


@pytest.mark.parametrize("link", ["way", "inside/way"], ids=["file", "folder"])
def test_a_symbolic_link_is_refused(source, target, tmp_path, link):
    """It may lead to what was never to be copied: nothing behind it arrives."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/way").write_bytes(b"data")
    source.mkdir()
    if link == "way":
        (source / "way").symlink_to(tmp_path / "secret/way")
    else:
        (source / "inside").symlink_to(tmp_path / "secret")

    with pytest.raises(OSError, match="a symbolic link"):
        copy_files(str(source), str(target), [(link, 4)])

    assert [] == [path for path in target.rglob("*") if not path.is_dir()]
    assert 1 == (tmp_path / "secret/way").stat().st_nlink


def test_a_pipe_is_refused(source, target):
    """Nobody waits for what may come out of it."""
    source.mkdir()
    os.mkfifo(source / "pipe")

    with pytest.raises(OSError, match="a pipe"):
        copy_files(str(source), str(target), [("pipe", 4)])


# --- What is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_source_that_is_gone_is_named(source, target, request, how):
    """A file that was removed meanwhile is a missing file, by its name."""
    if how == "copy":
        request.getfixturevalue("without_links")
    names = written(source)
    (source / "offsets/7").unlink()

    with pytest.raises(FileNotFoundError) as raised:
        copy_files(str(source), str(target), names)

    assert f"{source}/offsets/7" == raised.value.filename
    assert "offsets/7" not in contents(target)


@pytest.mark.parametrize("bytes_now", [3, 30])
@pytest.mark.parametrize("how", ["link", "copy"])
def test_a_source_of_another_size_is_named(source, target, request, how, bytes_now):
    """A source that is shorter or longer than was said is refused, and does not arrive."""
    if how == "copy":
        request.getfixturevalue("without_links")
    names = written(source)
    (source / "offsets/7").write_bytes(b"x" * bytes_now)

    with pytest.raises(WrongSizeError, match=f"has {bytes_now} bytes instead of 21") as raised:
        copy_files(str(source), str(target), names)

    assert f"{source}/offsets/7" == raised.value.filename
    assert "offsets/7" not in contents(target)
    assert not [name for name in contents(target) if ".tmp-" in name]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a"])
def test_a_name_that_leads_out_is_refused(source, target, name):
    """A name that is no path inside a folder is an error before anything is written."""
    written(source)

    with pytest.raises(ConfigError, match="not a path inside a folder"):
        copy_files(str(source), str(target), [("1.delta", 0), (name, 1)])

    assert not target.exists()


def test_other_filesystems_are_refused(source):
    """A place of another kind is an error that says which kinds there are."""
    with pytest.raises(ConfigError, match="memory://x: files are copied between local folders"):
        copy_files(str(source), "memory://x", [])
    with pytest.raises(ConfigError, match="memory://x"):
        copy_files("memory://x", str(source), [])


def test_a_file_where_a_folder_should_be(source, target):
    """A file in the way of a folder is named, and stays."""
    names = written(source)
    target.mkdir(parents=True)
    (target / "state").write_bytes(b"in the way")

    with pytest.raises(NotADirectoryError) as raised:
        copy_files(str(source), str(target), names)

    assert f"{target}/state" == raised.value.filename
    assert b"in the way" == (target / "state").read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("forbidden", ["source", "target"])
def test_what_may_not_be_done_is_named(tmp_path, source, target, forbidden):
    """A user who may not read the source or write the target is told which."""
    written(source, ["a"])
    (source / "a").write_bytes(b"1")
    target.mkdir(parents=True)
    ours = ("pytest-", "popen-")  # what pytest has made, and xdist in it
    for folder in (tmp_path, *(p for p in tmp_path.parents if p.name.startswith(ours))):
        folder.chmod(0o755)
    target.chmod(0o777)
    {"source": source, "target": target}[forbidden].chmod(0o700)
    command = [sys.executable, "-c", UNPRIVILEGED_PROCESS, str(source), str(target)]

    told = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout

    assert told.startswith(str({"source": source, "target": target}[forbidden]))
    assert {} == contents(target)


# --- Deaths ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "times"),
    [
        ("link", 2),
        pytest.param("copy_file_range", 30, marks=pytest.mark.slow),
        pytest.param("fsync", 1, marks=pytest.mark.slow),
        pytest.param("replace", 2, marks=pytest.mark.slow),
    ],
)
def test_the_next_call_completes_what_a_dead_one_began(source, target, what, times):
    """
    A process that dies in the middle leaves whole files only, apart from hidden unfinished ones,
    and the next call brings the others and removes those.
    """
    names = written(source)
    command = [sys.executable, "-c", DYING_PROCESS, str(source), str(target), what, str(times)]

    died = subprocess.run(command, check=False, timeout=60)

    assert DIED == died.returncode
    left = contents(target)
    visible = {name: data for name, data in left.items() if "/.tmp-" not in f"/{name}"}
    assert visible.items() < contents(source).items()
    assert len(visible) == copy_files(str(source), str(target), names).kept_files
    assert contents(source) == contents(target)


def test_what_is_hidden_and_not_ours_stays(source, target):
    """Only what this kind of writer leaves unfinished is removed."""
    names = written(source)
    target.mkdir(parents=True)
    for name in (".tmp-0123", ".tmp-0123.part", ".1.delta.crc", "x.part"):
        (target / name).write_bytes(b"1")

    copy_files(str(source), str(target), names)

    others = contents(target).keys() - contents(source).keys()
    assert [".1.delta.crc", ".tmp-0123", "x.part"] == sorted(others)


# --- How long it takes ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("how", ["link", "copy"])
def test_thousands_of_small_files(source, target, request, how):
    """Five thousand files in two hundred folders, as a query's state has, take seconds."""
    if how == "copy":
        request.getfixturevalue("without_links")
    names = written(source, [f"state/0/{n % 200}/{n}.delta" for n in range(5000)])
    started = time.monotonic()

    copied = copy_files(str(source), str(target), names)

    assert 5000 == copied.files
    assert time.monotonic() - started < {"link": 10, "copy": 60}[how]
    assert names == sorted(files_under(str(target)), key=lambda file: file[1])


@pytest.mark.soak
def test_links_take_a_twentieth_of_the_time_of_copies(source, tmp_path):
    """
    Two gigabytes in 240 files are linked, and flushed, in a twentieth of the time of ``cp -r`` and
    ``sync``, in the round that other load disturbs least; each round measures both in turn.
    """
    block = os.urandom(9_000_000)
    names = [(f"state/0/{number % 40}/{number}.sst", len(block)) for number in range(240)]
    for name, _ in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(block)

    def seconds(call) -> float:
        os.sync()  # what others have left to be written is nobody's
        started = time.monotonic()
        call()
        return time.monotonic() - started

    def copy(target) -> None:
        subprocess.run(["cp", "-r", source, target], check=True)
        os.sync()

    ratios = []
    for number in range(3):
        links, copies = tmp_path / f"links{number}", tmp_path / f"copies{number}"
        linking = seconds(lambda to=links: copy_files(str(source), str(to), names))
        copying = seconds(lambda to=copies: copy(to))
        shutil.rmtree(copies)
        ratios.append(linking / copying)
        print(f"links {linking:.3f} s, cp -r and sync {copying:.3f} s: {ratios[-1]:.3f}")

    assert min(ratios) < 1 / 20


def test_a_file_of_another_size_does_not_arrive(tmp_path):
    """What was brought and is cut short is not put in its place, and nothing of it is left."""
    folder = ArrivalFolder(LocalFolder(str(tmp_path / "to")), ["a/b"])
    folder.prepare()

    with pytest.raises(WrongSizeError), folder.arriving("a/b", 5) as temporary:
        Path(temporary).write_bytes(b"four")

    assert [] == [path for path in (tmp_path / "to").rglob("*") if path.is_file()]
