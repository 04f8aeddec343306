"""Causes of an exception, as one flat list: Python's, the JVM's, and those in stack traces."""

from __future__ import annotations

import builtins
import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.spark.versions import condition_of, sql_state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_DEEPEST: Final = 30  # a chain of JVM causes; each step asks the JVM
_UNKNOWN: Final = "UnknownException"  # PySpark's
_OF_PYSPARK: Final = "pyspark.errors.exceptions.base."
# All that Py4J says of an answer that is cut off; of a whole one it tells more after that.
_UNANSWERED: Final = re.compile(r"An error occurred while calling \S+(?<!\.)")
# Spark's state of a query that has ended before it made its sources and its plan.
_STARTING: Final = "Current State: INITIALIZING"
_CUT_OFF: Final = frozenset({"Py4JNetworkError"})
_JVM_NAME: Final = re.compile(r"(?:[a-z][\w$]*\.)+[A-Z][\w$.]*")


@dataclasses.dataclass(frozen=True)
class Cause:
    """One error in the chain that led to a failure."""

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
        return _simple(self.name)

    @property
    def from_pyspark(self) -> bool:
        """Whether PySpark itself has raised it, not the JVM below it."""
        return self.name.startswith(_OF_PYSPARK)

    def describe(self) -> str:
        return f"{self.name}: {self.essence.strip()}" if self.words else self.name

    @property
    def essence(self) -> str:
        return essence_of(self.words)


def causes_of(error: BaseException) -> list[Cause]:
    """Return the causes of *error*, outermost first: Python's chain, the JVM's, those in text."""
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
    """Return the text of *error*; empty if PySpark has to ask a JVM that is gone."""
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
    if type(error).__name__ != _UNKNOWN:
        return None
    name, _, words = message_in(text).strip().partition(": ")
    if not _JVM_NAME.fullmatch(name):
        return None
    conditions, states = conditions_in(words), sql_states_in(words)
    return Cause(name, frozenset({name, _simple(name)}), words.strip(), conditions, states)


def _parameters(error: Any) -> dict[str, str]:
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


# --- stack traces -------------------------------------------------------------------------------

_TRACEBACK: Final = "Traceback (most recent call last):"
# A JVM type with its package, wherever it is: Spark writes an executor's error in the middle of a
# line ("Lost task 0.0 in stage 3.0 (TID 7) (host executor 1): java.io.IOException: ...").
_JVM_TYPE: Final = re.compile(
    r"\b(?P<name>(?:[a-z][\w$]*\.){2,}[A-Z][\w$.]*?(?:Exception|Error|Failure|Throwable))\b"
    # Hadoop writes what a server has raised as RemoteException(java.io.IOException): ...
    r"(?=(?:(?:\([\w$.]+\)|\))?:[ \t]*(?P<words>[^\n]*))?)"
)
_FRAME: Final = re.compile(r"\s*(at \S+\(|\.\.\. \d+ more)")
# Without its package a type is one only at the head of a line.
_HEAD: Final = re.compile(
    r"^(?:Caused by: )?(?P<name>[A-Z][\w$]*(?:Exception|Error|Failure))(?::[ \t]*(?P<words>.*))?$",
    re.MULTILINE,
)
_PYTHON_END: Final = re.compile(r"^(?P<name>[A-Za-z_][\w.]*)(?::[ \t]*(?P<words>.*))?$")
# Spark writes its conditions in brackets, and the SQLSTATE behind the message.
_CONDITION: Final = re.compile(r"\[([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+(?:\.[A-Z0-9_]+)*)\]")
_SQL_STATE: Final = re.compile(r"\bSQLSTATE: ([A-Z0-9]{5})\b")
# First match wins: a task that could not fetch from an executor runs on another one.
_LOCATIONS: Final = (
    re.compile(r"BlockManagerId\((?P<executor>[\w-]+), (?P<host>[^,\s)]+), \d+"),
    re.compile(r"Lost executor (?P<executor>[\w-]+) on (?P<host>[\w.:-]+?):?(?=\s|$)"),
    re.compile(r"\(TID \d+\) \((?P<host>\S+) executor (?P<executor>[\w-]+)\)"),
    re.compile(r"ExecutorLostFailure \(executor (?P<executor>[\w-]+) "),
    re.compile(r"\bon host:? ['\"]?(?P<host>[\w-]+(?:\.[\w-]+)*)"),
)
# What Spark puts before the error of a task that it has given up.
_STAGE: Final = re.compile(
    r"(?:\[\w+\] )?Job aborted due to stage failure: .*?"
    r"\(TID \d+\) \(\S+ executor [\w-]+\): (?:org\.apache\.spark\.SparkException: )?"
)
_INPUT: Final = re.compile(r"error while reading file (\S+?)\.?(?=\s|$)")
_AT_DRIVER: Final = "driver"  # what Spark calls its own process when that runs tasks


