"""Data files under a folder of any filesystem: found, measured, flushed, removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider.runtime.storage.local import sync_folder
from airflow_provider.runtime.storage.open import local_path_of, open_remote

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def files_under(url: str) -> list[tuple[str, int]]:
    """Return the files under *url*: paths relative to it with ``/``, and bytes; sorted.

    An empty object that represents a folder is no file; a symbolic link is none, wherever it leads.
    """
    remote = open_remote(url)
    if remote is not None:
        return remote.files()
    local = local_path_of(url)
    if local is not None:
        with suppress(FileNotFoundError):
            return sorted((path, facts.st_size) for path, facts in _local_files(local))
        return []
    filesystem, root = _uncached(url)
    found = filesystem.find(root, detail=True)
    start = len(root.rstrip("/")) + 1
    return sorted((path[start:], int(facts["size"])) for path, facts in found.items())


class FileFacts(NamedTuple):
    """What a filesystem says of a file.

    Attributes:
        size: bytes.
        tag: changes whenever the file is replaced, as far as the filesystem can tell; None when it
            tells nothing.
    """

    size: int
    tag: str | None


def facts_under(url: str) -> dict[str, FileFacts]:
    """Return what is known of each file under *url*, by its path relative to it."""
    remote = open_remote(url)
    if remote is not None:
        return {path: FileFacts(*facts) for path, facts in remote.tags().items()}
    local = local_path_of(url)
    if local is None:
        return {path: FileFacts(size, None) for path, size in files_under(url)}
    return {
        path: FileFacts(facts.st_size, f"{facts.st_ino}-{facts.st_mtime_ns}")
        for path, facts in _local_files(local)
    }


def _local_files(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files under a folder, which others may be writing to; FileNotFoundError without it.

    Not ``os.walk`` nor fsspec's ``find``, which take several times as long: a savepoint's time is
    that of such listings.
    """
    folders = [""]
    while folders:
        inside = folders.pop()
        try:
            with os.scandir(f"{root}/{inside}" if inside else root) as entries:
                found = list(entries)
        except FileNotFoundError:
            if not inside:
                raise
            continue  # it was removed meanwhile
        for entry in found:
            name = inside + entry.name
            with suppress(FileNotFoundError):  # it was removed meanwhile
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry.stat()


def folders_in(url: str) -> list[str]:
    """Return the names of the folders directly under *url*, sorted; empty when it is absent.

    A symbolic link is no folder, wherever it leads.
    """
    remote = open_remote(url)
    if remote is not None:
        return list(remote.folders())
    local = local_path_of(url)
    if local is not None:
        try:
            with os.scandir(local) as entries:
                return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return []
    filesystem, root = _uncached(url)
    try:
        found = filesystem.ls(root, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(
        entry["name"].rstrip("/").rpartition("/")[2]
        for entry in found
        if entry["type"] == "directory"
    )


def link_on_way(url: str, paths: Iterable[str]) -> str | None:
    """Return a part of one of the paths under *url* that is a symbolic link; None when none is.

    Args:
        url: a folder, which may itself be one, or be reached by one.
        paths: relative to it, with ``/``.
    """
    local = local_path_of(url)
    if local is None:
        return None
    parts = set()
    for path in paths:
        part = path
        while part and part not in parts:
            parts.add(part)
            part = part.rpartition("/")[0]
    return next((part for part in sorted(parts) if os.path.islink(f"{local}/{part}")), None)


def remove_tree(url: str) -> None:
    """Remove the folder and all in it; nothing happens when it is absent."""
    remote = open_remote(url)
    if remote is not None:
        remote.delete("")
        return
    filesystem, root = _uncached(url)
    try:
        filesystem.rm(root, recursive=True)
    except FileNotFoundError:
        return


def remove_if_empty(url: str) -> None:
    """Remove the folder unless something is in it; a bucket has no empty folders."""
    local = local_path_of(url)
    if local is not None:
        with suppress(OSError):
            os.rmdir(local)
    elif (remote := open_remote(url)) is not None:
        remote.remove_if_empty()


def flush(url: str, names: Sequence[str]) -> None:
    """Make files survive a loss of power; object stores see to that by themselves.

    Args:
        url: a folder.
        names: paths relative to it.
    """
    local = local_path_of(url)
    if local is None:
        return
    paths = [Path(local, name) for name in names]
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    # The folders between, too: each is a name in the one above it.
    for folder in {folder for path in paths for folder in _folders_above(path, Path(local))}:
        sync_folder(folder)


def _folders_above(path: Path, root: Path) -> Iterator[Path]:
    """Yield the folders that *path* lies in, the last one that in which *root* is a name."""
    for folder in path.parents:
        yield folder
        if folder == root.parent:
            return


def _uncached(url: str) -> tuple[Any, str]:
    """Return fsspec's filesystem and the path; listings are not cached: Spark writes there, too."""
    from fsspec.core import url_to_fs

    filesystem, root = url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem, root
