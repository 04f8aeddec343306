"""Documents on a local or network-mounted filesystem (POSIX ``link`` and ``rename``)."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from airflow_provider.runtime.errors import CorruptDocumentError, UnsupportedStorageError
from airflow_provider.runtime.storage.mounts import NO_LINKS, TEMPORARY, check_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What fsync(2) says of a folder where there is no such thing, as on some network filesystems.
_NO_FOLDER_FLUSH = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})

# What open(2) says of a link that leads to itself, and of a socket.
_NO_FILE = frozenset({errno.ELOOP, errno.ENXIO})
_MOST_BYTES = 1 << 32  # of what is read as a whole, into memory; such as a file of state
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # opening a pipe waits for who writes into it


class LocalStorage:
    """A folder of this machine.

    Args:
        root: the folder; it need not exist, writing makes it.
    """

    shared = True

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    @property
    def url(self) -> str:
        """Return the folder's path."""
        return str(self._root)

    def at(self, path: str) -> LocalStorage:
        """Return the folder *path* under this one."""
        return LocalStorage(str(self._root / path))

    def read(self, path: str) -> bytes:
        """Return the whole file; of a pipe, a socket or a device nothing is waited for.

        Raises:
            CorruptDocumentError: it is no file.
        """
        target = self._root / path
        with _one_file(target):
            descriptor = os.open(target, _READ)
            try:
                _check_regular(os.fstat(descriptor), target, _MOST_BYTES)
                with open(descriptor, "rb", closefd=False) as file:
                    return file.read()
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(target)) from error
            finally:
                os.close(descriptor)

    def check_file(self, path: str, *, at_most_bytes: int) -> None:
        """Refuse what is no file, or a bigger one, before it is read.

        Raises:
            CorruptDocumentError: it is.
        """
        target = self._root / path
        with _one_file(target):
            found = target.stat()
        _check_regular(found, target, at_most_bytes)

    def put(self, path: str, data: bytes) -> None:
        """Write beside the target, flush to the disk, then rename over it.

        Raises:
            UnsupportedStorageError: the filesystem does not give names as a disk does.
        """
        target = self._root / path
        with self._written(target, data) as (temporary, written):
            try:
                os.replace(temporary, target)
            except OSError:
                if not _is_at(target, written):
                    raise
        sync_folder(target.parent)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write beside the target, flush to the disk, then ``link`` it: the name is taken once.

        Raises:
            UnsupportedStorageError: the filesystem has no hard links, or does not give names as a
                disk does.
            OSError: it did not say whether the name was given, or cannot keep it.
        """
        target = self._root / path
        with self._written(target, data) as (temporary, written):
            try:
                os.link(temporary, target)
            except OSError as error:
                # Any error may be that of a repeated request, whose first answer got lost.
                if not _is_at(target, written):
                    return self._refused(error)
        sync_folder(target.parent)
        return True

    def _refused(self, error: OSError) -> bool:
        """Return False when another one has the name, else raise what the error means."""
        if isinstance(error, FileExistsError):
            return False
        if error.errno not in NO_LINKS:
            raise error
        msg = (
            f"{self._root}: this filesystem has no hard links ({error.strerror}), so it "
            "cannot decide between two drivers; put the job directory on another one"
        )
        raise UnsupportedStorageError(msg) from error

    def exists(self, path: str) -> bool:
        """Tell whether there is a file or folder."""
        return (self._root / path).exists()

    def list(self, path: str) -> list[str]:
        """Return the names in the folder, without those still being written."""
        try:
            names = os.listdir(self._root / path)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if not name.startswith(TEMPORARY))

    def delete(self, path: str) -> None:
        """Remove the file or the tree.

        Raises:
            OSError: something of it cannot be removed, and is still there.
        """
        target = self._root / path
        if not target.is_dir() or target.is_symlink():
            target.unlink(missing_ok=True)
            return
        while target.exists():
            with contextlib.suppress(FileNotFoundError):  # somebody else removes it, too
                shutil.rmtree(target)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove the files, one by one."""
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _written(self, target: Path, data: bytes) -> Iterator[tuple[Path, os.stat_result]]:
        check_folder(target.parent)
        make_folder(target.parent)
        temporary = target.parent / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                written = os.fstat(file.fileno())
            yield temporary, written
        finally:
            temporary.unlink(missing_ok=True)


def make_folder(folder: Path) -> None:
    """Make the folder and those above it, each flushed to the disk as a name in the one above."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):  # made just now; a file there fails the next step
        folder.mkdir()
    sync_folder(folder.parent)


def open_plain_file(path: Path) -> BinaryIO:
    """Open a file that others may have put there, and nothing that only has a file's name.

    Raises:
        OSError: it is a link, a folder, a pipe or a device, or cannot be read.
    """
    descriptor = os.open(path, _READ | os.O_NOFOLLOW)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no plain file", str(path))
    return os.fdopen(descriptor, "rb")


@contextlib.contextmanager
def _one_file(target: Path) -> Iterator[None]:
    """Say what prevents a file from being read.

    Raises:
        FileNotFoundError: there is none, also where a folder above it is a file.
        CorruptDocumentError: links that lead to themselves, a socket.
    """
    try:
        yield
    except NotADirectoryError as error:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target)) from error
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
        msg = f"{target}: is no file: {error.strerror}"
        raise CorruptDocumentError(msg) from error


def _check_regular(found: os.stat_result, target: Path, at_most_bytes: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a pipe, a socket or a device"
        msg = f"{target}: is {kind} where a file should be"
        raise CorruptDocumentError(msg)
    if found.st_size > at_most_bytes:
        msg = f"{target}: has {found.st_size} bytes, and at most {at_most_bytes} are read"
        raise CorruptDocumentError(msg)


def sync_folder(folder: Path) -> None:
    """Flush the names in *folder* to the disk, so that they survive a loss of power.

    Raises:
        OSError: they may not be there afterwards.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FLUSH:
            raise
    finally:
        os.close(descriptor)


def _is_at(target: Path, written: os.stat_result) -> bool:
    """Tell whether the file that was *written* has that name, whatever was answered."""
    try:
        return os.path.samestat(os.lstat(target), written)
    except OSError:
        return False
