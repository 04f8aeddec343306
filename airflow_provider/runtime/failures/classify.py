"""Failures by class: the four of Flink's ``ThrowableType``, decided by a table over the causes."""

from __future__ import annotations

import dataclasses
import enum
import re
import socket
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import EXIT_FATAL, EXIT_RETRY, CheckpointError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


class FailureClass(str, enum.Enum):
    """What can be done about a failure."""

    NON_RECOVERABLE = "NON_RECOVERABLE"  # the same again will fail again
    DATA_MISSING = "DATA_MISSING"  # input or state is gone; its producer is needed
    ENVIRONMENT = "ENVIRONMENT"  # the machine's fault: another one, or later
    RECOVERABLE = "RECOVERABLE"  # anything else: try again


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why an attempt ended.

    Attributes:
        failure_class: what can be done about it.
        reason: one line for people.
        condition: Spark's error condition, or the exception's type.
        query: the query it ended, None when it was none.
        host: the machine of the driver.
    """

    failure_class: FailureClass
    reason: str
    condition: str
    query: str | None
    host: str

    @property
    def exit_code(self) -> int:
        """Return the command line's exit code for it."""
        fatal = self.failure_class is FailureClass.NON_RECOVERABLE
        return EXIT_FATAL if fatal else EXIT_RETRY

    def describe(self) -> str:
        """Return one line: class, query, condition and reason."""
        where = f"query {self.query!r}: " if self.query else ""
        return f"{self.failure_class.value}: {where}{self.condition}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "failure_class": self.failure_class.value}


_JVM_GONE: Final = re.compile(r"Py4JNetworkError|Answer from Java side is empty|ConnectionRefused")
_JVM_GONE_REASON: Final = (
    "Spark's JVM has ended (killed, or out of memory); the same command resumes"
)
# Spark writes its conditions in brackets, the most particular one last.
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z0-9_]+)*)\]")
_WRAPPER: Final = "STREAM_FAILED"  # any failure of a query; says nothing of its cause

# First match wins, most specific first; the names are those of Python and Java exception types and
# of Spark's error conditions, matched against every cause.
_TABLE: Final[tuple[tuple[FailureClass, re.Pattern[str]], ...]] = (
    (
        FailureClass.ENVIRONMENT,
        re.compile(r"OutOfMemoryError|No space left on device|Disk quota exceeded|ExecutorLost"),
    ),
    (FailureClass.ENVIRONMENT, _JVM_GONE),
    (
        FailureClass.DATA_MISSING,
        re.compile(
            r"FileNotFoundException|FAILED_READ_FILE|FILE_NOT_EXIST|OffsetOutOfRange|MetadataFetchFailed"
            r"|CANNOT_LOAD_STATE_STORE"
        ),
    ),
    (
        FailureClass.NON_RECOVERABLE,
        re.compile(
            r"AnalysisException|ParseException|AccessControlException|PermissionError"
            r"|STATE_STORE_.*(SCHEMA|INCOMPATIBLE|MISMATCH)|STREAMING_STATEFUL_OPERATOR_NOT_MATCH"
            r"|CORRUPT_METADATA|UNSUPPORTED_(OPERATION|FEATURE)"
        ),
    ),
    (
        FailureClass.NON_RECOVERABLE,
        re.compile(
            r"\b(TypeError|AttributeError|NameError|ImportError|ModuleNotFoundError|SyntaxError)\b"
        ),
    ),
)
_OURS: Final[tuple[type[Exception], ...]] = (ConfigError, CheckpointError)
_REASON_CHARS: Final = 500


def classify(error: BaseException, *, query: str | None = None) -> Failure:
    """Say what *error* means for the next attempt; what is not known is RECOVERABLE.

    Args:
        error: the exception, with its causes.
        query: the query that it ended.
    """
    texts = [f"{type(e).__name__}: {_condition_of(e)}: {e}" for e in _causes(error)]
    text = "\n".join(texts)
    said = _JVM_GONE_REASON if _JVM_GONE.search(text) else _reason_in(str(error))
    return Failure(
        failure_class=_class_of(error, text),
        reason=said or type(error).__name__,
        condition=_condition_of(error),
        query=query,
        host=socket.gethostname(),
    )


def _class_of(error: BaseException, text: str) -> FailureClass:
    if any(isinstance(cause, _OURS) for cause in _causes(error)):
        return FailureClass.NON_RECOVERABLE
    for failure_class, pattern in _TABLE:
        if pattern.search(text):
            return failure_class
    return FailureClass.RECOVERABLE


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _condition_of(error: BaseException) -> str:
    get_condition = getattr(error, "getCondition", None)
    condition = get_condition() if callable(get_condition) else None
    if condition and condition != _WRAPPER:
        return str(condition)
    named = [found for found in _CONDITION.findall(str(error)) if found != _WRAPPER]
    return named[-1] if named else str(condition or type(error).__name__)


def _reason_in(text: str) -> str:
    """Return the line that says most: what ends a Python worker's traceback, else the first."""
    _, traceback, after = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in (after if traceback else text).splitlines() if line.strip()]
    said = (line for line in lines if not (traceback and line.startswith(" ")))
    return next(said, "").strip()[:_REASON_CHARS]
