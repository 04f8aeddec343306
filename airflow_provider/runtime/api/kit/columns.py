"""Columns of a sink: names in Spark's SQL, and the values and types that a format can hold."""

from __future__ import annotations

from airflow_provider.runtime.base.names import (
    quoted,
)
from airflow_provider.runtime.sinks.columns import (
    check_columns,
    refusing_folder_values,
    with_folder_values,
)

__all__ = [
    "check_columns",
    "quoted",
    "refusing_folder_values",
    "with_folder_values",
]
