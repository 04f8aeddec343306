"""Copying sets of files that never change: by hard links where that is possible."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.storage.local import sync_folder
from airflow_provider.runtime.storage.opening import local_path_of, open_storage

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


@dataclasses.dataclass(frozen=True)
class Copied:
    """What a copy took.

    Attributes:
        files: how many files the target holds now.
        linked: how many of them share their bytes with the source.
        copied_bytes: how many bytes were written.
    """

    files: int = 0
    linked: int = 0
    copied_bytes: int = 0


def copy_files(source_url: str, target_url: str, names: Iterable[tuple[str, int]]) -> Copied:
    """Copy files, which never change once they are there, from one folder into another.

    Args:
        source_url: a folder.
        target_url: a folder; made when it is missing.
        names: paths relative to both, and the bytes that each must have.

    Raises:
        FileNotFoundError: a source is gone, or has another size; the message names it.

    Crash safety: each target is whole or absent; calling it again completes it.
    """
    source, target = local_path_of(source_url), local_path_of(target_url)
    if source is not None and target is not None:
        return _copy_locally(Path(source), Path(target), names)
    there, here = open_storage(source_url), open_storage(target_url)
    files = written = 0
    for name, size in names:
        data = there.read(name)
        if len(data) != size:
            raise _changed("/".join((source_url, name)), len(data), size)
        here.put(name, data)
        files, written = files + 1, written + size
    return Copied(files, 0, written)


def _copy_locally(source: Path, target: Path, names: Iterable[tuple[str, int]]) -> Copied:
    folders: set[Path] = set()
    files = linked = written = 0
    for name, size in names:
        old, new = source / name, target / name
        if new.parent not in folders:
            new.parent.mkdir(parents=True, exist_ok=True)
            folders.add(new.parent)
        shares = _link(old, new)
        if not shares:
            _copy_one(old, new)
            written += size
        found = new.stat().st_size
        if found != size:
            new.unlink()
            raise _changed(str(old), found, size)
        files, linked = files + 1, linked + shares
    for folder in folders:
        sync_folder(folder)
    return Copied(files, linked, written)


def _link(old: Path, new: Path) -> bool:
    """Let *new* be another name of *old*; False where that cannot be."""
    try:
        os.link(old, new)
    except FileExistsError:
        return new.samefile(old)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _copy_one(old: Path, new: Path) -> None:
    temporary = new.with_name(f".{uuid.uuid4().hex}.copying")
    try:
        shutil.copyfile(old, temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(new)
    finally:
        temporary.unlink(missing_ok=True)


def _changed(where: str, found: int, expected: int) -> FileNotFoundError:
    return FileNotFoundError(
        errno.ENOENT, f"has {found} bytes instead of {expected}: it was replaced or cut off", where
    )
