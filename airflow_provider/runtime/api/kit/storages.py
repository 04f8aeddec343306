"""Parts of a storage implementation: names of unfinished files, and a limit for small objects."""

from __future__ import annotations

from airflow_provider.runtime.storage.mounts import (
    TEMPORARY,
)
from airflow_provider.runtime.storage.store_errors import (
    checked_size,
)

__all__ = [
    "TEMPORARY",
    "checked_size",
]
