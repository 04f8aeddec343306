"""Connections to storage, as tasks name them, for the reads of the page."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from airflow_provider.hooks.storage_connection import credentials_of
from airflow_provider.runtime.storage.open import is_in_s3, using

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow_provider.plugins.task_index import IndexedTask
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.storage.open import StoreCredentials

_KEPT_S: Final = 60.0  # a secrets backend is not asked with each look of each page


class StorageConnections:
    """Opens the storage of tasks with the connections that their authors have named.

    Args:
        clock: measures for how long a connection is kept.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[tuple[str | None, bool], tuple[float, StoreCredentials | None]] = {}
        self._lock = threading.Lock()

    def opened(self, task: IndexedTask) -> AbstractContextManager[None]:
        """Return a block in which the task's storage is opened as the task does.

        Raises:
            ConfigError: as :func:`credentials_of`.
        """
        key = (task.storage_conn_id, is_in_s3(str(task.job_dir)))  # all that it depends on
        now = self._clock.monotonic()
        with self._lock:
            at, credentials = self._kept.get(key, (0.0, None))
            is_kept = key in self._kept and now - at < _KEPT_S
        if not is_kept:
            credentials = credentials_of(task.storage_conn_id, task.job_dir)
            with self._lock:
                self._kept[key] = (now, credentials)
        return using(credentials)
