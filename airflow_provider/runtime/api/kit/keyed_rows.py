"""Rows by key: the words of a sink, the merge of an epoch, and the files beside the table."""

from __future__ import annotations

from airflow_provider.runtime.sinks.keyed_epoch import (
    EpochPreparation,
    Prepared,
    RevertPreparation,
    changes_from,
    changes_to_revert,
    is_published,
)
from airflow_provider.runtime.sinks.keyed_files import as_schema, write_parquet
from airflow_provider.runtime.sinks.keyed_merge import unique_changes
from airflow_provider.runtime.sinks.keyed_rows import DELETED, KeyedRows, log_older, log_superseded
from airflow_provider.runtime.sinks.keyed_store import (
    KeyStore,
    check_by_key,
    is_appended,
    staged_folder,
    staged_home,
    staged_paths,
)

__all__ = [
    "DELETED",
    "EpochPreparation",
    "KeyStore",
    "KeyedRows",
    "Prepared",
    "RevertPreparation",
    "as_schema",
    "changes_from",
    "changes_to_revert",
    "check_by_key",
    "is_appended",
    "is_published",
    "log_older",
    "log_superseded",
    "staged_folder",
    "staged_home",
    "staged_paths",
    "unique_changes",
    "write_parquet",
]
