"""Mounts: the filesystem of a folder, and whether it gives names as a disk does.

Documents need a filesystem on which ``link`` gives a name once, and ``link`` and ``rename`` move no
bytes. A filesystem in user space is a program that claims both: those that show a bucket as a
folder copy objects one by one, and each machine has caches of its own. One machine cannot find out
what another one would see, so all of them are refused but for those on top of a local disk.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import UnsupportedStorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

TEMPORARY: Final = (
    ".tmp-"  # hidden from ``list``, so that a crash while writing leaves nothing visible
)
# What link(2) says where there are none. Anything else, such as a full disk, is of this moment.
NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV}
)
TRUSTED: Final = "SPARK_STREAM_TRUSTED_MOUNTS"
"""The variable with mount points that are used as they are, separated as those of ``PATH``."""

_MOUNTS: Final = Path("/proc/self/mountinfo")  # Linux has it
_DISKS: Final = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs"}
    | {"tmpfs", "xfs", "zfs"}
)
# Programs, but between this machine and its own disk: NTFS, and containers without a root.
_OVER_DISKS: Final = frozenset({"fuseblk", "fuse.fuse-overlayfs"})
_USER_SPACE: Final = re.compile(r"fuse(blk)?(\..*)?")
_STORES: Final = {
    "s3": "s3://bucket/path",
    "goofys": "s3://bucket/path",
    "gcsfuse": "gs://bucket/path",
    "blobfuse": "abfss://container@account.dfs.core.windows.net/path",
}
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


_LEAST_FREE_BYTES: Final = 64 * 1024  # what the records of a run need


def full_disk(folders: Iterable[str]) -> str | None:
    """Return the first folder whose disk has no room for a record, or None."""
    for folder in folders:
        with contextlib.suppress(OSError):
            found = os.statvfs(folder)
            if found.f_bavail * found.f_frsize < _LEAST_FREE_BYTES:
                return folder
    return None


class Mount(NamedTuple):
    """A line of the kernel's list of mounts: the folder, the filesystem's type, and the device."""

    location: str
    kind: str
    source: str


class MountVerdict(enum.Enum):
    """The consequence of a mount's type."""

    USED = "used"
    TRIED = "tried"  # a try says what it does on this machine
    REFUSED = "refused"


def find_mount(path: str, mountinfo: str) -> Mount | None:
    """Return the mount of a path without symbolic links, from :manpage:`proc_pid_mountinfo(5)`."""
    best: Mount | None = None
    for line in mountinfo.splitlines():
        mount = _mount_in(line)
        if mount is None or not (
            path == mount.location or path.startswith(_inside(mount.location))
        ):
            continue
        if best is None or len(mount.location) >= len(best.location):
            best = mount
    return best


def judge(mount: Mount | None, trusted: Collection[str]) -> MountVerdict:
    """Return the verdict on a mount, None for no list; the user answers for those in *trusted*."""
    if mount is None:
        return MountVerdict.TRIED
    if mount.location in trusted or mount.kind in _DISKS:
        return MountVerdict.USED
    if mount.kind in _OVER_DISKS or not _USER_SPACE.fullmatch(mount.kind):
        return MountVerdict.TRIED
    return MountVerdict.REFUSED


_known_devices: Final[set[int]] = set()


def check_folder(folder: Path) -> None:
    """Refuse a folder whose filesystem cannot decide between two drivers, once in a process.

    For a folder that does not exist the one above counts.

    Raises:
        UnsupportedStorageError: the message names the folder, the filesystem and the fix.
        OSError: the folder cannot be written to.

    Crash safety: a hidden file may be left in the folder. Idempotent.
    """
    existing, device = _nearest(folder)
    if device in _known_devices:
        return
    try:
        mountinfo = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        mountinfo = ""
    mount = find_mount(os.path.realpath(existing), mountinfo)
    verdict = judge(mount, os.environ.get(TRUSTED, "").split(os.pathsep))
    if verdict is MountVerdict.REFUSED and mount is not None:
        raise UnsupportedStorageError(refusal(str(folder), mount))
    if verdict is MountVerdict.TRIED and (problem := try_names(existing)) is not None:
        raise UnsupportedStorageError(_failure(str(folder), mount, problem))
    _known_devices.add(device)


def refusal(folder: str, mount: Mount) -> str:
    """Return the message about a mount in user space."""
    kind = mount.kind.lower()
    found = (address for name, address in _STORES.items() if name in kind)
    address = next(found, "s3://, gs:// or abfss://")
    return (
        f"{folder}: lies on {mount.kind} (FUSE, mounted at {mount.location}), where names are "
        "given by a program and not as on a disk, so two drivers could own one job; name the store "
        f"by its own address ({address}), or a folder on a disk or on NFS; if every machine sees "
        f"links and renames there as on one disk, set {TRUSTED}={mount.location}"
    )


def try_names(folder: Path) -> str | None:
    """Try on hidden files what documents need, and return what is wrong, or None.

    Crash safety: leaves a hidden file or two.
    """
    with _hidden(folder) as first, _hidden(folder) as second, _hidden(folder) as third:
        _create(first, b"1")
        with contextlib.suppress(FileExistsError):
            _create(first, b"2")
            return "a file is created where one is"
        try:
            os.link(first, second)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            return f"there are no hard links ({error.strerror})"
        if not os.path.samefile(first, second):
            return "a hard link is a copy"
        with contextlib.suppress(FileExistsError):
            os.link(first, second)
            return "a name is given twice"
        _create(third, b"3")
        renamed = os.lstat(third)
        os.replace(third, second)
        if not os.path.samestat(os.lstat(second), renamed):
            return "a rename is a copy"
        return None if first.read_bytes() == b"1" else "a rename changes another file"


def _failure(folder: str, mount: Mount | None, problem: str) -> str:
    what = "its filesystem" if mount is None else f"{mount.kind}, mounted at {mount.location}"
    location = "/" if mount is None else mount.location
    return (
        f"{folder}: on {what}, {problem}, so it cannot decide between two drivers; put the job "
        "directory on a disk, on NFS, or at a store's own address (s3://, gs://, abfss://); if "
        f"this is wrong, set {TRUSTED}={location}"
    )


def _create(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _hidden(folder: Path) -> Iterator[Path]:
    path = folder / f"{TEMPORARY}{uuid.uuid4().hex}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _nearest(folder: Path) -> tuple[Path, int]:
    for location in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return location, location.stat().st_dev
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))


def _inside(location: str) -> str:
    return location if location.endswith("/") else f"{location}/"


def _mount_in(line: str) -> Mount | None:
    before, _, after = line.partition(" - ")
    own, of_filesystem = before.split(" "), after.split(" ")
    if len(own) < 5 or len(of_filesystem) < 2:  # noqa: PLR2004 - the fields that are read
        return None
    return Mount(_unescaped(own[4]), of_filesystem[0], _unescaped(of_filesystem[1]))


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)
