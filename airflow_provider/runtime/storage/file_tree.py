"""Data files under a folder of any filesystem: found, measured, flushed, removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.storage.local import make_folder, no_links, sync_folder
from airflow_provider.runtime.storage.local_folder import (
    LocalFolder,
    NotAFileError,
    open_file,
    remove_tree_in,
)
from airflow_provider.runtime.storage.open import local_folder_of, local_path_of, open_remote

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_provider.runtime.api.storages import Storage


def files_under(location: str | Storage) -> list[tuple[str, int]]:
    """Return the files under *location*: paths relative to it with ``/``, and bytes; sorted."""
    remote = open_remote(_url(location))
    if remote is not None:
        return remote.files()
    folder = local_folder_of(location)
    if folder is not None:
        with suppress(FileNotFoundError):
            return [(path, facts.st_size) for path, facts in _local_files(folder)]
        return []
    filesystem, root = _uncached(_url(location))
    found = filesystem.find(root, detail=True)
    start = len(root.rstrip("/")) + 1
    return sorted((path[start:], int(facts["size"])) for path, facts in found.items())


class FileFacts(NamedTuple):
    """A file's bytes, and a tag that changes when the file is replaced; None if unknown."""

    size: int
    tag: str | None


def facts_under(location: str | Storage) -> dict[str, FileFacts]:
    """Return the facts of each file under *location*, by its path; see :func:`files_under`."""
    remote = open_remote(_url(location))
    if remote is not None:
        return {path: FileFacts(*facts) for path, facts in remote.tags().items()}
    folder = local_folder_of(location)
    if folder is None:
        return {path: FileFacts(size, None) for path, size in files_under(location)}
    return {
        path: FileFacts(facts.st_size, f"{facts.st_ino}-{facts.st_mtime_ns}")
        for path, facts in _local_files(folder)
    }


@no_links()
def _local_files(root: LocalFolder) -> list[tuple[str, os.stat_result]]:
    """Not ``os.walk`` nor fsspec's ``find``, which take several times as long for a savepoint."""
    folders = [""]
    files: list[tuple[str, os.stat_result]] = []
    while folders:
        inside = folders.pop()
        try:
            folder = root.at(inside)
            with folder.opened(to_list=True) as at, os.scandir(at) as entries:
                for entry in entries:
                    name = inside + entry.name
                    with suppress(FileNotFoundError):  # it was removed meanwhile
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{name}/")
                        elif entry.is_file(follow_symlinks=False):
                            files.append((name, entry.stat(follow_symlinks=False)))
        except (FileNotFoundError, NotADirectoryError, NotAFileError):
            if not inside:
                raise  # else it was removed or replaced meanwhile
    return sorted(files)


def folders_in(location: str | Storage) -> list[str]:
    """Return the names of the folders directly under *location*, sorted, without symbolic links."""
    remote = open_remote(_url(location))
    if remote is not None:
        return list(remote.folders())
    folder = local_folder_of(location)
    if folder is not None:
        try:
            with no_links(), folder.opened(to_list=True) as at, os.scandir(at) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
    filesystem, root = _uncached(_url(location))
    try:
        found = filesystem.ls(root, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        entry["name"].rstrip("/").rpartition("/")[2]
        for entry in found
        if entry["type"] == "directory"
    )


def make_empty(url: str) -> None:
    """Remove what is in the folder; where folders exist without files, make it."""
    remove_tree(url)
    local = local_path_of(url)
    if local is not None:
        make_folder(Path(local), flushed=False)


def remove_tree(location: str | Storage) -> None:
    """Remove the folder and its content, if present; no symbolic link is followed."""
    remote = open_remote(_url(location))
    if remote is not None:
        remote.delete("")
        return
    folder = local_folder_of(location)
    if folder is not None:
        remove_tree_in(folder)
        return
    filesystem, root = _uncached(_url(location))
    try:
        filesystem.rm(root, recursive=True)
    except FileNotFoundError:
        return


def remove_if_empty(url: str) -> None:
    """Remove the folder if it is empty."""
    local = local_path_of(url)
    if local is not None:
        with suppress(OSError):
            os.rmdir(local)
    elif (remote := open_remote(url)) is not None:
        remote.remove_if_empty()


def flush(url: str, names: Sequence[str]) -> None:
    """Make files below a folder survive a loss of power; object stores do so by themselves."""
    local = local_path_of(url)
    if local is None:
        return
    paths = [Path(local, name) for name in names]
    for name in names:
        descriptor = open_file(LocalFolder(local), name)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    # The folders between, too: each is a name in the one above it.
    for folder in {folder for path in paths for folder in _folders_above(path, Path(local))}:
        sync_folder(folder)


def _folders_above(path: Path, root: Path) -> Iterator[Path]:
    for folder in path.parents:
        yield folder
        if folder == root.parent:
            return


def _url(location: str | Storage) -> str:
    return location if isinstance(location, str) else location.url


def _uncached(url: str) -> tuple[Any, str]:
    """Return fsspec's filesystem and the path; listings are not cached: Spark writes there, too."""
    from fsspec.core import url_to_fs

    filesystem, root = url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem, root
