"""Copies of files into a local folder: as hard links, as copies, or from somewhere else."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.storage.local import make_folder
from airflow_provider.runtime.storage.local_folder import (
    LocalFolder,
    flush_names,
    naming,
    open_file,
    open_file_at,
    path_of,
)
from airflow_provider.runtime.storage.mounts import TEMPORARY
from airflow_provider.runtime.storage.parallel import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_provider.runtime.api.storages import GoOn

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

    def __init__(self, root: LocalFolder, names: Iterable[str]) -> None:
        self.folder = root
        inside = {root.at(name.rpartition("/")[0]).inside for name in names}
        self._inside = sorted(inside | {up for folder in inside for up in _above(folder)})

    def prepare(self) -> dict[str, int]:
        """Make the folders, remove what is unfinished, and return the files there and their bytes.

        Crash safety: some of the folders. Idempotent.
        """
        top = LocalFolder(self.folder.root)
        make_folder(Path(top.root))
        there: dict[str, int] = {}
        for inside in self._inside:
            if inside and _is_new(top, inside):
                continue
            if f"{inside}/".startswith(f"{self.folder.inside}/") or not self.folder.inside:
                prefix = inside[len(self.folder.inside) :].lstrip("/")
                there.update(_tidied(top.at(inside), f"{prefix}/" if prefix else ""))
        return there

    @contextlib.contextmanager
    def arriving(self, name: str, size_bytes: int) -> Iterator[str]:
        """Give a path to write to; what lies there in the end becomes the file.

        Raises:
            WrongSizeError: it has not *size_bytes*; nothing has arrived.

        Crash safety: the whole file, flushed, or none, and a hidden unfinished one beside it.
        Idempotent: by name.
        """
        folder, last = self.folder.split(name)
        temporary = f"{TEMPORARY}{uuid.uuid4().hex}{_UNFINISHED}"
        with naming(f"{folder.path}/{last}"), folder.opened() as at:
            try:
                yield path_of(at, folder, temporary)
                target = f"{folder.path}/{last}"
                descriptor = open_file_at(at, temporary, where=target)
                with open(descriptor, "rb", buffering=0):
                    check_size(descriptor, size_bytes, target)
                    os.fsync(descriptor)
                os.replace(temporary, last, src_dir_fd=at, dst_dir_fd=at)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=at)

    def flush(self) -> None:
        """Make the names in the folders survive a loss of power, one flush for each folder."""
        top = LocalFolder(self.folder.root)
        for_each(self._inside, lambda inside, _: _flush(top.at(inside)), at_once=_FLUSHES_AT_ONCE)


def check_size(descriptor: int, size_bytes: int, where: str) -> os.stat_result:
    """Return the facts of a file that has the right size.

    Args:
        descriptor: of the open file.
        size_bytes: the bytes that it should have.
        where: what an error names.

    Raises:
        WrongSizeError: it has another size.
    """
    facts = os.fstat(descriptor)
    if facts.st_size != size_bytes:
        raise WrongSizeError.of(where, found=facts.st_size, expected=size_bytes)
    return facts


def link_files(
    source: LocalFolder, arrivals: ArrivalFolder, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Give files that never change a second name, where that can be.

    Args:
        source: the folder that the names are relative to.
        arrivals: where the second names go.
        sizes: the bytes of each file.

    Returns:
        The files that were linked, and their bytes.

    Raises:
        FileNotFoundError: a source is gone.
        WrongSizeError: a source has another size; there is no second name.
        NotAFileError: a symbolic link is on the way to a source, or to its target.

    Crash safety: each name is there or not.
    """
    linked: dict[str, int] = {}
    by_folder = itertools.groupby(sorted(sizes), key=lambda name: name.rpartition("/")[0])
    for inside, names in by_folder:  # a walk to each folder, not to each file
        folder = source.at(inside)
        with folder.opened() as mine, arrivals.folder.at(inside).opened() as theirs:
            for name in names:
                last, where = name.rpartition("/")[2], f"{source.path}/{name}"
                if _link(last, mine, theirs, where, sizes[name]):
                    linked[name] = sizes[name]
    return linked


def _link(name: str, mine: int, theirs: int, where: str, size_bytes: int) -> bool:
    """Link one file between two open folders; return False where that cannot be."""
    try:
        os.link(name, name, src_dir_fd=mine, dst_dir_fd=theirs, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise OSError(error.errno, error.strerror, where) from error
    facts = os.lstat(name, dir_fd=theirs)
    is_file = stat.S_ISREG(facts.st_mode)  # the copy says what is wrong with a symbolic link
    if is_file and facts.st_size == size_bytes:
        return True
    os.unlink(name, dir_fd=theirs)
    if is_file:
        raise WrongSizeError.of(where, found=facts.st_size, expected=size_bytes)
    return False


def copy_file(source: LocalFolder, name: str, target: str, size_bytes: int, go_on: GoOn) -> None:
    """Copy a file's bytes and permissions, by the kernel where it can, which may share the blocks.

    Raises:
        FileNotFoundError: the source is gone.
        WrongSizeError: the source has another size; there is no target.
        FileExistsError: there is a target.
        OSError: the source is a symbolic link, or no file.

    Crash safety: a part of the target may be there; it is the caller's to hide.
    """
    with open(open_file(source, name), "rb", buffering=0) as reading:
        facts = check_size(reading.fileno(), size_bytes, f"{source.path}/{name}")
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


def _flush(folder: LocalFolder) -> None:
    with folder.opened(to_list=True) as descriptor:
        flush_names(descriptor)


def _is_new(top: LocalFolder, inside: str) -> bool:
    """Make a folder unless it is there; return whether it was made."""
    above, name = top.split(inside)
    with naming(top.at(inside).path), above.opened() as descriptor:
        try:
            os.mkdir(name, dir_fd=descriptor)
        except FileExistsError:
            return False
        return True


def _above(folder: str) -> Iterator[str]:
    """Return the folders that *folder* lies in, the root, which is empty, last."""
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _tidied(folder: LocalFolder, prefix: str) -> Iterator[tuple[str, int]]:
    """Remove what a dead bringer has left unfinished; return the files that are there."""
    with folder.opened(to_list=True) as at, os.scandir(at) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(_UNFINISHED):
                os.unlink(entry.name, dir_fd=at)
            elif entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size
