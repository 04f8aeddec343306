"""Parallel work on threads: the first error ends it."""

from __future__ import annotations

from airflow_provider.runtime.storage.copy_files import (
    for_each,
)

__all__ = [
    "for_each",
]
