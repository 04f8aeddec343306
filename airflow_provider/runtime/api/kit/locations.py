"""Locations: addresses opened as storages, and as Spark and this machine reach them."""

from __future__ import annotations

from airflow_provider.runtime.storage.open import (
    local_path_of,
    open_objects,
    open_storage,
    scheme_of,
    spark_url,
)

__all__ = [
    "local_path_of",
    "open_objects",
    "open_storage",
    "scheme_of",
    "spark_url",
]
