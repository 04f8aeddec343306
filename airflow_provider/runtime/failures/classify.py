"""Classification of exceptions as failures: what can be done, where and why it happened."""

from __future__ import annotations

import dataclasses
import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    OutageError,
    RunFailedError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.failure import Failure, FailureClass, first_line
from airflow_provider.runtime.errors.job_lines import line_in_text, line_of
from airflow_provider.runtime.failures.causes import causes_of, text_of
from airflow_provider.runtime.failures.messages import KILLED_REMEDY, Wording, wording_of
from airflow_provider.runtime.failures.overrides import FailureOverrides
from airflow_provider.runtime.failures.rules import (
    ABSENT,
    JVM_GONE,
    WRAPPERS,
    WRAPPING_CONDITIONS,
    find_rule,
    is_restartable,
)
from airflow_provider.runtime.failures.stack_traces import input_in, place_in

if TYPE_CHECKING:
    from airflow_provider.runtime.failures.causes import Cause

_JVM_GONE: Final = Wording("Spark's JVM has ended: it was killed, or out of memory", KILLED_REMEDY)
_MARKED: Final = "the job's author has set this class"
ANSWERS: Final = "check that it runs and that its address is right; the same command tries again"


class _Classification(NamedTuple):
    failure_class: FailureClass
    what: str
    restartable: bool
    cause: Cause


def classify(
    error: BaseException,
    *,
    query: str | None = None,
    batch: int | None = None,
    marks: FailureOverrides | None = None,
) -> Failure:
    """Say what *error* means for the next attempt; what is not known is RECOVERABLE.

    Whatever the author of the job says of one of its causes comes first, then the table in
    :mod:`.failures.rules`. Never raises, also when the JVM that could tell more is gone.

    Args:
        error: the exception, with its causes.
        query: the query that it ended.
        batch: the batch that it ended.
        marks: exception types that are listed by name.
    """
    if isinstance(error, RunFailedError):
        return error.failure
    causes = causes_of(error)
    found = _decide(causes, marks or FailureOverrides())
    text = "\n".join([text_of(error), *(cause.words for cause in causes)])
    place = place_in(text)
    words = _JVM_GONE if found.what == JVM_GONE.what else _wording(found.cause, causes)
    parts = error.parts if isinstance(error, SparkStreamError) else None
    return Failure(
        failure_class=found.failure_class,
        reason=_reason_of(found, words) if parts is None else parts.what,
        condition=_condition_of(found.cause),
        query=query,
        host=place.host or socket.gethostname(),
        executor=place.executor,
        batch=batch,
        root_cause=first_line(_root_cause(found.cause, causes, words).describe()),
        rule=found.what,
        restartable=found.restartable,
        place=(parts.place if parts else "") or line_of(error) or line_in_text(text),
        source=parts.source if parts else None,
        input_file=input_in(text),
        remedy=parts.remedy if parts else words.remedy,
    )


def refusal_of(
    error: BaseException,
    message: str | None = None,
    *,
    source: str | None = None,
    place: str = "",
    mistake: type[ConfigError] = ConfigError,
) -> SparkStreamError:
    """Return what a start that *error* has stopped is refused with, before anything was written.

    Args:
        error: what a library or the job's function raised.
        message: what is wrong; None for what the error says.
        source: the source that it is about.
        place: the line of the job that it is about, if its traceback has none.
        mistake: the class of what no retry heals.

    Returns:
        :class:`OutageError` for what may heal by itself, such as a server that does not answer, and
        :class:`AbsentInputError` for input that may be delivered, so that retries apply; else
        *mistake*, which no retry heals.
    """
    found = classify(error)
    passes = {FailureClass.RECOVERABLE, FailureClass.ENVIRONMENT}
    kind: type[SparkStreamError] = mistake  # also for what no rule knows
    if found.rule == ABSENT:
        kind = AbsentInputError
    elif found.rule and found.failure_class in passes:
        kind = OutageError
    parts = found.explanation
    what = message or parts.what
    remedy = parts.remedy or (ANSWERS if kind is OutageError else "")
    refused = kind(what)
    refused.explanation = dataclasses.replace(
        parts, what=what, source=source, place=parts.place or place, remedy=remedy
    )
    return refused


def _decide(causes: list[Cause], marks: FailureOverrides) -> _Classification:
    marked = marks.class_of(causes)
    if marked is not None:
        failure_class, cause = marked
        return _Classification(failure_class, _MARKED, is_restartable(failure_class), cause)
    found = find_rule(causes)
    if found is None:
        return _Classification(
            FailureClass.RECOVERABLE, "", restartable=True, cause=_most_telling(causes)
        )
    rule, matching = found
    return _Classification(rule.failure_class, rule.what, rule.restartable, _most_telling(matching))


def _most_telling(causes: list[Cause]) -> Cause:
    """Return the outermost cause that is about what has failed, and not that something has."""
    telling = (cause for cause in causes if cause.simple_name not in WRAPPERS)
    return next(telling, causes[-1])


def _innermost(causes: list[Cause]) -> Cause:
    telling = [cause for cause in causes if cause.simple_name not in WRAPPERS]
    return (telling or causes)[-1]


def _root_cause(deciding: Cause, causes: list[Cause], words: Wording) -> Cause:
    """Return the innermost cause; but what has other words is said in Spark's, too."""
    innermost = _innermost(causes)
    is_same = bool(set(deciding.conditions) & set(innermost.conditions))
    tells_more = is_same or not words.what or _reads_file(deciding)
    return innermost if tells_more else deciding


def _wording(deciding: Cause, causes: list[Cause]) -> Wording:
    """Return the words for the cause that decides; else those for one that tells more of it."""
    found = wording_of(deciding)
    if found is not None or deciding.in_worker:
        return found or Wording("", "")
    others = (wording_of(cause) for cause in causes if not _only_wraps(cause))
    return next((words for words in others if words is not None), Wording("", ""))


def _only_wraps(cause: Cause) -> bool:
    return not cause.conditions or _reads_file(cause)


def _reads_file(cause: Cause) -> bool:
    """Whether it says which file could not be read, and another one why."""
    return any(condition.startswith("FAILED_READ_FILE") for condition in cause.conditions[:1])


def _reason_of(found: _Classification, words: Wording) -> str:
    return words.what or first_line(found.cause.essence) or found.cause.simple_name


def _condition_of(cause: Cause) -> str:
    own = [condition for condition in cause.conditions if condition not in WRAPPING_CONDITIONS]
    return own[-1] if own else next(iter(cause.conditions), cause.simple_name)
