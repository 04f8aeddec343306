"""Copies sets of files that never change, from one folder to another on any filesystem.

The way of a file depends on the two folders::

    source, target            how                                           through this machine
    one local filesystem      a hard link                                   nothing
    two local filesystems     a copy by the kernel                          all bytes
    one store                 a copy by the store                           nothing
    local and a store         a transfer, several files at once             all bytes
    two stores                a transfer to a temporary file, and from it   all bytes
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import stat
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.local import make_folder
from airflow_provider.runtime.storage.local_folder import (
    LocalFolder,
    flush_names,
    naming,
    open_file,
    open_file_at,
    path_of,
    path_of_file,
)
from airflow_provider.runtime.storage.mounts import TEMPORARY
from airflow_provider.runtime.storage.open import local_folder_of, open_remote
from airflow_provider.runtime.storage.store_errors import GivenUpError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from airflow_provider.runtime.api.storages import GoOn, RemoteStorage, Storage


_File = tuple[str, int]  # its name and bytes

_REQUESTS_AT_ONCE = 32  # more only earns "slow down" from the store
_STREAMS_AT_ONCE = 8  # each holds some 10 MiB, and fills a good part of a disk or a network


@dataclasses.dataclass(frozen=True)
class Copied:
    """The files of a call, those kept because they were there, and the bytes linked and copied."""

    files: int
    kept_files: int
    linked_bytes: int
    copied_bytes: int


def copy_files(
    source_location: str | Storage, target_location: str | Storage, names: Iterable[tuple[str, int]]
) -> Copied:
    """Bring files that never change from one folder to another, by links where possible.

    A file that is in the target and has the right size is kept.

    Args:
        source_location: the source folder. All parts of an address are the user's; below the root
            of a storage no part may be a symbolic link.
        target_location: the target folder; it need not exist, and one caller at a time fills it.
        names: paths relative to both, with ``/``, and the bytes of each file.

    Raises:
        ConfigError: a folder is on a filesystem of another kind, a name leads out of it, or a file
            is larger than the store itself copies; nothing was written.
        WrongSizeError: a source or target has another size.
        OSError: a source is gone, a symbolic link or no file; or any other error of the
            filesystems. The first error ends the whole, and no work continues behind the caller.

    Crash safety: each file is whole or absent. A death leaves some of them, and perhaps hidden
    unfinished ones, which the next call removes. When this returns, all names and all copied bytes
    are on the disk; the bytes of a link are as safe as those of its source. Idempotent: by names
    and sizes; a second call completes the first one.
    """
    sizes = dict(names)
    _refuse_outside(sizes)
    source, target = _location(source_location), _location(target_location)
    if not sizes:
        return Copied(files=0, kept_files=0, linked_bytes=0, copied_bytes=0)
    if isinstance(target, LocalFolder):
        return _to_folder(source, target, sizes)
    return _to_store(source, target, sizes)


def _to_folder(
    source: LocalFolder | RemoteStorage, target: LocalFolder, sizes: Mapping[str, int]
) -> Copied:
    arrivals = ArrivalFolder(target, sizes)
    missing = _missing(sizes, arrivals.prepare())
    if isinstance(source, LocalFolder):
        linked = link_files(source, arrivals, missing)
        bring = partial(_copy, source, arrivals)
    else:
        linked, bring = {}, partial(_fetch, source, arrivals)
    rest = {name: size for name, size in missing.items() if name not in linked}
    for_each(rest.items(), bring, at_once=_STREAMS_AT_ONCE)
    arrivals.flush()
    return Copied(
        files=len(sizes),
        kept_files=len(sizes) - len(missing),
        linked_bytes=sum(linked.values()),
        copied_bytes=sum(rest.values()),
    )


def _to_store(
    source: LocalFolder | RemoteStorage, target: RemoteStorage, sizes: Mapping[str, int]
) -> Copied:
    missing = _missing(sizes, dict(target.files()))
    if isinstance(source, LocalFolder):
        bring, at_once = partial(_send, source, target), _STREAMS_AT_ONCE
    elif target.is_beside(source):
        _refuse_large(source, missing, target.largest_copy_bytes)
        bring, at_once = partial(_copy_beside, source, target), _REQUESTS_AT_ONCE
    else:
        bring, at_once = partial(_pass_on, source, target), _STREAMS_AT_ONCE
    for_each(missing.items(), bring, at_once=at_once)
    if missing:
        _check_arrived(target, missing)
    return Copied(
        files=len(sizes),
        kept_files=len(sizes) - len(missing),
        linked_bytes=0,
        copied_bytes=sum(missing.values()),
    )


# --- One file -------------------------------------------------------------------------------------


def _copy(source: LocalFolder, arrivals: ArrivalFolder, file: _File, go_on: GoOn) -> None:
    name, size = file
    with arrivals.arriving(name, size) as path:
        copy_file(source, name, path, size, go_on)


def _fetch(source: RemoteStorage, arrivals: ArrivalFolder, file: _File, go_on: GoOn) -> None:
    name, size = file
    with arrivals.arriving(name, size) as path:
        source.fetch(name, path, go_on=go_on)
        with open(path, "rb") as fetched:
            check_size(fetched.fileno(), size, f"{source.url}/{name}")


def _send(source: LocalFolder, target: RemoteStorage, file: _File, go_on: GoOn) -> None:
    name, size = file
    where = f"{source.path}/{name}"
    with open(open_file(source, name), "rb") as file_to_send:
        check_size(file_to_send.fileno(), size, where)
        target.send(name, path_of_file(file_to_send.fileno(), where), size_bytes=size, go_on=go_on)


def _copy_beside(source: RemoteStorage, target: RemoteStorage, file: _File, go_on: GoOn) -> None:
    target.copy_from(source, file[0], go_on=go_on)


def _pass_on(source: RemoteStorage, target: RemoteStorage, file: _File, go_on: GoOn) -> None:
    """The bytes rest in a file, because a broken read would be taken for the end of a stream."""
    name, size = file
    with tempfile.NamedTemporaryFile(prefix="copy-") as resting:
        source.fetch(name, resting.name, go_on=go_on)
        check_size(resting.fileno(), size, f"{source.url}/{name}")
        target.send(name, resting.name, size_bytes=size, go_on=go_on)


# --- Before and after -----------------------------------------------------------------------------


def _missing(sizes: Mapping[str, int], there: Mapping[str, int]) -> dict[str, int]:
    return {name: size for name, size in sizes.items() if there.get(name) != size}


def _check_arrived(target: RemoteStorage, sizes: Mapping[str, int]) -> None:
    there = dict(target.files())
    for name in _missing(sizes, there):
        where = f"{target.url}/{name}"
        raise WrongSizeError.of(where, found=there.get(name), expected=sizes[name])


def _location(location: str | Storage) -> LocalFolder | RemoteStorage:
    url = location if isinstance(location, str) else location.url
    found = local_folder_of(location) or open_remote(url)
    if found is None:
        raise ConfigError(
            f"{url}: files are copied between local folders, S3, Google Cloud Storage and Azure; "
            "use one of these"
        )
    return found


def _refuse_large(
    source: RemoteStorage, sizes: Mapping[str, int], largest_bytes: int | None
) -> None:
    for name, size in sizes.items():
        if largest_bytes is not None and size > largest_bytes:
            raise ConfigError(
                f"{source.url}/{name}: has {size} bytes, and the store itself copies no more than "
                f"{largest_bytes}; copy by way of a local folder or another store (a savepoint "
                "taken there, or moved there and restored), or let the job begin with smaller "
                "files: state in RocksDB, or more spark.sql.shuffle.partitions"
            )


def _refuse_outside(names: Iterable[str]) -> None:
    for name in names:
        if not name or name.startswith("/") or not {".", "..", ""}.isdisjoint(name.split("/")):
            raise ConfigError(
                f"{name!r}: not a path inside a folder; give names relative to the two folders"
            )


# --- local folders ------------------------------------------------------------------------------

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
    """A file does not have its expected size."""

    @classmethod
    def of(cls, where: str, *, found: int | None, expected: int) -> WrongSizeError:
        """Return the error for one file; *found* is None when it is missing."""
        found_it = "is not there" if found is None else f"has {found} bytes"
        return cls(errno.EIO, f"{found_it} instead of {expected} bytes", where)


class ArrivalFolder:
    """A folder that gets files, each whole or absent; one writer at a time uses it."""

    def __init__(self, root: LocalFolder, names: Iterable[str]) -> None:
        self.folder = root
        inside = {root.at(name.rpartition("/")[0]).inside for name in names}
        self._inside = sorted(inside | {up for folder in inside for up in _above(folder)})

    def prepare(self) -> dict[str, int]:
        """Make the folders, remove what is unfinished, and return the present files and bytes."""
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
        """Yield a path to write to, whose file becomes the file *name* if it has *size_bytes*.

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
    """Return the facts of an open file, or raise WrongSizeError, which names *where*."""
    facts = os.fstat(descriptor)
    if facts.st_size != size_bytes:
        raise WrongSizeError.of(where, found=facts.st_size, expected=size_bytes)
    return facts


