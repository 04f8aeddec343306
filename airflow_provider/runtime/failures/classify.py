"""Classification of exceptions as failures: what can be done, where and why it happened."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import (
    ConfigError,
    Failure,
    FailureClass,
    OutageError,
    RunFailedError,
    SparkStreamError,
    first_line,
)
from airflow_provider.runtime.failures.causes import causes_of, text_of
from airflow_provider.runtime.failures.overrides import FailureOverrides
from airflow_provider.runtime.failures.rules import (
    JVM_GONE,
    WRAPPERS,
    WRAPPING_CONDITIONS,
    find_rule,
    heals_by_restart,
)
from airflow_provider.runtime.failures.stack_traces import place_in

if TYPE_CHECKING:
    from airflow_provider.runtime.failures.causes import Cause

_JVM_GONE_REASON: Final = (
    "Spark's JVM has ended (killed, or out of memory); the same command resumes"
)
_MARKED: Final = "the job's author has set this class"


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
    :mod:`rules`. Never raises, also when the JVM that could tell more is gone.

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
    place = place_in("\n".join([text_of(error), *(cause.words for cause in causes)]))
    return Failure(
        failure_class=found.failure_class,
        reason=_reason_of(found),
        condition=_condition_of(found.cause),
        query=query,
        host=place.host or socket.gethostname(),
        executor=place.executor,
        batch=batch,
        root_cause=first_line(_innermost(causes).describe()),
        rule=found.what,
        restartable=found.restartable,
    )


def refusal_of(error: BaseException, message: str) -> SparkStreamError:
    """Return what a start that *error* has stopped is refused with, before anything was written.

    Args:
        error: what a library or the job's function raised.
        message: names the thing and the way out.

    Returns:
        :class:`OutageError` for what may heal by itself, such as a server that does not answer, so
        that retries apply; else :class:`ConfigError`, which no retry heals.
    """
    found = classify(error)
    passes = {FailureClass.RECOVERABLE, FailureClass.ENVIRONMENT}
    is_known = bool(found.rule)  # what no rule knows is a caller's mistake until shown otherwise
    kind = OutageError if is_known and found.failure_class in passes else ConfigError
    return kind(message)


def _decide(causes: list[Cause], marks: FailureOverrides) -> _Classification:
    marked = marks.class_of(causes)
    if marked is not None:
        failure_class, cause = marked
        return _Classification(failure_class, _MARKED, heals_by_restart(failure_class), cause)
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


def _reason_of(found: _Classification) -> str:
    if found.what == JVM_GONE.what:
        return _JVM_GONE_REASON
    return first_line(found.cause.essence) or found.cause.simple_name


def _condition_of(cause: Cause) -> str:
    own = [condition for condition in cause.conditions if condition not in WRAPPING_CONDITIONS]
    return own[-1] if own else next(iter(cause.conditions), cause.simple_name)
