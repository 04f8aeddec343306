"""Classification of exceptions as failures, and the classes that a job's author sets."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
import socket
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    OutageError,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import (
    Failure,
    FailureClass,
    first_line,
    line_in_text,
    line_of,
)
from airflow_provider.runtime.failures.causes import causes_of, input_in, location_in, text_of
from airflow_provider.runtime.failures.conditions import WRAPPING_CONDITIONS
from airflow_provider.runtime.failures.messages import KILLED_REMEDY, MAKE_ROOM, Wording, wording_of
from airflow_provider.runtime.failures.rules import (
    ABSENT,
    JVM_GONE,
    OTHER_HEADER,
    UNREADABLE,
    WRAPPERS,
    find_rule,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_provider.runtime.failures.causes import Cause


_JVM_GONE: Final = Wording("Spark's JVM has ended: it was killed, or out of memory", KILLED_REMEDY)
_TOLD_WHOLE: Final = (OTHER_HEADER, UNREADABLE)
_MARKED: Final = "the job's author has set this class"
_MARKED_REMEDY: Final = (
    "what helps is not known here: the job's author has set that a retry of this error does not"
)
ANSWERS: Final = "check that it runs and that its address is right; the same command tries again"


class _Classification(NamedTuple):
    failure_class: FailureClass
    what: str
    restartable: bool
    cause: Cause
    remedy: str = ""


def classify(
    error: BaseException,
    *,
    query: str | None = None,
    batch: int | None = None,
    marks: FailureOverrides | None = None,
) -> Failure:
    """Classify *error* for the next attempt; an unknown error is RECOVERABLE."""
    if isinstance(error, RunFailedError):
        return error.failure
    causes = causes_of(error)
    found = _decide(causes, marks or FailureOverrides())
    text = "\n".join([text_of(error), *(cause.words for cause in causes)])
    location = location_in(text)
    words = _JVM_GONE if found.what == JVM_GONE.what else _wording(found.cause, causes)
    parts = error.parts if isinstance(error, SparkStreamError) else None
    return Failure(
        failure_class=found.failure_class,
        reason=_reason_of(found, words) if parts is None else parts.what,
        condition=_condition_of(found.cause),
        query=query,
        host=location.host or socket.gethostname(),
        executor=location.executor,
        batch=batch,
        root_cause=_shortened(_root_cause(found.cause, causes, words).describe(), found),
        rule=found.what,
        restartable=found.restartable,
        location=(parts.location if parts else "") or line_of(error) or line_in_text(text),
        source=parts.source if parts else None,
        input_file=input_in(text),
        remedy=parts.remedy if parts else words.remedy or found.remedy,
    )


def is_raised_in_worker(error: BaseException) -> bool:
    """Whether Python that Spark called has raised *error*, or what led to it."""
    return any(cause.in_worker for cause in causes_of(error))


def refusal_of(
    error: BaseException,
    message: str | None = None,
    *,
    source: str | None = None,
    location: str = "",
    mistake: type[ConfigError] = ConfigError,
) -> SparkStreamError:
    """Return the error with which a start is refused before anything was written.

    It is an :class:`OutageError` for what may pass, such as a server that does not answer, an
    :class:`AbsentInputError` for input that may be delivered, else a *mistake*.
        mistake: the class for what no retry helps against.
    """
    found = classify(error)
    kind: type[SparkStreamError] = mistake  # also for what no rule knows
    if found.rule == ABSENT:
        kind = AbsentInputError
    elif found.rule and found.failure_class.may_pass:
        kind = OutageError
    parts = found.explanation
    what = message or parts.what
    remedy = parts.remedy or (ANSWERS if kind is OutageError else "")
    refused = kind(what)
    refused.explanation = dataclasses.replace(
        parts, what=what, source=source, location=parts.location or location, remedy=remedy
    )
    return refused


def _decide(causes: list[Cause], marks: FailureOverrides) -> _Classification:
    marked = marks.class_of(causes)
    if marked is not None:
        failure_class, cause = marked
        way = _MARKED_REMEDY if failure_class.is_permanent else ""
        return _Classification(failure_class, _MARKED, failure_class.may_pass, cause, way)
    found = find_rule(causes)
    if found is None:
        return _Classification(
            FailureClass.RECOVERABLE, "", restartable=True, cause=_most_telling(causes)
        )
    rule, matching = found
    cause = _most_telling(matching)
    return _Classification(rule.failure_class, rule.what, rule.restartable, cause, rule.remedy)


def _most_telling(causes: list[Cause]) -> Cause:
    telling = (cause for cause in causes if cause.simple_name not in WRAPPERS)
    return next(telling, causes[-1])


def _innermost(causes: list[Cause]) -> Cause:
    telling = [cause for cause in causes if cause.simple_name not in WRAPPERS]
    return (telling or causes)[-1]


def _root_cause(deciding: Cause, causes: list[Cause], words: Wording) -> Cause:
    """Return the innermost cause; but an error that we word is quoted in Spark's words, too."""
    innermost = _innermost(causes)
    is_same = bool(set(deciding.conditions) & set(innermost.conditions))
    tells_more = is_same or not words.what or _reads_file(deciding)
    return innermost if tells_more else deciding


def _wording(deciding: Cause, causes: list[Cause]) -> Wording:
    found = wording_of(deciding)
    if found is not None or deciding.in_worker:
        return found or Wording("", "")
    others = (wording_of(cause) for cause in causes if not _only_wraps(cause))
    return next((words for words in others if words is not None), Wording("", ""))


