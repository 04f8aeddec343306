"""New columns of a query, which its sink may add to the table: the policy, and its record."""

from __future__ import annotations

from airflow_provider.runtime.sinks.added_columns import (
    absent_column_error,
    added_columns,
    log_added,
    may_add_columns,
    missing_columns,
)

__all__ = [
    "absent_column_error",
    "added_columns",
    "log_added",
    "may_add_columns",
    "missing_columns",
]
