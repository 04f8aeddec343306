"""Answers of services that run drivers: HTTP statuses, JSON, logs and exit codes."""

from __future__ import annotations

from airflow_provider.runtime.base.service_answers import (
    ANSWER_S,
    answer_as,
    exit_code_in,
    is_transient,
    reason_in,
)

__all__ = [
    "ANSWER_S",
    "answer_as",
    "exit_code_in",
    "is_transient",
    "reason_in",
]
