"""Refusals: the class of a failure, and the error with which a check refuses a start."""

from __future__ import annotations

from airflow_provider.runtime.errors.explanation import (
    FailureClass,
)
from airflow_provider.runtime.failures.classify import (
    classify,
    refusal_of,
)

__all__ = [
    "FailureClass",
    "classify",
    "refusal_of",
]
