"""Causes of an exception: all of them, however deep, as one flat list."""

from __future__ import annotations

import builtins
import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.failures.stack_traces import (
    conditions_in,
    errors_in,
    essence_of,
    message_in,
    sql_states_in,
)
from airflow_provider.runtime.spark.versions import condition_of, sql_state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_DEEPEST: Final = 30  # a chain of JVM causes; each step asks the JVM
_UNKNOWN: Final = "UnknownException"  # PySpark's
# All that Py4J says of an answer that is cut off; of a whole one it tells more after that.
_UNANSWERED: Final = re.compile(r"An error occurred while calling \S+(?<!\.)")
# Spark's state of a query that has ended before it made its sources and its plan.
_STARTING: Final = "Current State: INITIALIZING"
_CUT_OFF: Final = frozenset({"Py4JNetworkError"})
_JVM_NAME: Final = re.compile(r"(?:[a-z][\w$]*\.)+[A-Z][\w$.]*")


@dataclasses.dataclass(frozen=True)
class Cause:
    """One error in the chain of those that led to a failure.

    Attributes:
        name: its type, with module or package.
        bases: the names of its type and of those above it, with and without module or package.
        words: its own message, without the traces behind it.
        conditions: Spark's error conditions that it names, its own one first.
        sql_states: the SQLSTATEs that it names.
        errno: the operating system's number for it.
        type: its type, if that is known in this process.
        in_worker: whether it was raised in Python that Spark has called.
        at_start: whether the query has not begun its first batch.
        from_py4j: whether it was raised on the way to the JVM.
        parameters: of Spark's message, by the names that its condition has for them.
    """

    name: str
    bases: frozenset[str]
    words: str = ""
    conditions: tuple[str, ...] = ()
    sql_states: tuple[str, ...] = ()
    errno: int | None = None
    type: type[BaseException] | None = None
    in_worker: bool = False
    at_start: bool = False
    from_py4j: bool = False
    parameters: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def simple_name(self) -> str:
        """Return the type's name without module or package."""
        return _simple(self.name)

    def describe(self) -> str:
        """Return type and message."""
        return f"{self.name}: {self.essence.strip()}" if self.words else self.name

    @property
    def essence(self) -> str:
        """Return what its message says of the error itself."""
        return essence_of(self.words)


def causes_of(error: BaseException) -> list[Cause]:
    """Return what led to *error*, outermost first: Python's chain, the JVM's, those in text."""
    chain = list(_python_chain(error))
    found = [_live(link) for link in chain]
    for link in chain:
        found += list(_java_causes(link))
    for link in chain:
        found += _causes_in(text_of(link))
    kept = _without_repeats(found)
    if any(_STARTING in text_of(link) for link in chain):
        kept = [dataclasses.replace(cause, at_start=True) for cause in kept]
    return kept


def text_of(error: BaseException) -> str:
    """Return what *error* says; PySpark's ask the JVM for it, which may be gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - anything the gateway raises
        return ""


def _python_chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        group = getattr(current, "exceptions", ())  # an ExceptionGroup's
        members = [e for e in group if isinstance(e, BaseException)] if group else []
        # A JVM's cause that PySpark has converted already hangs on an attribute of its own.
        converted = getattr(current, "_cause", None)
        if isinstance(converted, BaseException):
            members.append(converted)
        waiting += [*reversed(members), current.__cause__ or current.__context__]


def _live(error: BaseException) -> Cause:
    text = text_of(error)
    converted = _converted(error, text)
    if converted is not None:
        return converted
    own = (_asked(lambda: condition_of(error)), _asked(lambda: sql_state_of(error)))
    number = getattr(error, "errno", None)
    return Cause(
        name=_name_of(type(error)),
        bases=_bases_of(type(error)) | (_CUT_OFF if _is_cut_off(error, text) else frozenset()),
        words=message_in(text).strip(),
        conditions=_with(own[0], conditions_in(text)),
        sql_states=_with(own[1], sql_states_in(text)),
        errno=number if isinstance(number, int) and isinstance(error, OSError) else None,
        type=type(error),
        from_py4j=_is_from_py4j(error),
        parameters=_parameters(error),
    )


def _converted(error: BaseException, text: str) -> Cause | None:
    """Return the JVM's exception for which PySpark has no type, from what it says of itself."""
    if type(error).__name__ != _UNKNOWN:
        return None
    name, _, words = message_in(text).strip().partition(": ")
    if not _JVM_NAME.fullmatch(name):
        return None
    conditions, states = conditions_in(words), sql_states_in(words)
    return Cause(name, frozenset({name, _simple(name)}), words.strip(), conditions, states)


