"""Datasets of a sink for lineage: a folder, and a table of a database server."""

from __future__ import annotations

from airflow_provider.runtime.jobdir.datasets import (
    folder_dataset,
    table_dataset,
)

__all__ = [
    "folder_dataset",
    "table_dataset",
]