class ParsedError(NamedTuple):
    """An error of which only text is left; *in_worker* if a Python worker raised it."""

    name: str
    words: str
    in_worker: bool


class FailureLocation(NamedTuple):
    """The machine and the executor of a failure; None for unknown."""

    host: str | None
    executor: str | None


def errors_in(text: str) -> list[ParsedError]:
    """Return the errors in a text with stack traces, outermost first, each once."""
    jvm, workers = _split(text)
    found = [_parsed(match) for line in jvm for match in _JVM_TYPE.finditer(line)]
    found += [_parsed(match) for line in jvm for match in _HEAD.finditer(line)]
    # A traceback tells the innermost first.
    found += [_parsed(match, in_worker=True) for match in reversed(workers)]
    return list(dict.fromkeys(found))


def conditions_in(text: str) -> tuple[str, ...]:
    """Return the Spark error conditions in *text*, in order, each once."""
    return tuple(dict.fromkeys(_CONDITION.findall(text)))


def sql_states_in(text: str) -> tuple[str, ...]:
    """Return the SQLSTATEs in *text*, in order, each once."""
    return tuple(dict.fromkeys(_SQL_STATE.findall(text)))


def location_in(text: str) -> FailureLocation:
    """Return the machine and the executor that *text* blames."""
    host: str | None = None
    executor: str | None = None
    for pattern in _LOCATIONS:
        match = pattern.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        if executor is None:
            executor = groups.get("executor")
        if host is None:
            host = groups.get("host")
    return FailureLocation(host, executor if executor != _AT_DRIVER else None)


def input_in(text: str) -> str:
    """Return the input file that Spark could not read; empty when *text* names none."""
    match = _INPUT.search(text)
    return re.sub(r"^file:(//)?(?=/)", "", match[1]) if match is not None else ""


def essence_of(words: str) -> str:
    """Return *words* without Spark's description of the stage."""
    return words[match.end() :] if (match := _STAGE.match(words)) else words


def message_in(text: str) -> str:
    """Return *text* up to the traces that follow it."""
    ends = (text.find(mark) for mark in (_TRACEBACK, "\n\nJVM stacktrace:", "\n\tat "))
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def _split(text: str) -> tuple[list[str], list[re.Match[str]]]:
    outside: list[str] = []
    ends: list[re.Match[str]] = []
    inside = False
    for line in text.splitlines():
        before, traceback, _ = line.partition(_TRACEBACK)
        if traceback:
            inside = True
            outside.append(before)
        elif not inside:
            outside += [] if _FRAME.match(line) else [line]
        elif line and not line[0].isspace():
            inside = False
            ends.extend(_end_of_traceback(line))
    return outside, ends


def _end_of_traceback(line: str) -> Iterator[re.Match[str]]:
    match = _PYTHON_END.match(line)
    if match is not None:
        yield match


def _parsed(match: re.Match[str], *, in_worker: bool = False) -> ParsedError:
    return ParsedError(match["name"], (match["words"] or "").strip(), in_worker)
