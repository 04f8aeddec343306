"""Documents on a local or network-mounted filesystem (POSIX ``link`` and ``rename``)."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from airflow_provider.runtime.errors import CorruptDocumentError, UnsupportedStorageError
from airflow_provider.runtime.storage.local_folder import (
    LocalFolder,
    NotAFileError,
    flush_names,
    naming,
    open_file,
    remove_tree_in,
)
from airflow_provider.runtime.storage.mounts import NO_LINKS, TEMPORARY, check_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.api.storages import Storage

_MOST_BYTES = 1 << 32  # of what is read as a whole, into memory; such as a file of state


class _Written(NamedTuple):
    folder: int
    temporary: str
    name: str
    facts: os.stat_result


class LocalStorage:
    """A folder of this machine, below whose *root* no symbolic link is followed; writing makes it.

    Methods raise CorruptDocumentError if a symbolic link is on the way, and UnsupportedStorageError
    if the filesystem does not give names as a disk does. With an *anchor* see :func:`anchored`.
    """

    shared = True

    def __init__(self, root: str, inside: str = "", *, anchor: Anchor | None = None) -> None:
        self.folder = LocalFolder(str(Path(root))).at(inside)
        self._anchor = anchor

    @property
    def url(self) -> str:
        return self.folder.path

    def at(self, path: str) -> LocalStorage:
        inside = f"{self.folder.inside}/{path}"
        return LocalStorage(self.folder.root, inside, anchor=self._anchor)

    def read(self, path: str) -> bytes:
        """Return the whole file; a pipe, a socket or a device is not waited for."""
        return self.read_small(path, at_most_bytes=_MOST_BYTES)

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        """Return the whole file; raise CorruptDocumentError if it is larger, or no file."""
        try:
            with no_links():
                descriptor = open_file(self.folder, path)
        except NotADirectoryError as error:  # a file where a folder should be
            where = self.folder.at(path).path
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from error
        with open(descriptor, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            target = self.folder.at(path).path
            if size > at_most_bytes:
                raise CorruptDocumentError(
                    f"{target}: has {size} bytes, and at most {at_most_bytes} are read"
                )
            try:
                return file.read(size)
            except MemoryError as error:
                raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), target) from error

    def put(self, path: str, data: bytes) -> None:
        with self._written(path, data) as file:
            at = file.folder
            try:
                os.replace(file.temporary, file.name, src_dir_fd=at, dst_dir_fd=at)
            except OSError:
                if not _is_at(file):
                    raise
            flush_names(at)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write beside the target, flush to the disk, then ``link`` it: the name is taken once."""
        with self._written(path, data) as file:
            at = file.folder
            try:
                os.link(file.temporary, file.name, src_dir_fd=at, dst_dir_fd=at)
            except OSError as error:
                # Any error may be that of a repeated request, whose first answer got lost.
                if not _is_at(file):
                    return self._refused(error)
            flush_names(at)
        return True

    def _refused(self, error: OSError) -> bool:
        """Return False when another writer has the name, else raise the error."""
        if isinstance(error, FileExistsError):
            return False
        if error.errno not in NO_LINKS:
            raise error
        raise UnsupportedStorageError(
            f"{self.url}: this filesystem has no hard links ({error.strerror}), so it "
            "cannot decide between two drivers; put the job directory on another one"
        ) from error

    def exists(self, path: str) -> bool:
        above, name = self.folder.split(path)
        try:
            with no_links(), naming(self.folder.at(path).path), above.opened() as descriptor:
                os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        try:
            folder = self.folder.at(path)
            with no_links(), naming(folder.path), folder.opened(to_list=True) as descriptor:
                names = os.listdir(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name for name in names if not name.startswith(TEMPORARY))

    def delete(self, path: str) -> None:
        """Remove the file or the tree; an OSError means that something is still there."""
        with no_links():
            remove_tree_in(self.folder, path)

    def delete_all(self, paths: Sequence[str]) -> None:
        locations = (self.folder.split(path) for path in paths)
        suppress_absent = contextlib.suppress(FileNotFoundError)
        for above, names in itertools.groupby(locations, key=lambda location: location[0]):
            with suppress_absent, no_links(), above.opened() as folder:
                for _, name in names:
                    with suppress_absent, naming(f"{above.path}/{name}"):
                        os.unlink(name, dir_fd=folder)

    @contextlib.contextmanager
    def _written(self, path: str, data: bytes) -> Iterator[_Written]:
        above, name = self.folder.split(path)
        check_folder(Path(above.path))
        if self._anchor is not None and not Path(above.path).is_dir():
            self._anchor.check()
        make_folder(Path(above.root))
        target = f"{above.path}/{name}"
        with no_links(), naming(target), above.opened(make=True) as folder:
            temporary = f"{TEMPORARY}{uuid.uuid4().hex}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            try:
                with open(os.open(temporary, flags, 0o666, dir_fd=folder), "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                    facts = os.fstat(file.fileno())
                yield _Written(folder, temporary, name, facts)
            except OSError as error:
                error.filename, error.filename2 = target, None  # not what is open, and not ours
                raise
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)


class Anchor:
    """A file that marks a folder, and whether this process has seen it there."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_seen = path.exists()

    def check(self) -> None:
        """Raise FileNotFoundError if the file was seen and is gone, so that no folder is made."""
        if self._path.exists():
            self._is_seen = True
        elif self._is_seen:
            why = "gone, and what was beside it: the folder was removed, emptied, or is not mounted"
            raise FileNotFoundError(errno.ENOENT, why, str(self._path))


def anchored(storage: Storage, path: str) -> Storage:
    """Return *storage* so that it makes no folder after the file *path* was seen and is gone.

    Otherwise a process would make the folder a second time, such as below the bare mount point of
    an unmounted filesystem. A bucket has no folders.
    """
    if not isinstance(storage, LocalStorage):
        return storage
    anchor = Anchor(Path(storage.url) / path)
    return LocalStorage(storage.folder.root, storage.folder.inside, anchor=anchor)


def make_folder(folder: Path, *, flushed: bool = True, tries: int = 10) -> None:
    """Make the folder and its parents; one that others remove meanwhile as empty is made again.

    Args:
        folder: the folder.
        flushed: whether each is flushed to the disk as a name in the one above.
        tries: how often it is made at most, if its parents are removed each time.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent, flushed=flushed, tries=tries)
    try:
        with contextlib.suppress(FileExistsError):  # made just now; a file fails the next step
            folder.mkdir()
        if flushed:
            sync_folder(folder.parent)
    except FileNotFoundError:
        if tries <= 1:
            raise
        make_folder(folder, flushed=flushed, tries=tries - 1)


def sync_folder(folder: Path) -> None:
    """Flush the names in *folder* to the disk, so that they survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        flush_names(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def no_links() -> Iterator[None]:
    """Raise CorruptDocumentError for NotAFileError: a link is damage of the job directory."""
    try:
        yield
    except NotAFileError as error:
        raise CorruptDocumentError(f"{error.filename}: {error.strerror}") from error


def _is_at(file: _Written) -> bool:
    """Whether the file that was written has its name, whatever the system answered."""
    try:
        return os.path.samestat(os.lstat(file.name, dir_fd=file.folder), file.facts)
    except OSError:
        return False
