"""Error screen: what a command says when it ends with an error, and where it keeps the rest."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import (
    EXIT_FATAL,
    EXIT_LEASE,
    EXIT_USAGE,
    AbsentInputError,
    ConfigError,
    OutageError,
    RunFailedError,
)
from airflow_provider.runtime.errors.explanation import HEADING, safe_text
from airflow_provider.runtime.failures.messages import FIXES
from airflow_provider.runtime.spark.installation import is_submitted

if TYPE_CHECKING:
    from airflow_provider.runtime.errors import SparkStreamError
    from airflow_provider.runtime.errors.explanation import Explanation


_CORRECT: Final = "correct the job there"


def show_error(error: SparkStreamError, *, as_json: bool) -> int:
    """Print an error as one screen on stderr; return the exit code.

    With *as_json*, stdout is for programs and gets a document, too.
    """
    code = error.exit_code
    if as_json:
        from airflow_provider.runtime.cli.output import print_json
        from airflow_provider.runtime.failures.classify import classify

        document = {"error": type(error).__name__, "exit_code": code, **classify(error).to_dict()}
        print_json({"version": 1, **document})
    parts = _with_remedy(error)
    details = error.details or _keep(error)
    if parts.is_one_line and details is None:
        print(f"{HEADING}{error}", file=sys.stderr)
        return code
    for line in parts.screen(code, meaning_of(error, code), details):
        print(line, file=sys.stderr)
    return code


def _with_remedy(error: SparkStreamError) -> Explanation:
    """Return the parts of an error; one with a location and no remedy of its own gets one."""
    from airflow_provider.runtime.failures.classify import ANSWERS
    from airflow_provider.runtime.failures.rules import UNANSWERED

    parts = error.parts
    is_away = isinstance(error, RunFailedError) and error.failure.rule == UNANSWERED
    if is_away or isinstance(error, OutageError):
        return dataclasses.replace(parts, remedy=parts.remedy or ANSWERS)
    if parts.remedy or (parts.is_one_line and not isinstance(error, RunFailedError)):
        return parts
    if isinstance(error, RunFailedError) and error.failure.query is not None:
        return dataclasses.replace(parts, remedy=FIXES[error.failure.failure_class])
    is_known = error.explanation is not None and bool(error.explanation.why or error.__cause__)
    return dataclasses.replace(parts, remedy=_CORRECT) if is_known else parts


def meaning_of(error: SparkStreamError, code: int) -> str:
    """Return what an exit code says of what was written, and of another try."""
    if isinstance(error, RunFailedError):
        kind = error.failure.failure_class.value
        again = "a retry alone cannot help" if code == EXIT_FATAL else "the same command resumes"
        return f"{kind}, {again}; what was committed stays"
    if code == EXIT_USAGE or isinstance(error, ConfigError):
        return "nothing was written"
    if isinstance(error, AbsentInputError | OutageError):
        from airflow_provider.runtime.failures.classify import classify

        kind = classify(error).failure_class.value
        return f"{kind}, nothing was written; the same command tries again"
    if code == EXIT_LEASE:
        return "another driver has this job; it goes on"
    if code == EXIT_FATAL:
        return "a retry alone cannot help; what was committed stays"
    return "what was committed stays; the same command goes on"


def is_unexpected(error: SparkStreamError) -> bool:
    """Whether it stands for an error that nobody has raised on purpose."""
    return isinstance(error, RunFailedError)


def _keep(error: SparkStreamError) -> str | None:
    """Keep the stack traces behind an error that no run records; None when none are needed.

    A submitted driver's log is the right place: its machine may be gone tomorrow.
    """
    if error.__cause__ is None or (error.explanation is None and not is_unexpected(error)):
        return None
    text = safe_text("".join(traceback.format_exception(error)))
    if is_submitted():
        print(text, file=sys.stderr)
        return None
    try:
        handle, path = tempfile.mkstemp(prefix="spark-stream-error-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError:
        return None  # the disk may be what is full
    return path
