"""Typed JSON: values read as the types that annotations name, and as nothing else."""

from __future__ import annotations

from airflow_provider.runtime.base.typed_json import (
    MOST_BYTES,
    Batch,
    Check,
    Mismatch,
    NonNegative,
    at_most,
    decode,
    read_json,
)

__all__ = [
    "MOST_BYTES",
    "Batch",
    "Check",
    "Mismatch",
    "NonNegative",
    "at_most",
    "decode",
    "read_json",
]
