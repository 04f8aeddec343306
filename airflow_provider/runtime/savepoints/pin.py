"""Hold on a savepoint: nobody removes it while it is read."""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime import failpoints
from airflow_provider.runtime.errors import refusing
from airflow_provider.runtime.savepoints.catalog import Savepoint, open_savepoint
from airflow_provider.runtime.savepoints.claims import REMOVE, busy, last_claim, put_reader
from airflow_provider.runtime.storage.file_tree import remove_if_empty
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.storage.base import Storage

log = logging.getLogger(__name__)

_READ_ONLY = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextlib.contextmanager
def pinned_savepoint(url: str, clock: Clock) -> Iterator[Savepoint]:
    """Yield the savepoint in the folder *url*, which stays as long as the block lasts.

    Any number of readers hold it at once. Where this process may not write, it is read all the
    same: nobody with the same rights could remove it, others could.

    Raises:
        SavepointBusyError: somebody is removing it.
        UnknownJobError: there is none, or it is not complete.
        UnsupportedVersionError, RefusedCheckpointError, ConfigError: see :func:`open_savepoint`.

    Crash safety: a process that dies in the block holds nothing.
    """
    place = open_storage(url)
    open_savepoint(url)  # nothing is put where there is none
    name = _put_reader(place, clock)
    failpoints.hit("savepoint.held")
    try:
        with refusing(place.url, "read"):
            remover = last_claim(place)
        if remover is not None and remover.purpose == REMOVE and not remover.has_ended(clock):
            raise busy(place, remover)
        yield open_savepoint(url)  # as it is now that nobody can begin to remove it
    finally:
        if name is not None:
            with contextlib.suppress(OSError):  # it ends with this process
                place.delete(name)
                remove_if_empty(place.url)


def _put_reader(place: Storage, clock: Clock) -> str | None:
    """Return the name of the reader's document; None where none can be put."""
    try:
        return put_reader(place, clock)
    except OSError as error:
        if not isinstance(error, PermissionError) and error.errno not in _READ_ONLY:
            raise
        log.info("%s: read without a claim: %s", place.url, error)
        return None