def _only_wraps(cause: Cause) -> bool:
    return not cause.conditions or _reads_file(cause)


def _reads_file(cause: Cause) -> bool:
    """Whether the cause names a file that could not be read; another one says why."""
    return any(condition.startswith("FAILED_READ_FILE") for condition in cause.conditions[:1])


def _reason_of(found: _Classification, words: Wording) -> str:
    return words.what or _shortened(found.cause.essence, found) or found.cause.simple_name


def _shortened(text: str, found: _Classification) -> str:
    """Return a text's first line; of a file that is not as expected the next ones say how."""
    return first_line(" ".join(text.split()) if found.what in _TOLD_WHOLE else text)


def _condition_of(cause: Cause) -> str:
    own = [condition for condition in cause.conditions if condition not in WRAPPING_CONDITIONS]
    return own[-1] if own else next(iter(cause.conditions), cause.simple_name)


# --- classes that a job's author sets -----------------------------------------------------------

_E = TypeVar("_E", bound=type)

_ATTRIBUTE: Final = "__fails_as__"
# A job's file is imported under its own name and eight digits, of which its author knows nothing.
_FILE_DIGITS: Final = re.compile(r"_[0-9a-f]{8}(?=\.)")
_NAME: Final = re.compile(r"[A-Za-z_$][\w$]*(?:\.[A-Za-z_$][\w$]*)*")


def fails_as(failure_class: FailureClass) -> Callable[[_E], _E]:
    """Mark an exception type: its failures, and those of derived types, are of that class.

    ::

        @fails_as(FailureClass.NON_RECOVERABLE)
        class UnknownCurrency(ValueError): ...

    From a Python worker only the type's name comes back, so the type must be defined in a module
    that the driver imports, such as the job's file.

    Raises:
        TypeError: the decorated object is not an exception type.
    """

    def mark(kind: _E) -> _E:
        if not issubclass(kind, BaseException):
            raise TypeError(f"fails_as marks exception types, and {kind!r} is none")
        setattr(kind, _ATTRIBUTE, FailureClass(failure_class))
        return kind

    return mark


@dataclasses.dataclass(frozen=True)
class FailureOverrides:
    """Classes of exception types by name, with or without module; they precede decorators."""

    listed: Mapping[str, FailureClass] = dataclasses.field(default_factory=dict)

    @classmethod
    def parse(cls, listed: Mapping[str, str] | Iterable[str]) -> FailureOverrides:
        """Read ``{"jobs.UnknownCurrency": "NON_RECOVERABLE"}`` or ``["NAME=CLASS", …]``."""
        pairs = listed.items() if hasattr(listed, "items") else [_pair(text) for text in listed]
        return cls({_name(name): _class(name, value) for name, value in pairs})

    def to_dict(self) -> dict[str, str]:
        return {name: listed.value for name, listed in self.listed.items()}

    def class_of(self, causes: Iterable[Cause]) -> tuple[FailureClass, Cause] | None:
        for cause in causes:
            found = self._listed_class(cause) or getattr(cause.type, _ATTRIBUTE, None)
            if found is not None:
                return FailureClass(found), cause
        return None

    def _listed_class(self, cause: Cause) -> FailureClass | None:
        # The type's own name first: a derived type may be listed beside the one above it.
        for name in (cause.name, cause.simple_name, *sorted(cause.bases)):
            for known in (name, _FILE_DIGITS.sub("", name)):
                if known in self.listed:
                    return self.listed[known]
        return None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(
            f"fails-as {text!r}: write NAME=CLASS, such as jobs.UnknownCurrency=NON_RECOVERABLE"
        )
    return name.strip(), value.strip()


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"fails-as {name!r}: not the name of an exception type; write it as in the traceback, "
            "such as jobs.UnknownCurrency or java.sql.SQLException"
        )
    return name


def _class(name: str, value: str) -> FailureClass:
    try:
        return FailureClass(value.upper().replace("-", "_"))
    except ValueError:
        known = ", ".join(kind.value for kind in FailureClass)
        raise ConfigError(
            f"fails-as {name}: there is no class {value!r}; use one of {known}"
        ) from None


# --- errors of the operating system -------------------------------------------------------------

_PERMISSIONS: Final = "use an account that may, or another location"
_FIXES: Final = {
    errno.EACCES: _PERMISSIONS,
    errno.EPERM: _PERMISSIONS,
    errno.EROFS: "mount it for writing, or use another location",
    errno.ENOTDIR: "a file is where a folder should be: correct the path, or move the file away",
    errno.EISDIR: "a folder is where a file should be: correct the path, or move it away",
    errno.EEXIST: "something else is where a folder should be: move it away",
    errno.ELOOP: "a link leads to itself: correct the path, or remove the link",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ENOSPC: MAKE_ROOM,
    errno.EDQUOT: MAKE_ROOM,
    errno.EIO: "check the disk; the same command resumes when it works again",
}


def of_the_system(error: OSError) -> Failure:
    """Return the failure for an error of the operating system, with the path and the fix."""
    failure = classify(error)
    if error.errno is None:
        return failure
    named = error.filename  # a path, or the number of what is open
    where = f"{_printable(os.fsdecode(named))}: " if isinstance(named, str | bytes) else ""
    way = _FIXES.get(error.errno)
    reason = f"{where}{error.strerror}" + (f"; {way}" if way else "")
    return dataclasses.replace(
        failure, reason=reason, root_cause="", location="", remedy="", host=""
    )


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)
