"""Explanation of an error: what, where, why, what to do; as one screen, and as one line. Pure.

::

    spark-stream: error: there is no column `usr`
      where: sessions.py:42, query 'sessions'
      why: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column ... with name `usr` cannot be resolved. ...
      what to do: use one of `user`, `ts`, `v`
      exit code 2: nothing was written
      details: /data/jobs/sessions/runs/r1/logs/4f2a.error.log

A terminal and a log get the screen; an exception, a record and a table get the line. Who watches a
driver from elsewhere has only the end of its log: :func:`line_in` makes the line of that screen.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import textwrap
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors.redaction import redact, without_credentials

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADING: Final = "spark-stream: error: "
WIDEST: Final = 200
"""Characters of a line of the screen; what is longer goes on in the next one."""
_WHERE, _WHY, _DO, _CODE, _DETAILS = "where: ", "why: ", "what to do: ", "exit code ", "details: "
_LABELS: Final = (_WHERE, _WHY, _DO, _CODE, _DETAILS)
_LONG, _SHORT = 3, 2  # lines of a part at most, so that all of it is one screen
_MORE: Final = "    "
_PACKAGE: Final = re.compile(r"^(?:[a-z_][\w$]*\.)+(?:\w+\$)?(?=[A-Z])")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Explanation:
    """What a person needs of an error.

    Attributes:
        what: what is wrong, in one line.
        place: the line of the job that it is about, such as ``sessions.py:42``.
        query: the query that it ended.
        batch: the batch that it ended.
        source: the source that it is about.
        input_file: the input that was read.
        host: the machine where it happened, if that is another one.
        why: what the library behind it has said; empty when *what* says it all.
        remedy: what to do; empty when *what* says that, too.
    """

    what: str
    place: str = ""
    query: str | None = None
    batch: int | None = None
    source: str | None = None
    input_file: str = ""
    host: str = ""
    why: str = ""
    remedy: str = ""

    @property
    def where(self) -> str:
        """Return all that is known of the place and not said before; empty for nothing."""
        source = f"source {self.source!r}" if self.source is not None else ""
        parts = [
            self.place,
            f"query {self.query!r}" if self.query is not None else "",
            f"batch {self.batch}" if self.batch is not None else "",
            "" if self.what.startswith(source) else source,
            f"input {self.input_file}" if self.input_file else "",
            f"on {self.host}" if self.host else "",
        ]
        return ", ".join(part for part in parts if part)

    @property
    def line(self) -> str:
        """Return all of it in one line."""
        return _join(self.what, self.where, self.why, self.remedy)

    @property
    def is_one_line(self) -> bool:
        """Whether *what* is all there is to say."""
        return not (self.where or self.why or self.remedy)

    def screen(self, exit_code: int, meaning: str, details: str | None = None) -> list[str]:
        """Return the lines that a terminal and a log get, a dozen at most.

        Args:
            exit_code: the command's.
            meaning: what it says of what was written, and of another try.
            details: where everything is; None where there is no more.
        """
        lines = _folded(HEADING, self.what, _LONG)
        parts = ((_WHERE, self.where, _SHORT), (_WHY, self.why, _LONG), (_DO, self.remedy, _SHORT))
        for label, text, most in parts:
            lines += _folded(f"  {label}", text, most) if text else []
        lines.append(f"  {_CODE}{exit_code}: {meaning}")
        return lines if details is None else [*lines, f"  {_DETAILS}{details}"]


def headed(condition: str, reason: str, beneath: str, *, has_words: bool) -> str:
    """Return what has failed, after the name of its error where that is not said anyway.

    Args:
        condition: Spark's name of the error, or its type.
        reason: what it says.
        beneath: what the error beneath it says.
        has_words: whether *reason* is in words of ours, which need no name of Spark's.
    """
    is_said = condition in reason or (has_words and (condition.isupper() or condition in beneath))
    is_name = condition[:1].isalpha()  # Spark's legacy ones are numbers
    return f"{condition}: {reason}" if is_name and not is_said else reason


def safe_text(text: str) -> str:
    """Return what an error says without secret parameters, and credentials of addresses."""
    return without_credentials(redact(encodable(text)))


def encodable(text: str) -> str:
    """Return a text that every terminal, log and answer can encode.

    The name of a file need not be Unicode: Python has single surrogates for its other bytes, and
    JSON keeps them, but UTF-8 does not.
    """
    return text.encode("utf-8", "replace").decode()


def without_package(text: str) -> str:
    """Return what an error says, with the type's own name alone."""
    return _PACKAGE.sub("", text)


class Screen(NamedTuple):
    """The parts of a screen in a log, each in one line; empty for those that it does not have.

    Attributes:
        meaning: what its exit code says: the failure's class, if it has one, comes first.
    """

    what: str
    where: str
    why: str
    remedy: str
    meaning: str


def line_in(log: Sequence[str]) -> str | None:
    """Return the line of the last screen in a log; None when there is no whole one."""
    screen = screen_in(log)
    if screen is None:
        return None
    return _join(screen.what, screen.where, screen.why, screen.remedy)


def screen_lines(log: Sequence[str]) -> list[str]:
    """Return the lines of the last screen in a log, without all others; empty without one."""
    starts = [number for number, line in enumerate(log) if HEADING in line]
    if not starts:
        return []
    first = log[starts[-1]]
    others = (_MORE, *(f"  {each}" for each in _LABELS))
    rest = itertools.takewhile(lambda line: line.startswith(others), log[starts[-1] + 1 :])
    return [first[first.index(HEADING) :], *rest]


def screen_in(log: Sequence[str]) -> Screen | None:
    """Return the parts of the last screen in a log; None when there is no whole one."""
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
    """Return a text as lines of the screen, and cut what is longer than people read."""
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
