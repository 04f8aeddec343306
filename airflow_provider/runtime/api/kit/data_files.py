"""Data files of an epoch in a shared folder: final names, and the marks of their writers."""

from __future__ import annotations

from airflow_provider.runtime.sinks.files import (
    BUCKET_FORMATS,
    final_name,
    is_final_name,
    is_name_of,
    last_marked,
    marked,
    put_mark,
)

__all__ = [
    "BUCKET_FORMATS",
    "final_name",
    "is_final_name",
    "is_name_of",
    "last_marked",
    "marked",
    "put_mark",
]
