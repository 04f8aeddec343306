"""Copies sets of files that never change, from one folder to another on any filesystem.

How a file gets there depends on where the folders are::

    source, target            how                                           through this machine
    one local filesystem      a hard link                                   nothing
    two local filesystems     a copy by the kernel                          all bytes
    one store                 a copy by the store                           nothing
    local and a store         a transfer, several files at once             all bytes
    two stores                a transfer to a temporary file, and from it   all bytes
"""

from __future__ import annotations

import dataclasses
import tempfile
from functools import partial
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.storage.local_copy import (
    ArrivalFolder,
    WrongSizeError,
    check_size,
    copy_file,
    link_files,
)
from airflow_provider.runtime.storage.local_folder import LocalFolder, open_file, path_of_file
from airflow_provider.runtime.storage.open import local_folder_of, open_remote
from airflow_provider.runtime.storage.parallel import for_each

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from airflow_provider.runtime.api.storages import GoOn, RemoteStorage, Storage

_File = tuple[str, int]  # its name and bytes

_REQUESTS_AT_ONCE = 32  # more only earns "slow down" from the store
_STREAMS_AT_ONCE = 8  # each holds some 10 MiB, and fills a good part of a disk or a network


@dataclasses.dataclass(frozen=True)
class Copied:
    """What a call has found and done.

    Attributes:
        files: how many were named; all are in the target.
        kept_files: how many of them were there before.
        linked_bytes: the size of those that now share their bytes with the source.
        copied_bytes: the size of those that were copied, by this machine or by the store.
    """

    files: int
    kept_files: int
    linked_bytes: int
    copied_bytes: int


def copy_files(
    source_place: str | Storage, target_place: str | Storage, names: Iterable[tuple[str, int]]
) -> Copied:
    """Bring files that never change from one folder to another, by links where that is possible.

    A file that is in the target and has the right size is kept.

    Args:
        source_place: the folder they are in. Of an address all parts are the user's; of a storage
            no part below its root may be a symbolic link.
        target_place: the folder they go to; it need not exist, and one caller at a time fills it.
        names: paths relative to both, with ``/``, and the bytes that each file has.

    Raises:
        ConfigError: a folder is on a filesystem of another kind, a name leads out of it, or a file
            is larger than the store itself copies; nothing was written.
        FileNotFoundError: a source is gone, such as one that Spark has cleaned up meanwhile.
        WrongSizeError: a source or target has another size than was said.
        OSError: a source is a symbolic link or lies behind one, or is no file.
        OSError: anything else that the filesystems said; the first error ends the whole.

    After an error nothing goes on behind the caller; what has been copied lies in the target.

    Crash safety: each file is whole or absent. A death leaves some of them, and perhaps hidden
    unfinished ones, which the next call removes. When this returns, all names and all that was
    copied are on the disk; the bytes of a link are as safe as those of its source.
    Idempotent: by names and sizes; a second call completes what the first one began.
    """
    sizes = dict(names)
    _refuse_outside(sizes)
    source, target = _place(source_place), _place(target_place)
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
    """Copy between stores that know nothing of each other.

    The bytes rest in a temporary file, because what a store is sent must have an end that is
    known: else a broken read would be taken for it.
    """
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


def _place(place: str | Storage) -> LocalFolder | RemoteStorage:
    url = place if isinstance(place, str) else place.url
    found = local_folder_of(place) or open_remote(url)
    if found is None:
        msg = (
            f"{url}: files are copied between local folders, S3, Google Cloud Storage and Azure; "
            "use one of these"
        )
        raise ConfigError(msg)
    return found


def _refuse_large(
    source: RemoteStorage, sizes: Mapping[str, int], largest_bytes: int | None
) -> None:
    """Refuse what the store itself does not copy, before anything is copied."""
    for name, size in sizes.items():
        if largest_bytes is not None and size > largest_bytes:
            msg = (
                f"{source.url}/{name}: has {size} bytes, and the store itself copies no more than "
                f"{largest_bytes}; copy by way of a local folder or another store (a savepoint "
                "taken there, or moved there and restored), or let the job begin with smaller "
                "files: state in RocksDB, or more spark.sql.shuffle.partitions"
            )
            raise ConfigError(msg)


def _refuse_outside(names: Iterable[str]) -> None:
    for name in names:
        if not name or name.startswith("/") or not {".", "..", ""}.isdisjoint(name.split("/")):
            msg = f"{name!r}: not a path inside a folder; give names relative to the two folders"
            raise ConfigError(msg)
