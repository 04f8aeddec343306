"""A storage that counts what it is asked for: each operation is a request to a bucket."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.api.storages import Storage


class CountingStorage:
    """Passes everything on to another storage.

    Args:
        inner: the storage.
        counts: how often each operation was asked for, at this location and those below it.
    """

    def __init__(self, inner: Storage, counts: Counter[str] | None = None) -> None:
        self._inner = inner
        self.counts: Counter[str] = Counter() if counts is None else counts

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def shared(self) -> bool:
        return self._inner.shared

    def at(self, path: str) -> CountingStorage:
        return CountingStorage(self._inner.at(path), self.counts)

    def read(self, path: str) -> bytes:
        self.counts["read"] += 1
        return self._inner.read(path)

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        self.counts["read"] += 1
        return self._inner.read_small(path, at_most_bytes=at_most_bytes)

    def put(self, path: str, data: bytes) -> None:
        self.counts["put"] += 1
        self._inner.put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        self.counts["put"] += 1
        return self._inner.put_if_absent(path, data)

    def exists(self, path: str) -> bool:
        self.counts["read"] += 1
        return self._inner.exists(path)

    def list(self, path: str) -> list[str]:
        self.counts["list"] += 1
        return self._inner.list(path)

    def delete(self, path: str) -> None:
        self.counts["delete"] += 1
        self._inner.delete(path)

    def delete_all(self, paths: Sequence[str]) -> None:
        self.counts["delete"] += bool(paths)
        self._inner.delete_all(paths)

    def taken(self) -> dict[str, int]:
        """Return the counts since this was last asked."""
        counted = {name: n for name, n in sorted(self.counts.items()) if n}
        self.counts.clear()
        return counted
