"""Answers of clusters' services: decoded, and what they say of an end."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from airflow_provider.runtime.base.typed_json import Mismatch, decode
from airflow_provider.runtime.errors import LauncherAwayError
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


class WrongAnswerError(LauncherAwayError):
    """A service answered with something else than its documentation says.

    Whether it did what it was asked to is not known, as after no answer at all.
    """


def answer_as(kind: type[T], raw: Any, *, where: str) -> T:
    """Return an answer of a service as the type of which it has to be.

    Args:
        kind: a type that :mod:`~airflow_provider.runtime.base.typed_json` reads.
        raw: values of JSON.
        where: the service and what it was asked, without a secret.

    Raises:
        WrongAnswerError: it is something else; one line names the member.
    """
    try:
        found: T = decode(kind, raw)
    except Mismatch as problem:
        msg = f"{where}: not an answer that is known: {problem}"
        raise WrongAnswerError(msg) from None
    return found


def exit_code_in(text: str) -> int | None:
    """Return the exit code that a cluster's text names, the last one of several; None for none."""
    found = _EXIT_CODE.findall(text)
    return int(found[-1]) if found else None


def reason_in(lines: tuple[str, ...]) -> str:
    """Return what a driver's log says of why it ended: its own error, else its last line."""
    own = line_in(lines)
    if own is not None:
        return own[:_LONGEST]
    return first_line(next((line for line in reversed(lines) if line.strip()), ""))