def _parameters(error: Any) -> dict[str, str]:
    """Return the parameters of Spark's message, of PySpark's exception or of the JVM's."""
    try:
        return {str(n): str(value) for n, value in (error.getMessageParameters() or {}).items()}
    except Exception:  # noqa: BLE001 - as below; many have none
        return {}


def _asked(ask: Callable[[], str | None]) -> str | None:
    try:
        return ask()
    except Exception:  # noqa: BLE001 - PySpark's ask the JVM, which may be gone
        return None


def _with(first: str | None, rest: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*([first] if first else []), *rest]))


def _is_cut_off(error: BaseException, text: str) -> bool:
    """Whether a call of the JVM has ended in the middle of its answer."""
    return _is_from_py4j(error) and _UNANSWERED.fullmatch(text.strip()) is not None


def _is_from_py4j(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if str(frame.tb_frame.f_globals.get("__name__", "")).startswith("py4j."):
            return True
        frame = frame.tb_next
    return False


# --- the JVM's ----------------------------------------------------------------------------------


def _java_causes(error: BaseException) -> Iterator[Cause]:
    """Return the chain of JVM exceptions behind *error*, as far as the JVM still tells."""
    origin = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    try:
        for _ in range(_DEEPEST):
            if origin is None:
                return
            yield _java_cause(origin)
            origin = origin.getCause()
    except Exception:  # noqa: BLE001 - the JVM is gone, or was never there; the text remains
        return


def _java_cause(origin: Any) -> Cause:
    names: list[str] = []
    java_class = origin.getClass()
    while java_class is not None and len(names) < _DEEPEST:
        names.append(str(java_class.getName()))
        java_class = java_class.getSuperclass()
    text = str(origin.getMessage() or "")
    conditions = conditions_in(text)
    return Cause(
        name=names[0],
        bases=frozenset(names) | {_simple(name) for name in names},
        words=message_in(text).strip(),
        conditions=conditions,
        sql_states=sql_states_in(text),
        parameters=_parameters(origin) if conditions else {},
    )


# --- causes that are only in text ---------------------------------------------------------------


def _causes_in(text: str) -> list[Cause]:
    return [
        Cause(
            name=error.name,
            bases=_bases_by_name(error.name),
            words=error.words,
            conditions=conditions_in(error.words),
            sql_states=sql_states_in(error.words),
            type=find_type(error.name),
            in_worker=error.in_worker,
        )
        for error in errors_in(text)
    ]


def _bases_by_name(name: str) -> frozenset[str]:
    known = find_type(name)
    return frozenset({name, _simple(name)}) | (_bases_of(known) if known else frozenset())


def find_type(name: str) -> type[BaseException] | None:
    """Return the Python exception type of that name, if this process has imported its module."""
    module, _, rest = name.rpartition(".")
    home = sys.modules.get(module) if module else builtins
    found = getattr(home, rest, None)
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


def _name_of(kind: type) -> str:
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )


def _bases_of(kind: type) -> frozenset[str]:
    return frozenset(n for base in kind.__mro__ for n in (_name_of(base), base.__name__))


def _simple(name: str) -> str:
    return name.rpartition(".")[2].rpartition("$")[2]


def _without_repeats(causes: list[Cause]) -> list[Cause]:
    """Return *causes* without what only tells again of one that is there."""
    kept: list[Cause] = []
    for cause in causes:
        again = any(
            cause.simple_name == other.simple_name
            and cause.in_worker == other.in_worker
            and cause.words.partition("\n")[0].strip() == other.words.partition("\n")[0].strip()
            for other in kept
        )
        if not again:
            kept.append(cause)
    return kept