def link_files(
    source: LocalFolder, arrivals: ArrivalFolder, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Link files that never change into a folder; return those that were linked, and their bytes.

    A source that is gone, a symbolic link or of another size is an error. Crash safety: each name
    exists or not.
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
    """Link one file between two open folders; return False where that is impossible."""
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
        WrongSizeError: the source has another size; there is no target.
        OSError: the source is gone, a symbolic link or no file; or there is a target.

    Crash safety: a part of the target, which the caller hides.
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
    """Copy as much as the kernel can; both files are then at the offset where it stopped."""
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
    above, name = top.split(inside)
    with naming(top.at(inside).path), above.opened() as descriptor:
        try:
            os.mkdir(name, dir_fd=descriptor)
        except FileExistsError:
            return False
        return True


def _above(folder: str) -> Iterator[str]:
    while folder:
        folder = folder.rpartition("/")[0]
        yield folder


def _tidied(folder: LocalFolder, prefix: str) -> Iterator[tuple[str, int]]:
    with folder.opened(to_list=True) as at, os.scandir(at) as entries:
        for entry in entries:
            if entry.name.startswith(TEMPORARY) and entry.name.endswith(_UNFINISHED):
                os.unlink(entry.name, dir_fd=at)
            elif entry.is_file(follow_symlinks=False):
                yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size


# --- threads ------------------------------------------------------------------------------------

Item = TypeVar("Item")

_LOOK_S: Final = 0.2


def for_each(items: Collection[Item], work: Callable[[Item, GoOn], None], *, at_once: int) -> None:
    """Do the work for each item in threads, *at_once* at most, and raise the first failure.

    Items that had not begun then never begin, and those that had begun have ended: no work
    continues behind the caller, also after an interrupt (Ctrl-C).
    """
    if not items:
        return
    ended = threading.Event()
    failures: list[BaseException] = []

    def go_on() -> None:
        if ended.is_set():
            raise GivenUpError

    def attempt(item: Item) -> None:
        try:
            go_on()
            work(item, go_on)
        except BaseException as error:  # noqa: BLE001 - it is raised again, in the caller's thread
            failures.append(error)
            ended.set()

    with ThreadPoolExecutor(min(at_once, len(items)), "storage") as pool:
        try:
            open_ = {pool.submit(attempt, item) for item in items}
            while open_:  # an interrupt just before a wait without end would not end it
                open_ = wait(open_, timeout=_LOOK_S).not_done
        finally:
            ended.set()
    if failures:
        raise failures[0]
