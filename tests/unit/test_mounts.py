"""Filesystems that a job's documents may lie on, and what is said of the others."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_USAGE, UnsupportedStorageError
from airflow_provider.runtime.storage import mounts
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.mounts import (
    Mount,
    MountVerdict,
    find_mount,
    judge,
    refusal,
    try_names,
)
from tests.unit.user_space import NoMountError, UserSpace

# As kernels show them; the bucket's names and the devices are made up.
MOUNTINFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
31 27 0:40 / /mnt/a\\040b rw,nosuid,nodev,relatime shared:9 - fuse.s3fs s3fs rw,user_id=0
32 27 0:41 / /mnt/share rw,relatime shared:3 master:1 - nfs4 nas:/export rw,vers=4.2
33 32 0:42 / /mnt/share/deep rw - xfs /dev/vdb rw
34 27 0:43 / /dbfs rw,nosuid,nodev,relatime - fuse /dev/fuse rw,user_id=0,group_id=0
35 27 0:44 / /Volumes rw,nosuid,nodev,relatime - fuse /dev/fuse rw,user_id=0
36 27 0:45 / /covered rw - ext4 /dev/vdc rw
37 27 0:46 / /covered rw - fuse.gcsfuse a-bucket rw
38 27 8:17 / /media/disk rw,relatime - fuseblk /dev/sdb1 rw,user_id=0
39 27 0:47 / /mnt/blobs rw - fuse.blobfuse2 blobfuse2 rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/srv/job", Mount("/", "ext4", "/dev/vda")),
        ("/mnt/a b/job", Mount("/mnt/a b", "fuse.s3fs", "s3fs")),
        ("/mnt/a bc/job", Mount("/", "ext4", "/dev/vda")),
        ("/mnt/share", Mount("/mnt/share", "nfs4", "nas:/export")),
        ("/mnt/share/deeper", Mount("/mnt/share", "nfs4", "nas:/export")),
        ("/mnt/share/deep/job", Mount("/mnt/share/deep", "xfs", "/dev/vdb")),
        ("/dbfs/tmp/job", Mount("/dbfs", "fuse", "/dev/fuse")),
        ("/covered/job", Mount("/covered", "fuse.gcsfuse", "a-bucket")),
    ],
)
def test_the_mount_of_a_path(path, expected):
    """A path is on the mount that is nearest above it, and of two at one location on the later one."""
    assert expected == find_mount(path, MOUNTINFO)


def test_a_list_without_the_path():
    """Where the kernel has no list of mounts, or none that fits, nothing is known."""
    assert None is find_mount("/srv", "")
    assert MountVerdict.TRIED is judge(None, ())


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [
        ("ext4", MountVerdict.USED),
        ("overlay", MountVerdict.USED),
        ("tmpfs", MountVerdict.USED),
        ("nfs4", MountVerdict.TRIED),
        ("cifs", MountVerdict.TRIED),
        ("9p", MountVerdict.TRIED),
        ("virtiofs", MountVerdict.TRIED),
        ("fuseblk", MountVerdict.TRIED),
        ("fuse.fuse-overlayfs", MountVerdict.TRIED),
        ("fuse", MountVerdict.REFUSED),
        ("fuse.s3fs", MountVerdict.REFUSED),
        ("fuse.gcsfuse", MountVerdict.REFUSED),
        ("fuse.blobfuse2", MountVerdict.REFUSED),
        ("fuse.sshfs", MountVerdict.REFUSED),
        ("fuse.rclone", MountVerdict.REFUSED),
    ],
)
def test_what_follows_from_a_mount(kind, verdict):
    """
    Disks are used; programs are not, unless they are over a disk or the user answers for the mount;
    what is neither is tried.
    """
    mount = Mount("/mnt/x", kind, "source")

    assert verdict is judge(mount, ("", "/mnt"))
    assert MountVerdict.USED is judge(mount, ("/elsewhere", "/mnt/x"))


@pytest.mark.parametrize(
    ("location", "kind", "address"),
    [
        ("/mnt/a b", "fuse.s3fs", "s3://bucket/path"),
        ("/covered", "fuse.gcsfuse", "gs://bucket/path"),
        ("/mnt/blobs", "fuse.blobfuse2", "abfss://container@account.dfs.core.windows.net/path"),
        ("/dbfs", "fuse", "s3://, gs:// or abfss://"),
        ("/Volumes", "fuse", "s3://, gs:// or abfss://"),
    ],
)
def test_a_refusal_names_the_way_out(location, kind, address):
    """
    One line names the folder, the filesystem, the address to use, and what to set if all is well.
    """
    mount = find_mount(f"{location}/job", MOUNTINFO)
    assert mount is not None
    said = refusal(f"{location}/job", mount)

    assert said.startswith(f"{location}/job: lies on {kind} (FUSE, mounted at {location})")
    assert address in said
    assert said.endswith(f"set SPARK_STREAM_TRUSTED_MOUNTS={location}")
    assert "\n" not in said


def test_a_folder_of_a_disk_does_what_is_needed(tmp_path):
    """On a disk the try finds nothing wrong, and leaves nothing behind."""
    assert None is try_names(tmp_path)
    assert [] == os.listdir(tmp_path)


def refuse_links(*_args) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def replace_by_copying(source, target) -> None:
    shutil.copy(source, Path(target).with_suffix(".copied"))
    os.rename(Path(target).with_suffix(".copied"), target)
    os.unlink(source)


def link_whatever_is_there(source, target) -> None:
    Path(target).unlink(missing_ok=True)
    os.symlink(source, target)  # which is the same file to who follows it


@pytest.mark.parametrize(
    ("call", "instead", "problem"),
    [
        ("link", refuse_links, "there are no hard links"),
        ("link", shutil.copy, "a hard link is a copy"),
        ("link", link_whatever_is_there, "a name is given twice"),
        ("replace", replace_by_copying, "a rename is a copy"),
    ],
)
def test_what_a_try_finds_out(tmp_path, monkeypatch, call, instead, problem):
    """
    A filesystem without links, or with links and renames that copy, is found out and left as it was.
    """
    monkeypatch.setattr(os, call, instead)
    found = try_names(tmp_path)
    monkeypatch.undo()

    assert found is not None
    assert found.startswith(problem)
    assert [] == os.listdir(tmp_path)


@pytest.fixture
def unknown(tmp_path, monkeypatch) -> Path:
    """A folder on a filesystem of which nothing is known yet, and nothing can be read."""
    monkeypatch.setattr(mounts, "_known_devices", set())
    monkeypatch.setattr(mounts, "_MOUNTS", tmp_path / "none")
    return tmp_path / "job"


def test_a_filesystem_without_links_is_refused_before_anything_is_written(unknown, monkeypatch):
    """
    The first document of a job is not begun where it could not be put if absent, and no folder made.
    """
    monkeypatch.setattr(os, "link", refuse_links)
    storage = LocalStorage(str(unknown))

    with pytest.raises(UnsupportedStorageError, match="there are no hard links") as raised:
        storage.put("runs/r1/run.json", b"{}")

    assert str(raised.value).startswith(f"{unknown}/runs/r1: on its filesystem, ")
    assert "\n" not in str(raised.value)
    assert EXIT_USAGE == raised.value.exit_code
    assert [] == os.listdir(unknown.parent)


def test_a_filesystem_is_tried_once(unknown, monkeypatch):
    """A process tries a filesystem with its first document, and not with each."""
    calls: list[Path] = []
    monkeypatch.setattr(mounts, "try_names", calls.append)
    storage = LocalStorage(str(unknown))
    storage.put("a", b"1")
    storage.put_if_absent("b/c", b"2")

    assert [unknown.parent] == calls


def test_a_full_disk_is_not_refused_for_good(unknown, monkeypatch):
    """What a disk says of this moment is told as it is, and the next document tries again."""

    def fail(*_args) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "link", fail)
        with pytest.raises(OSError, match="No space left"):
            LocalStorage(str(unknown)).put("a", b"1")
    LocalStorage(str(unknown)).put("a", b"1")

    assert ["a"] == os.listdir(unknown)


@pytest.fixture
def user_space(tmp_path, monkeypatch) -> Iterator[UserSpace]:
    """A mount as s3fs has it, at ``bucket``; another one may have had its number."""
    monkeypatch.setattr(mounts, "_known_devices", set())
    try:
        mount = UserSpace(tmp_path / "bucket", "fuse.s3fs")
    except NoMountError as error:
        pytest.skip(f"no filesystem in user space can be mounted here: {error}")
    yield mount
    mount.close()


def test_a_real_mount_in_user_space_is_refused(user_space, monkeypatch):
    """
    A mount of the kernel's own kind for user space is refused before the kernel is asked to write
    there; with its location in the variable it is used, and what it says of writing is passed on.
    """
    location = user_space.location
    storage = LocalStorage(str(location / "job"))

    with pytest.raises(UnsupportedStorageError) as raised:
        storage.put_if_absent("leases/1.json", b"{}")
    assert str(raised.value).startswith(
        f"{location}/job/leases: lies on fuse.s3fs (FUSE, mounted at {location})"
    )
    assert [] == user_space.changes

    monkeypatch.setenv("SPARK_STREAM_TRUSTED_MOUNTS", f"/elsewhere:{location}")
    with pytest.raises(OSError, match="not implemented"):
        storage.put_if_absent("leases/1.json", b"{}")
    assert user_space.changes


def test_a_command_is_refused_there_before_spark_starts(user_space, capsys):
    """
    The job directory's filesystem is looked at with the request: exit code 2, one line, no write.
    """
    job_dir = str(user_space.location / "job")

    assert EXIT_USAGE == main(["run", job_dir, "--entry", f"{__file__}:refuse_links"])

    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{job_dir}: lies on fuse.s3fs" in said
    assert "s3://bucket/path" in said
    assert [] == user_space.changes
