"""From an address to a storage, by a table of the filesystems that are safe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import fsspec
from fsspec.core import split_protocol

from airflow_provider.runtime.errors import UnsupportedStorageError
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.storage.memory import MemoryStorage

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_provider.runtime.storage.base import Storage


def _local(url: str) -> Storage:
    return LocalStorage(fsspec.filesystem("file")._strip_protocol(url))


def _memory(url: str) -> Storage:
    filesystem = fsspec.filesystem("memory")
    return MemoryStorage(filesystem, filesystem._strip_protocol(url))


# Put-if-absent is a capability of a filesystem and not of fsspec, whose base class looks first and
# writes afterwards. Only what passes tests/contract/test_storage.py stands here.
_OPENERS: Final[dict[str, Callable[[str], Storage]]] = {
    "file": _local,
    "local": _local,
    "memory": _memory,
}


def supported_schemes() -> tuple[str, ...]:
    """Return the URL schemes a job directory can have, sorted."""
    return tuple(sorted(_OPENERS))


def scheme_of(url: str) -> str:
    """Return the URL's scheme; ``file`` for a plain path."""
    protocol, _ = split_protocol(url)
    return protocol or "file"


def open_storage(url: str) -> Storage:
    """Open the place at *url*; nothing is read or written.

    Raises:
        UnsupportedStorageError: the scheme is not known to decide between two writers.
    """
    scheme = scheme_of(url)
    opener = _OPENERS.get(scheme)
    if opener is None:
        msg = (
            f"{url}: the scheme {scheme!r} has no tested atomic put-if-absent here, which the "
            f"lease and the final checkpoint need; use one of: {', '.join(supported_schemes())}"
        )
        raise UnsupportedStorageError(msg)
    return opener(url)


def local_path_of(url: str) -> str | None:
    """Return the absolute path behind *url*, or None when it is not on a local filesystem."""
    if scheme_of(url) not in {"file", "local"}:
        return None
    return str(fsspec.filesystem("file")._strip_protocol(url))
