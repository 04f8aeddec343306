"""Refusals: the error with which a check refuses a start, by the class of a failure."""

from __future__ import annotations

from airflow_provider.runtime.failures.classify import (
    refusal_of,
)

__all__ = [
    "refusal_of",
]
