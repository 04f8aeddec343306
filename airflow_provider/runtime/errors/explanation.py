"""Explanation of an error: what, where, why, what to do; as one screen, and as one line. Pure.

::

    spark-stream: error: there is no column `usr`
      where: sessions.py:42, query 'sessions'
      why: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column ... with name `usr` cannot be resolved. ...
      what to do: use one of `user`, `ts`, `v`
      exit code 2: nothing was written
      details: /data/jobs/sessions/runs/r1/logs/4f2a.error.log

A terminal and a log get the screen; an exception, a record and a table get the line, which
:func:`line_in` restores from the end of a driver's log.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import os
import re
import sys
import textwrap
import traceback
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.errors.redaction import redact, without_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


HEADING: Final = "spark-stream: error: "
THERE: Final = "correct the job there"
_BY_STACK: Final = "correct the job where the stack trace in the details says"
WIDEST: Final = 200
"""Characters of a line of the screen; longer text is wrapped."""
_WHERE, _WHY, _DO, _CODE, _DETAILS = "where: ", "why: ", "what to do: ", "exit code ", "details: "
_LABELS: Final = (_WHERE, _WHY, _DO, _CODE, _DETAILS)
_LONG, _SHORT = 3, 2  # lines of a part at most, so that all of it is one screen
_MORE: Final = "    "
_PACKAGE: Final = re.compile(r"^(?:[a-z_][\w$]*\.)+(?:\w+\$)?(?=[A-Z])")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """An error, in parts for people; an empty part adds nothing.

    Attributes:
        mistakes: how many *what* names, each as long as that of one error.
    """

    what: str
    location: str = ""
    query: str | None = None
    batch: int | None = None
    source: str | None = None
    input_file: str = ""
    host: str = ""
    why: str = ""
    remedy: str = ""
    mistakes: int = 1

    @property
    def where(self) -> str:
        source = f"source {self.source!r}" if self.source is not None else ""
        parts = [
            self.location,
            f"query {self.query!r}" if self.query is not None else "",
            f"batch {self.batch}" if self.batch is not None else "",
            "" if self.what.startswith(source) else source,
            f"input {self.input_file}" if self.input_file else "",
            f"on {self.host}" if self.host else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def line(self) -> str:
        return _join(self.what, self.where, self.why, self.fix)

    @property
    def fix(self) -> str:
        """The remedy; a line that is not known is no place to go to."""
        return _BY_STACK if self.remedy == THERE and not self.location else self.remedy

    @property
    def is_one_line(self) -> bool:
        return not (self.where or self.why or self.remedy)

    def screen(self, exit_code: int, meaning: str, details: str | None = None) -> list[str]:
        lines = _folded(HEADING, self.what, _LONG * self.mistakes)
        parts = ((_WHERE, self.where, _SHORT), (_WHY, self.why, _LONG), (_DO, self.fix, _SHORT))
        for label, text, most in parts:
            lines += _folded(f"  {label}", text, most) if text else []
        lines.append(f"  {_CODE}{exit_code}: {meaning}")
        return lines if details is None else [*lines, f"  {_DETAILS}{details}"]


def headed(condition: str, reason: str, beneath: str, *, has_words: bool) -> str:
    """Return an error's reason, after the name of the error unless the words have it."""
    is_said = condition in reason or (has_words and (condition.isupper() or condition in beneath))
    is_name = condition[:1].isalpha()  # Spark's legacy ones are numbers
    return f"{condition}: {reason}" if is_name and not is_said else reason


def safe_text(text: str) -> str:
    """Return an error's text without secret parameters and without credentials of addresses."""
    return without_credentials(redact(encodable(text)))


def encodable(text: str) -> str:
    """Return a text that every terminal, log and answer can encode."""
    return text.encode("utf-8", "replace").decode()


def without_package(text: str) -> str:
    """Return an error's text without the package in front of its type's name."""
    return _PACKAGE.sub("", text)


class Screen(NamedTuple):
    """The parts of a screen in a log, each in one line; empty parts are missing in the log."""

    what: str
    where: str
    why: str
    remedy: str
    meaning: str


def line_in(log: Sequence[str]) -> str | None:
    """Return the line of the last whole screen in a log, or None."""
    screen = screen_in(log)
    if screen is None:
        return None
    return _join(screen.what, screen.where, screen.why, screen.remedy)


