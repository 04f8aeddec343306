"""Savepoints: the savepoint at an address, and the damage of its files."""

from __future__ import annotations

from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint

__all__ = ["open_savepoint", "verify_savepoint"]
