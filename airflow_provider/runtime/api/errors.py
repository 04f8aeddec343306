"""The published errors: what an extension raises, and what it may catch.

The class tells the caller what it may assume, and sets the exit code of a command.
"""

from __future__ import annotations

from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_OK,
    EXIT_RETRY,
    EXIT_USAGE,
    AbsentInputError,
    CheckpointError,
    ConfigError,
    CorruptDocumentError,
    LauncherAwayError,
    LeaseLostError,
    LostInputError,
    OutageError,
    RefusedRowsError,
    RevertError,
    SinkError,
    SparkStreamError,
    SubmissionRefusedError,
    UnknownJobError,
    UnsupportedStorageError,
    WrongAnswerError,
)

__all__ = [
    "EXIT_FATAL",
    "EXIT_OK",
    "EXIT_RETRY",
    "EXIT_USAGE",
    "AbsentInputError",
    "CheckpointError",
    "ConfigError",
    "CorruptDocumentError",
    "LauncherAwayError",
    "LeaseLostError",
    "LostInputError",
    "OutageError",
    "RefusedRowsError",
    "RevertError",
    "SinkError",
    "SparkStreamError",
    "SubmissionRefusedError",
    "UnknownJobError",
    "UnsupportedStorageError",
    "WrongAnswerError",
]
