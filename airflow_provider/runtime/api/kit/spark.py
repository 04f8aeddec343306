"""Spark: its own packages and Arrow types, as the running version has them."""

from __future__ import annotations

from airflow_provider.runtime.spark.versions import (
    arrow_schema,
    own_package,
)

__all__ = [
    "arrow_schema",
    "own_package",
]
