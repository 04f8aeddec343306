"""Staging of an epoch's rows with Spark, as data files in a folder that no reader reads."""

from __future__ import annotations

from airflow_provider.runtime.sinks.staging import (
    PARQUET,
    StagedFiles,
    check_append_only,
    epochs_of,
    folder_name,
    is_inside,
    own_errors,
    settings,
    stage_files,
    staged_epochs,
)

__all__ = [
    "PARQUET",
    "StagedFiles",
    "check_append_only",
    "epochs_of",
    "folder_name",
    "is_inside",
    "own_errors",
    "settings",
    "stage_files",
    "staged_epochs",
]