def screen_lines(log: Sequence[str]) -> list[str]:
    """Return the lines of the last screen in a log; empty without one."""
    starts = [number for number, line in enumerate(log) if HEADING in line]
    if not starts:
        return []
    first = log[starts[-1]]
    others = (_MORE, *(f"  {each}" for each in _LABELS))
    rest = itertools.takewhile(lambda line: line.startswith(others), log[starts[-1] + 1 :])
    return [first[first.index(HEADING) :], *rest]


def screen_in(log: Sequence[str]) -> Screen | None:
    """Return the parts of the last whole screen in a log, or None."""
    lines = screen_lines(log)
    if not lines:
        return None
    parts = {"": lines[0].removeprefix(HEADING)}
    label = ""
    for line in lines[1:]:
        found = next((each for each in _LABELS if line.startswith(f"  {each}")), None)
        if found is not None:
            label, parts[found] = found, line[2 + len(found) :]
        else:
            parts[label] += f" {line.strip()}"
    where, why, remedy, code = (parts.get(each, "") for each in (_WHERE, _WHY, _DO, _CODE))
    return Screen(parts[""], where, why, remedy, code.partition(": ")[2])


def _join(what: str, where: str, why: str, remedy: str) -> str:
    line = f"{where}: {what}" if where else what
    line += f" ({why})" if why and why not in what else ""
    return f"{line}; {remedy}" if remedy else line


def _folded(label: str, text: str, most: int) -> list[str]:
    text = safe_text(text)  # before a secret is folded
    indent = "" if label == HEADING else "  "
    return textwrap.wrap(
        label.strip() + " " + " ".join(text.split()),
        WIDEST,
        initial_indent=indent,
        subsequent_indent=_MORE,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    )


# --- failures of attempts -----------------------------------------------------------------------

_OF_AN_ERROR: Final = frozenset({"reason", "root_cause", "remedy"})
_REASON_CHARS: Final = 500  # a record and a task's error are read by people, the log has the rest


class FailureClass(str, enum.Enum):
    """What can be done about a failure; the four of Flink's ``ThrowableType``."""

    NON_RECOVERABLE = "NON_RECOVERABLE"  # the same again will fail again
    DATA_MISSING = "DATA_MISSING"  # input or state is gone; its producer is needed
    ENVIRONMENT = "ENVIRONMENT"  # the machine's fault: another one, or later
    RECOVERABLE = "RECOVERABLE"  # anything else: try again

    @property
    def is_permanent(self) -> bool:
        """Whether a retry fails again, until a person has changed something."""
        return self is FailureClass.NON_RECOVERABLE

    @property
    def may_pass(self) -> bool:
        """Whether it may pass by itself, so that the query may be started again at once."""
        return self in {FailureClass.RECOVERABLE, FailureClass.ENVIRONMENT}

    @property
    def names_host(self) -> bool:
        """Whether the machine where it happened is a part of the explanation."""
        return self is FailureClass.ENVIRONMENT


