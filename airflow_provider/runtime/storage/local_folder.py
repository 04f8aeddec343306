"""Folders and files below a root, opened without following a symbolic link.

Several users may write in a job directory, and each of them may replace a folder by a link between
a check of a path and its use. So no path below a root is checked: each folder on the way is opened
from the descriptor of the folder above it (``openat`` with ``O_NOFOLLOW``), and the file from the
last one. What was opened is what ``fstat`` describes and what is read.

Links on the way to the root are followed: the user named the root. A hard link cannot be
distinguished from a file: Linux lets a user make one only to a file that the user owns, or may read
and write (``fs.protected_hardlinks``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# O_PATH asks for no more than the permission to pass through; Linux has it.
_PASS: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY
_READ: Final = os.O_RDONLY | os.O_NONBLOCK  # else opening a pipe waits for a writer
_LONGEST_PATH: Final = 4096  # PATH_MAX of Linux
# What open(2) answers to O_NOFOLLOW for a link, and to O_DIRECTORY for a link.
_MAYBE_LINK: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})

# What fsync(2) says of a folder where there is no such thing, as on some network filesystems.
_NO_FOLDER_FLUSH: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


class NotAFileError(OSError):
    """A symbolic link, a folder, a pipe, a socket or a device where a file should be."""


class LocalFolder(NamedTuple):
    """A folder: its *root* as the user named it, and the path *inside* it, without links."""

    root: str
    inside: str = ""

    @property
    def path(self) -> str:
        return f"{self.root.rstrip('/')}/{self.inside}" if self.inside else self.root

    def at(self, path: str) -> LocalFolder:
        return LocalFolder(self.root, "/".join(_parts(f"{self.inside}/{path}")))

    def split(self, path: str) -> tuple[LocalFolder, str]:
        *above, name = _parts(f"{self.inside}/{path}") or [""]
        if name:
            return LocalFolder(self.root, "/".join(above)), name
        upper, _, name = self.root.rstrip("/").rpartition("/")
        return LocalFolder(upper or "/"), name

    @contextlib.contextmanager
    def opened(self, *, to_list: bool = False, make: bool = False) -> Iterator[int]:
        """Yield the folder's descriptor; NotAFileError for a symbolic link on the way.

        An error of the block that names a file in the folder gets its whole path.

        Args:
            to_list: whether the folder is listed or flushed, which needs the permission to read it.
            make: whether to make the folders below the root, each flushed to the disk as a name in
                the one above.
        """
        descriptor = self._descriptor(_LIST if to_list or make else _PASS, make=make)
        try:
            yield descriptor
        except OSError as error:
            if isinstance(error.filename, str) and "/" not in error.filename:
                error.filename = f"{self.path}/{error.filename}"
            raise
        finally:
            os.close(descriptor)

    def _descriptor(self, flags: int, *, make: bool) -> int:
        if len(self.inside) > _LONGEST_PATH:  # each level costs a call, and trees may be endless
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), self.path[:200])
        way = self.inside.split("/") if self.inside else []
        passing = flags if make else _PASS
        at = os.open(self.root, passing if way else flags)
        for depth, name in enumerate(way, 1):
            above, wanted = at, flags if depth == len(way) else passing
            try:
                at = _enter(above, name, wanted, make=make)
            except OSError as error:
                where = LocalFolder(self.root, "/".join(way[:depth])).path
                raise _explained(error, name, above, where) from None
            finally:
                os.close(above)
        return at


def open_file(folder: LocalFolder, path: str, flags: int = _READ) -> int:
    """Open a regular file below a folder, and return its descriptor."""
    above, name = folder.split(path)
    with above.opened() as descriptor:
        return open_file_at(descriptor, name, where=f"{above.path}/{name}", flags=flags)


def open_file_at(above: int, name: str, *, where: str, flags: int = _READ) -> int:
    """Open a regular file in an open folder; see :func:`open_file`; errors name *where*."""
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=above)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise NotAFileError(errno.ENXIO, "is a pipe or a socket, not a file", where) from None
        raise _explained(error, name, above, where) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
    raise NotAFileError(errno.EINVAL, f"is {kind} where a file should be", where)


def remove_tree_in(folder: LocalFolder, path: str = "") -> None:
    """Remove the file, the link or the tree, if present; an OSError means: still there."""
    above, name = folder.split(path)
    try:
        with naming(f"{above.path}/{name}"), above.opened() as descriptor:
            _remove(descriptor, name)
    except (FileNotFoundError, NotADirectoryError):
        return


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Let errors of the system name *where*: beside a descriptor they name a part of the path."""
    try:
        yield
    except OSError as error:
        if error.errno is None or "/" in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, where) from error


def flush_names(descriptor: int) -> None:
    """Flush the names in an open folder to the disk, so that they survive a loss of power."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_FLUSH:
            raise


def path_of(above: int, folder: LocalFolder, name: str) -> str:
    """Return a path to a name in an open folder, through its descriptor on Linux."""
    return f"{path_of_file(above, folder.path)}/{name}"


def path_of_file(descriptor: int, path: str) -> str:
    """Return a path to an open file or folder, which leads through the descriptor on Linux."""
    through = f"/proc/self/fd/{descriptor}"
    return through if os.path.exists(through) else path


def _enter(above: int, name: str, flags: int, *, make: bool) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):  # made just now; a file there fails the next step
        os.mkdir(name, dir_fd=above)
    flush_names(above)
    return os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)


def _remove(above: int, name: str) -> None:
    while True:
        with contextlib.suppress(FileNotFoundError):  # another process removes it, too
            if not stat.S_ISDIR(os.lstat(name, dir_fd=above).st_mode):
                os.unlink(name, dir_fd=above)
                return
            for _, folders, files, inside in os.fwalk(name, topdown=False, dir_fd=above):
                for each in files:
                    os.unlink(each, dir_fd=inside)
                for each in folders:
                    is_link = _is_link(each, inside)
                    (os.unlink if is_link else os.rmdir)(each, dir_fd=inside)
            os.rmdir(name, dir_fd=above)
            return
        if not _is_there(name, above):
            return


def _is_there(name: str, above: int) -> bool:
    with contextlib.suppress(FileNotFoundError):
        os.lstat(name, dir_fd=above)
        return True
    return False


def _parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise OSError(errno.EINVAL, "leads out of its folder", path)
    return parts


def _is_link(name: str, above: int) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.lstat(name, dir_fd=above).st_mode)
    return False


def _explained(error: OSError, name: str, above: int, where: str) -> OSError:
    """Return the error of opening *name*, which names a symbolic link if one is there."""
    if error.errno in _MAYBE_LINK and _is_link(name, above):
        msg = "is a symbolic link, which is not followed here: put what it leads to in its place"
        return NotAFileError(errno.ELOOP, msg, where)
    error.filename = where
    return error
