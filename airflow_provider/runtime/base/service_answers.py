"""Answers of services that run drivers: HTTP statuses, JSON, logs and exit codes."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from airflow_provider.runtime.base.typed_json import Mismatch, decode
from airflow_provider.runtime.errors import WrongAnswerError
from airflow_provider.runtime.errors.explanation import first_line, line_in

T = TypeVar("T")

_EXIT_CODE: Final = re.compile(
    r"(?:exit ?code|exited with(?: status| code)?)\s*[:=]?\s*(-?\d{1,3})\b", re.IGNORECASE
)
_LONGEST: Final = 1200  # a screen of the driver's, without its labels
ANSWER_S: Final = 15.0
"""How long a cluster's service may take to answer one request: a task asks it again."""
_TOO_MANY, _SERVER_ERROR = 429, 500  # of HTTP


def is_transient(status: int) -> bool:
    """Whether the same request may succeed a little later, by its HTTP status."""
    return status >= _SERVER_ERROR or status == _TOO_MANY


def answer_as(kind: type[T], raw: Any, *, where: str) -> T:
    """Return an answer of a service as *kind*, a type that :mod:`.typed_json` reads.

    Raises:
        WrongAnswerError: the answer has another shape.
    """
    try:
        found: T = decode(kind, raw)
    except Mismatch as problem:
        raise WrongAnswerError(f"{where}: not an answer that is known: {problem}") from None
    return found


def exit_code_in(text: str) -> int | None:
    """Return the exit code that a cluster's text names, the last one of several; None for none."""
    found = _EXIT_CODE.findall(text)
    return int(found[-1]) if found else None


def reason_in(lines: tuple[str, ...]) -> str:
    """Return why a driver ended, by its log: its own error, else its last line."""
    own = line_in(lines)
    if own is not None:
        return own[:_LONGEST]
    return first_line(next((line for line in reversed(lines) if line.strip()), ""))
