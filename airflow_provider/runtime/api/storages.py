"""The published interface of storages: locations where jobs, savepoints and outputs can be.

A storage from another package is an entry point of the group ``spark_stream.storages``. The entry
point's name is the scheme of its addresses; its object is a :class:`StorageKind`. The package must
be installed wherever an address is opened: on workers, on the triggerer, and beside the driver.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

STORAGES: Final = "spark_stream.storages"
"""The group of entry points."""

GoOn = Callable[[], None]
"""Called between two steps of a long piece of work; it raises an error to end the work."""


class Storage(Protocol):
    """A location for small objects, addressed by relative paths with ``/``.

    Every write is atomic: a reader sees the old object, the new one, or none, never a part.
    """

    @property
    def url(self) -> str:
        """Return the location's own address, without a slash at the end."""

    @property
    def shared(self) -> bool:
        """Whether other processes (a Spark driver, executors) see this location."""

    def at(self, path: str) -> Storage:
        """Return the same filesystem with *path* as its root."""

    def read(self, path: str) -> bytes:
        """Return the whole object.

        Raises:
            FileNotFoundError: there is none.
        """

    def read_small(self, path: str, *, at_most_bytes: int) -> bytes:
        """Return the whole object; never load more than *at_most_bytes* into memory.

        Raises:
            CorruptDocumentError: it is larger, or is no file.
            FileNotFoundError: there is none.
        """

    def put(self, path: str, data: bytes) -> None:
        """Write or replace the object.

        Crash safety: the old object or the new one, never a part.
        Idempotent: by path and data.
        """

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write the object unless it exists.

        Returns:
            True to exactly one of any number of racing writers of different data. Data that names
            its writer therefore tells every writer whether it was the one.

        Crash safety: the whole object or none.
        """

    def exists(self, path: str) -> bool:
        """Whether there is an object or a folder at *path*."""

    def list(self, path: str) -> list[str]:
        """Return the names directly under *path*, sorted; empty when there is no such folder."""

    def delete(self, path: str) -> None:
        """Remove the object, or the folder with all in it; nothing happens when it is absent."""

    def delete_all(self, paths: Sequence[str]) -> None:
        """Remove many objects, of which some may be absent; none of them is a folder."""


class RemoteStorage(Storage, Protocol):
    """A storage that this machine reaches by requests, with what copies of files need of it."""

    def files(self) -> list[tuple[str, int]]:
        """Return the files under the location: relative paths and bytes; sorted."""

    def tags(self) -> dict[str, tuple[int, str | None]]:
        """Return bytes and tag of each file under the location, by its relative path.

        A tag is another one whenever the file is.
        """

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly under the location, sorted."""

    def remove_if_empty(self) -> None:
        """Remove the location's own folder, unless it is not empty or only a prefix."""

    @property
    def largest_copy_bytes(self) -> int | None:
        """Return the size of the largest file that :meth:`copy_from` takes; None: of any."""

    def is_beside(self, other: RemoteStorage) -> bool:
        """Whether the store itself copies from *other* to here."""

    def copy_from(self, source: RemoteStorage, path: str, *, go_on: GoOn) -> None:
        """Have the store copy a file of the same path from another location; no byte comes here."""

    def fetch(self, path: str, file: str, *, go_on: GoOn) -> None:
        """Write the file's bytes to a local file, which is the caller's to flush and to name.

        Raises:
            FileNotFoundError: there is no such file.
        """

    def send(self, path: str, file: str, *, size_bytes: int, go_on: GoOn) -> None:
        """Write or replace the file with a local one's bytes; it appears whole."""


class StorageKind(Protocol):
    """Opens the addresses of one scheme.

    Attributes:
        api_version: the version of the interface that it was written for.
    """

    api_version: int

    def open(self, url: str) -> RemoteStorage:
        """Open the location at *url*; nothing is read or written.

        Raises:
            ConfigError: the address is incomplete, or a library or setting is missing.
        """

    def spark_url(self, url: str) -> str:
        """Return the address by which Spark (Hadoop) reaches the same location.

        Spark writes its checkpoints there. The driver refuses a job directory whose documents Spark
        does not find there.
        """

    @property
    def spark_url_setting(self) -> str:
        """Return the way to correct :meth:`spark_url`, as the end of an error: "set … to …"."""