@dataclasses.dataclass(frozen=True)
class Failure:
    """Why an attempt ended; ``failure`` in ``attempts/<n>.json``.

    Attributes:
        reason: the message of the error that decides the class, in one line for people.
        condition: its Spark error condition, or its type.
        host: the machine where it happened, if Spark says; else the driver's.
        root_cause: the innermost error, with its type.
        rule: the subject of the rule that gave the class; empty for an error of no known kind.
        restartable: whether a restart of the query in the same driver may help.
        remedy: what to do about it; empty for what its class says.
        details: the file with the stack traces; empty for none.
    """

    failure_class: FailureClass
    reason: str
    condition: str
    query: str | None
    host: str
    executor: str | None = None
    batch: int | None = None
    root_cause: str = ""
    rule: str = ""
    restartable: bool = True
    location: str = ""
    source: str | None = None
    input_file: str = ""
    remedy: str = ""
    details: str = ""

    def __post_init__(self) -> None:
        """Remove secrets from the texts of errors, and what is not Unicode from all texts."""
        for name, value in list(vars(self).items()):
            if isinstance(value, str) and not isinstance(value, FailureClass):
                free = safe_text if name in _OF_AN_ERROR else encodable
                object.__setattr__(self, name, free(value))

    @property
    def is_fatal(self) -> bool:
        return self.failure_class.is_permanent

    @property
    def explanation(self) -> Explanation:
        """The failure for people; a root cause that adds nothing is left out."""
        beneath = self.root_cause if self.reason not in self.root_cause else ""
        return Explanation(
            what=headed(self.condition, self.reason, beneath, has_words=bool(self.remedy)),
            location=self.location,
            query=self.query or None,
            batch=self.batch if self.query else None,
            source=self.source,
            input_file=self.input_file,
            host=self.host if self.failure_class.names_host else "",
            why=without_package(beneath) if beneath not in self.reason else "",
            remedy=self.remedy,
        )

    def describe(self) -> str:
        return f"{self.failure_class.value}: {self.explanation.line}"

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "failure_class": self.failure_class.value}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Failure:
        """Return what :meth:`to_dict` has written, also in another version."""
        known = {field.name for field in dataclasses.fields(cls)}
        values: dict[str, Any] = {"reason": "", "condition": "", "query": None, "host": ""}
        values |= {name: value for name, value in raw.items() if name in known}
        try:
            values["failure_class"] = FailureClass(raw.get("failure_class"))
        except ValueError:
            values["failure_class"] = FailureClass.RECOVERABLE
        return cls(**values)


def first_line(text: str) -> str:
    """Return the first line that is not blank, at a length that a person reads."""
    lines = safe_text(text).splitlines()  # before the text is cut within a secret
    return next((line.strip() for line in lines if line.strip()), "")[:_REASON_CHARS]


# --- lines of a job -----------------------------------------------------------------------------

# Python's own, what is installed, and what the runtime and Spark bring as a zip.
_OF_OTHERS: Final = re.compile(
    r"^<|/(site|dist)-packages/|/lib(64)?/python3(\.\d+)?/|\.zip/"
    r"|/airflow_provider/(?:extensions|runtime)/|/pyspark/|/py4j-"
    r"|\.p(?:xd|xi|yx)$"  # of a compiled library, below the folder in which it was built
)
_FRAME: Final = re.compile(r'File "([^"]+)", line (\d+)')
_CALL_SITE: Final = re.compile(r"was called from\s*\n(\S+):(\d+)")


def line_of(error: BaseException) -> str:
    """Return the innermost line of the job's files in an error's traceback; empty if none."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, SyntaxError) and link.filename and is_of_job(link.filename):
            return location_of(link.filename, link.lineno or 1)
        frames = traceback.walk_tb(link.__traceback__)
        lines = [(frame.f_code.co_filename, number) for frame, number in frames]
        own = [line for line in lines if is_of_job(line[0])]
        if own:
            return location_of(*own[-1])
        link = link.__cause__ or link.__context__
    return ""


def line_here() -> str:
    """Return the innermost line of the job's files that is being run; empty if none."""
    lines = ((frame.f_code.co_filename, number) for frame, number in traceback.walk_stack(None))
    return next((location_of(*line) for line in lines if is_of_job(line[0])), "")


def line_in_text(text: str) -> str:
    """Return the line of the job's files that a message of Spark names; empty for none."""
    frames = [frame for frame in _FRAME.findall(text) if is_of_job(frame[0])]
    sites = [site for site in _CALL_SITE.findall(text) if is_of_job(site[0])]
    found = frames[-1] if frames else sites[0] if sites else None
    return location_of(*found) if found is not None else ""


def definition_of(function: Callable[..., object]) -> str:
    """Return the line where a function of the job begins; empty for one of a library."""
    code = getattr(function, "__code__", None)
    if code is None or not is_of_job(code.co_filename):
        return ""
    return location_of(code.co_filename, code.co_firstlineno)


def is_of_job(filename: str) -> bool:
    """Whether a file belongs to the job's author, judged by its path."""
    return _OF_OTHERS.search(Path(filename).as_posix()) is None


def location_of(filename: str, line: int | str) -> str:
    """Return ``FILE:LINE``, with the path as Python imports it from its folder."""
    path = PurePath(filename)
    roots = {PurePath(os.path.abspath(root)) for root in sys.path}
    below = [path.relative_to(root) for root in roots if root in path.parents]
    short = min(below, key=lambda each: len(each.parts), default=PurePath(path.name))
    return f"{short}:{line}"
