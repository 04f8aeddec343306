"""Copies of files into a local folder: as hard links, as copies, or from somewhere else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.storage.local import sync_folder
from airflow_provider.runtime.storage.mounts import TEMPORARY
from airflow_provider.runtime.storage.parallel import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow_provider.runtime.storage.parallel import GoOn

# No link across devices, none of somebody else's file (fs.protected_hardlinks), too many already,
# or a filesystem that has none.
_NO_LINK: Final = frozenset(
    {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
)
_NO_KERNEL_COPY: Final = _NO_LINK | {errno.EINVAL}
# Spark takes a name of two parts, such as 7.delta, for a state file's and fails if it is none; with
# this end, the name of an unfinished file has three.
_UNFINISHED: Final = ".part"
# A disk makes one flush of those that wait together: 400 folders in 50 ms instead of 500.
_FLUSHES_AT_ONCE: Final = 8
_KERNEL_STEP_BYTES: Final = 64 * 2**20  # between two steps the copy may be stopped
_STEP_BYTES: Final = 2**20


class WrongSizeError(OSError):
    """A file has not the size that it was said to have."""

    @classmethod
    def of(cls, where: str, *, found: int | None, expected: int) -> WrongSizeError:
        """Return the error for one file.

        Args:
            where: its address.
            found: its bytes; None when it is not there.
            expected: the bytes that it should have.
        """
        found_it = "is not there" if found is None else f"has {found} bytes"
        return cls(errno.EIO, f"{found_it} instead of {expected} bytes", where)


class ArrivalFolder:
    """A local folder that gets files, of which each is whole or absent.

    There is one bringer at a time: what an earlier one left unfinished is removed.

    Args:
        root: the folder; it need not exist.
        names: the paths that will come, relative to it.
    """

    def __init__(self, root: Path, names: Iterable[str]) -> None:
        self._root = str(root)
        inside = {name.rpartition("/")[0] for name in names}
        self._inside = sorted(inside | {up for folder in inside for up in _above(folder)})
        self._made: list[Path] = []

    def path(self, name: str) -> str:
        """Return where a name lies."""
        return f"{self._root}/{name}"

    def prepare(self) -> dict[str, int]:
        """Make the folders, remove what is unfinished, and return the files there and their bytes.

        Crash safety: some of the folders. Idempotent.
        """
        root = Path(self._root)
        self._made = [folder for folder in (root, *root.parents) if not folder.exists()]
        root.mkdir(parents=True, exist_ok=True)
        there: dict[str, int] = {}
        for folder in self._inside:
            path = self.path(folder) if folder else self._root
            try:
                os.mkdir(path)
            except FileExistsError:
                there.update(_tidied(path, f"{folder}/" if folder else ""))
        return there

    @contextlib.contextmanager
    def arriving(self, name: str, size_bytes: int) -> Iterator[str]:
        """Give a path to write to; what lies there in the end becomes the file.

        Raises:
            WrongSizeError: it has not *size_bytes*; nothing has arrived.

        Crash safety: the whole file, flushed, or none, and a hidden unfinished one beside it.
        Idempotent: by name.
        """
        target = self.path(name)
        folder = target.rpartition("/")[0]
        temporary = f"{folder}/{TEMPORARY}{uuid.uuid4().hex}{_UNFINISHED}"
        try:
            yield temporary
            check_size(temporary, size_bytes, target)
            _flush(temporary)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)

    def flush(self) -> None:
        """Make the names in the folders survive a loss of power, one flush for each folder."""
        above = [folder.parent for folder in self._made or [Path(self._root)]]
        folders = [Path(self._root, folder) for folder in self._inside]
        for_each(
            [*folders, *above], lambda folder, _: sync_folder(folder), at_once=_FLUSHES_AT_ONCE
        )


def check_size(file: str | int, size_bytes: int, where: str) -> os.stat_result:
    """Return what the filesystem says of a file that has the right size.

    Args:
        file: its path, or its descriptor.
        size_bytes: the bytes that it should have.
        where: what an error names.

    Raises:
        FileNotFoundError: it is gone.
        WrongSizeError: it has another size.
        OSError: it is no file: a symbolic link, wherever it leads, a folder, a pipe.
    """
    facts = os.fstat(file) if isinstance(file, int) else os.lstat(file)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", where)
    if facts.st_size != size_bytes:
        raise WrongSizeError.of(where, found=facts.st_size, expected=size_bytes)
    return facts


def link_file(source: str, target: str, size_bytes: int) -> bool:
    """Give a file that never changes a second name.

    Returns:
        False where that cannot be, because of the filesystem or of what is there already.

    Raises:
        FileNotFoundError: the source is gone.
        WrongSizeError: the source has another size; there is no second name.

    Crash safety: the name is there or not.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    facts = os.lstat(target)
    is_file = stat.S_ISREG(facts.st_mode)  # the caller says what is wrong with a symbolic link
    if is_file and facts.st_size == size_bytes:
        return True
    os.unlink(target)
    if is_file:
        raise WrongSizeError.of(source, found=facts.st_size, expected=size_bytes)
    return False


def copy_file(source: str, target: str, size_bytes: int, go_on: GoOn) -> None:
    """Copy a file's bytes and permissions, by the kernel where it can, which may share the blocks.

    Raises:
        FileNotFoundError: the source is gone.
        WrongSizeError: the source has another size; there is no target.
        FileExistsError: there is a target.
        OSError: the source is a symbolic link, or no file.

    Crash safety: a part of the target may be there; it is the caller's to hide.
    """
    # No way out of the folder that was named; and a pipe is no reason to wait.
    opened = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(opened, "rb", buffering=0) as reading:
        facts = check_size(reading.fileno(), size_bytes, source)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(target, flags, facts.st_mode & 0o777), "wb") as writing:
            _copy_by_kernel(reading.fileno(), writing.fileno(), size_bytes, go_on)
            while data := reading.read(_STEP_BYTES):
                go_on()
                writing.write(data)


def _copy_by_kernel(reading: int, writing: int, size_bytes: int, go_on: GoOn) -> None:
    """Copy what the kernel is able to; both files are then at the offset where it stopped."""
    if not hasattr(os, "copy_file_range"):  # Linux has it
        return
    left = size_bytes
    try:
        while left:
            go_on()
            copied = os.copy_file_range(reading, writing, min(left, _KERNEL_STEP_BYTES))
            if not copied:
                return
            left -= copied
    except OSError as error:
        if error.errno not in _NO_KERNEL_COPY:
            raise


def _flush(path: str) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _above(folder: str) -> Iterator[str]:
    """Return the folders that *folder* lies in, the root, which is empty, last."""
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _tidied(path: str, prefix: str) -> Iterator[tuple[str, int]]:
    """Remove what a dead bringer has left unfinished; return the files that are there."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(_UNFINISHED):
                os.unlink(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size
