"""Extras of this package: the error for one that is not installed."""

from __future__ import annotations

from airflow_provider.runtime.base.extensions import (
    require_extra,
)

__all__ = [
    "require_extra",
]
