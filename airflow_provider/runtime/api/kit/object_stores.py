"""Object stores: a prefix of a bucket. Importing this module loads ``fsspec``."""

from __future__ import annotations

from airflow_provider.runtime.storage.objects import (
    ObjectStorage,
)

__all__ = [
    "ObjectStorage",
]
