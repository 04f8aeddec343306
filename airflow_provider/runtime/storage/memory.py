"""Documents in this process's memory, for tests: the same promises, nothing on a disk."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.storage.store_errors import checked_size

if TYPE_CHECKING:
    from collections.abc import Sequence


class MemoryStorage:
    """A prefix of fsspec's in-memory filesystem.

    Args:
        filesystem: fsspec's ``MemoryFileSystem``; it is one per process.
        root: the prefix.
    """

    shared = False
    _lock = threading.Lock()  # fsspec's ``mode="create"`` looks and then writes; this makes it one

    def __init__(self, filesystem: Any, root: str) -> None:
        self._fs = filesystem
        self._root = root.rstrip("/")

    @property
    def url(self) -> str:
        """Return the place's address."""
        return f"memory://{self._root}"

    def at(self, path: str) -> MemoryStorage:
        """Return the prefix *path* under this one."""
        return MemoryStorage(self._fs, f"{self._root}/{path}")

    def read(self, path: str) -> bytes:
        """Return the whole object."""
        return bytes(self._fs.cat_file(self._full(path)))

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        """Return the whole object, unless it is larger."""
        return checked_size(self.read(path), at_most_bytes, f"{self.url}/{path}")

    def put(self, path: str, data: bytes) -> None:
        """Replace the object under the lock."""
        with self._lock:
            self._fs.pipe_file(self._full(path), data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Look and write under the lock."""
        with self._lock:
            if self._fs.exists(self._full(path)):
                return False
            self._fs.pipe_file(self._full(path), data)
            return True

    def exists(self, path: str) -> bool:
        """Whether there is an object or a prefix."""
        return bool(self._fs.exists(self._full(path)))

    def list(self, path: str) -> list[str]:
        """Return the names directly under the prefix."""
        try:
            found = self._fs.ls(self._full(path), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(name.rstrip("/").rsplit("/", 1)[-1] for name in found)

    def delete(self, path: str) -> None:
        """Remove the object or all under the prefix."""
        with self._lock:
            for found in self._fs.find(self._full(path)):  # ``rm`` takes ``*`` for a pattern
                self._fs.rm_file(found)

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove the objects, one by one."""
        for path in paths:
            self.delete(path)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root
