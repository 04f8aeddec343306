"""Rows by key: the words of a sink, the merge of an epoch, and the files beside the table."""

from __future__ import annotations

from airflow_provider.runtime.sinks.keyed_epoch import (
    EpochPreparation,
    Prepared,
    RevertPreparation,
    changes_from,
    is_published,
)
from airflow_provider.runtime.sinks.keyed_files import as_schema, write_parquet
from airflow_provider.runtime.sinks.keyed_merge import unique_changes
from airflow_provider.runtime.sinks.keyed_rows import DELETED, KeyedRows, log_superseded
from airflow_provider.runtime.sinks.keyed_store import KeyStore, staged_folder, staged_home

__all__ = [
    "DELETED",
    "EpochPreparation",
    "KeyStore",
    "KeyedRows",
    "Prepared",
    "RevertPreparation",
    "as_schema",
    "changes_from",
    "is_published",
    "log_superseded",
    "staged_folder",
    "staged_home",
    "unique_changes",
    "write_parquet",
]
