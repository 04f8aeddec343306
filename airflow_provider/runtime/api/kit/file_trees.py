"""Files below a folder, in any storage: flushed to the disk, and removed."""

from __future__ import annotations

from airflow_provider.runtime.storage.file_tree import (
    flush,
    remove_tree,
)

__all__ = [
    "flush",
    "remove_tree",
]
