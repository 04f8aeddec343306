"""Data files under a folder of any filesystem: found, measured, flushed, removed."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fsspec.core import url_to_fs

from airflow_provider.runtime.storage.local import sync_folder
from airflow_provider.runtime.storage.opening import local_path_of, open_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def files_under(url: str) -> list[tuple[str, int]]:
    """Return the files under *url*: paths relative to it with ``/``, and bytes; sorted.

    An empty object that stands for a folder is no file.
    """
    objects = open_objects(url)
    if objects is not None:
        return objects.files()
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
    objects = open_objects(url)
    if objects is not None:
        return {path: FileFacts(*facts) for path, facts in objects.tags().items()}
    local = local_path_of(url)
    if local is None:
        return {path: FileFacts(size, None) for path, size in files_under(url)}
    return dict(_local_facts(local, ""))


def _local_facts(folder: str, inside: str) -> Iterator[tuple[str, FileFacts]]:
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError):  # it was removed meanwhile
                yield from _local_facts(entry.path, f"{inside}{entry.name}/")
            continue
        with suppress(FileNotFoundError):
            facts = entry.stat()
            tag = f"{facts.st_ino}-{facts.st_mtime_ns}"
            yield f"{inside}{entry.name}", FileFacts(facts.st_size, tag)


def folders_in(url: str) -> list[str]:
    """Return the names of the folders directly under *url*, sorted; empty when it is absent."""
    objects = open_objects(url)
    if objects is not None:
        return list(objects.folders())
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


def remove_tree(url: str) -> None:
    """Remove the folder and all in it; nothing happens when it is absent."""
    objects = open_objects(url)
    if objects is not None:
        objects.delete("")
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
    for folder in {path.parent for path in paths}:
        sync_folder(folder)


def _uncached(url: str) -> tuple[Any, str]:
    """Return fsspec's filesystem and the path; it lists anew, for Spark writes there as well."""
    filesystem, root = url_to_fs(url)
    filesystem.invalidate_cache()
    return filesystem, root
