"""Stack traces as text: those of the JVM, tracebacks of Python workers, and hosts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_TRACEBACK: Final = "Traceback (most recent call last):"
# A JVM type with its package, wherever it is: Spark writes an executor's error in the middle of a
# line ("Lost task 0.0 in stage 3.0 (TID 7) (host executor 1): java.io.IOException: ...").
_JVM_TYPE: Final = re.compile(
    r"\b(?P<name>(?:[a-z][\w$]*\.){2,}[A-Z][\w$.]*?(?:Exception|Error|Failure|Throwable))\b"
    r"(?=(?::[ \t]*(?P<words>[^\n]*))?)"
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
_PLACES: Final = (
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
    """An error of which only text is left.

    Attributes:
        name: its type, with the package or module if the text has it.
        words: the first line of its message.
        in_worker: whether it was raised in a Python worker, or in Python called by Spark.
    """

    name: str
    words: str
    in_worker: bool


class FailurePlace(NamedTuple):
    """Where it happened, as far as it is known."""

    host: str | None
    executor: str | None


def errors_in(text: str) -> list[ParsedError]:
    """Return the errors that *text* tells of, outermost first, each once."""
    jvm, workers = _split(text)
    found = [_parsed(match) for line in jvm for match in _JVM_TYPE.finditer(line)]
    found += [_parsed(match) for line in jvm for match in _HEAD.finditer(line)]
    # A traceback tells the innermost first.
    found += [_parsed(match, in_worker=True) for match in reversed(workers)]
    return list(dict.fromkeys(found))


def conditions_in(text: str) -> tuple[str, ...]:
    """Return the Spark error conditions that *text* names, in its order, each once."""
    return tuple(dict.fromkeys(_CONDITION.findall(text)))


def sql_states_in(text: str) -> tuple[str, ...]:
    """Return the SQLSTATEs that *text* names, in its order, each once."""
    return tuple(dict.fromkeys(_SQL_STATE.findall(text)))


def place_in(text: str) -> FailurePlace:
    """Return the machine and the executor that *text* blames."""
    host: str | None = None
    executor: str | None = None
    for pattern in _PLACES:
        match = pattern.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        if executor is None:
            executor = groups.get("executor")
        if host is None:
            host = groups.get("host")
    return FailurePlace(host, executor if executor != _AT_DRIVER else None)


def input_in(text: str) -> str:
    """Return the input file that Spark could not read; empty when *text* names none."""
    match = _INPUT.search(text)
    return re.sub(r"^file:(//)?(?=/)", "", match[1]) if match is not None else ""


def essence_of(words: str) -> str:
    """Return *words* without what Spark says of the stage in which it happened."""
    return words[match.end() :] if (match := _STAGE.match(words)) else words


def message_in(text: str) -> str:
    """Return *text* up to the traces that follow it."""
    ends = (text.find(mark) for mark in (_TRACEBACK, "\n\nJVM stacktrace:", "\n\tat "))
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def _split(text: str) -> tuple[list[str], list[re.Match[str]]]:
    """Return what is not of tracebacks, and the last line of each traceback."""
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
