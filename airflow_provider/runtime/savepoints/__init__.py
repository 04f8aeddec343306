"""Savepoints: taken from outside without a pause, restored anywhere, kept and disposed of."""

from airflow_provider.runtime.savepoints.catalog import (
    Savepoint,
    find_savepoints,
    open_savepoint,
    verify_savepoint,
)
from airflow_provider.runtime.savepoints.take import take_savepoint

__all__ = [
    "Savepoint",
    "find_savepoints",
    "open_savepoint",
    "take_savepoint",
    "verify_savepoint",
]
