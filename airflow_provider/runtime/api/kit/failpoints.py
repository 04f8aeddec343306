"""Failpoints: ``failpoints.hit(name)`` marks a step at which a test may kill the process."""

from __future__ import annotations

from airflow_provider.runtime.base import (
    failpoints,
)

__all__ = [
    "failpoints",
]
