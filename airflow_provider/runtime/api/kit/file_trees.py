"""Files below a folder, in any storage: listed, flushed to the disk, and removed."""

from __future__ import annotations

from airflow_provider.runtime.storage.file_tree import (
    flush,
    folders_in,
    remove_tree,
)

__all__ = [
    "flush",
    "folders_in",
    "remove_tree",
]
