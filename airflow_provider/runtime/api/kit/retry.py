"""Retries: how often and how long to repeat a step."""

from __future__ import annotations

from airflow_provider.runtime.base.retry import (
    Retries,
    RetryPolicy,
)

__all__ = [
    "Retries",
    "RetryPolicy",
]
