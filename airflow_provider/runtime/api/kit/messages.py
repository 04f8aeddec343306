"""Texts of errors: first lines, addresses and texts without secrets, and the costliest fix."""

from __future__ import annotations

from airflow_provider.runtime.errors.explanation import (
    first_line,
)
from airflow_provider.runtime.errors.fixes import (
    FROM_SCRATCH,
    PACKAGES,
    set_conf,
)
from airflow_provider.runtime.errors.redaction import (
    Secrets,
    shown_address,
    without_credentials,
)

__all__ = [
    "FROM_SCRATCH",
    "PACKAGES",
    "Secrets",
    "first_line",
    "set_conf",
    "shown_address",
    "without_credentials",
]
