"""Storage interface: what the runtime needs of a filesystem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class Storage(Protocol):
    """A place for small objects, addressed by relative paths with ``/``.

    Every write is atomic: a reader sees the old object, the new one, or none, never a part.
    """

    @property
    def url(self) -> str:
        """Return the place's own address, without a slash at the end."""

    @property
    def shared(self) -> bool:
        """Tell whether other processes (a Spark driver, executors) see this place."""

    def at(self, path: str) -> Storage:
        """Return the same filesystem with *path* as its root."""

    def read(self, path: str) -> bytes:
        """Return the whole object.

        Raises:
            FileNotFoundError: there is none.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object.

        Crash safety: the old object or the new one, never a part.
        Idempotent: by path and data.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the object unless one is there.

        Returns:
            True to exactly one of any number of racing writers of different data. Data that names
            its writer therefore tells every writer whether it was the one.

        Crash safety: the whole object or none.
        """

    def exists(self, path: str) -> bool:
        """Tell whether there is an object or a folder at *path*."""

    def list(self, path: str) -> list[str]:
        """Return the names directly under *path*, sorted; empty when there is no such folder."""

    def delete(self, path: str) -> None:
        """Remove the object, or the folder with all in it; nothing happens when it is absent."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove many objects, of which some may be absent; none of them is a folder."""
