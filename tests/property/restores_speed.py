"""Shortcuts that make a walk of restores quicker, and change nothing that it can see.

Its job directories lie in memory, no other process writes there, and no name in them is a link:
files are opened and written by their paths, documents of the same bytes are parsed once, and files
are copied without threads.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable, Collection
from typing import Any

import pytest

from airflow_provider.runtime.base import host
from airflow_provider.runtime.storage import copy_files
from airflow_provider.runtime.storage.documents import Document
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.mounts import TEMPORARY


def quicken(patch: pytest.MonkeyPatch) -> None:
    """Patch the local storage, the texts of documents, the threads of copies, and looks at /proc."""
    patch.setattr(LocalStorage, "read_small", _read_small)
    patch.setattr(LocalStorage, "exists", _exists)
    patch.setattr(LocalStorage, "list", _list)
    patch.setattr(LocalStorage, "at", _at)
    patch.setattr(LocalStorage, "put", _put)
    patch.setattr(LocalStorage, "put_if_absent", _put_if_absent)
    patch.setattr(Document, "to_bytes", lambda document: json.dumps(document.to_dict()).encode())
    patch.setattr(host, "_start_of", functools.cache(host._start_of))
    patch.setattr(os, "fsync", lambda _: None)
    patch.setattr(copy_files, "for_each", _for_each)
    patch.setattr(Document, "read", classmethod(_parsed_once(Document.read.__func__)))  # type: ignore[attr-defined]


def _at(storage: LocalStorage, path: str) -> LocalStorage:
    below = LocalStorage.__new__(LocalStorage)
    below.folder, below._anchor = storage.folder.at(path), storage._anchor
    return below


def _path(storage: LocalStorage, path: str) -> str:
    return f"{storage.folder.path}/{path}" if path else storage.folder.path


def _read_small(storage: LocalStorage, path: str, *, at_most_bytes: int) -> bytes:
    where = _path(storage, path)
    try:
        descriptor = os.open(where, os.O_RDONLY)
    except NotADirectoryError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where) from None
    try:
        return os.read(descriptor, min(os.fstat(descriptor).st_size, at_most_bytes))
    finally:
        os.close(descriptor)


def _put(storage: LocalStorage, path: str, data: bytes) -> None:
    _write(_path(storage, path), data, os.O_TRUNC)


def _put_if_absent(storage: LocalStorage, path: str, data: bytes) -> bool:
    try:
        _write(_path(storage, path), data, os.O_EXCL)
    except FileExistsError:
        return False
    return True


def _write(where: str, data: bytes, flags: int) -> None:
    flags |= os.O_WRONLY | os.O_CREAT
    try:
        descriptor = os.open(where, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(where), exist_ok=True)
        descriptor = os.open(where, flags, 0o666)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def _exists(storage: LocalStorage, path: str) -> bool:
    return os.path.lexists(_path(storage, path))


def _list(storage: LocalStorage, path: str) -> list[str]:
    try:
        names = os.listdir(_path(storage, path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if not name.startswith(TEMPORARY))


def _for_each(items: Collection[Any], work: Callable[..., None], *, at_once: int) -> None:
    for item in items:
        work(item, lambda: None)


def _parsed_once(real: Callable[..., Any]) -> Callable[..., Any]:
    known: dict[tuple[type, str, bytes], Any] = {}

    def read(cls: type[Document], storage: LocalStorage, path: str) -> Any:
        try:
            data = storage.read_small(path, at_most_bytes=cls.MOST_BYTES)
        except FileNotFoundError:
            return None
        key = cls, f"{storage.url}/{path}", data
        if key not in known:
            known[key] = real(cls, storage, path)
        return known[key]

    return read
