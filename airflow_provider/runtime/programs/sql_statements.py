"""Statements of a file of SQL, with the lines in which they begin; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What may hold a semicolon that ends nothing; the first that matches counts.
_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `(?:``|[^`])*` | ; | .""",
    re.DOTALL | re.VERBOSE,
)
_COMMENTS: Final = ("--", "/*")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Statement(NamedTuple):
    """One statement.

    Attributes:
        line: of the file in which its first word is.
        text: without comments, and without the semicolon.
    """

    line: int
    text: str


def split_statements(text: str) -> list[Statement]:
    """Return the statements of a file; what only comments is none."""
    found: list[Statement] = []
    parts: list[str] = []
    begun, line = 0, 1
    for part in (match[0] for match in _TOKEN.finditer(text)):
        if part == ";":
            found += _statement(begun, parts)
            begun, parts = 0, []
        else:
            blank = part.startswith(_COMMENTS) or part.isspace()
            if not blank and not begun:
                begun = line
            # Lines stay what they are: Spark's errors name them.
            parts.append("\n" * part.count("\n") or " " if blank and part[0] in "-/" else part)
        line += part.count("\n")
    return [*found, *_statement(begun, parts)]


def _statement(line: int, parts: list[str]) -> Iterator[Statement]:
    text = "".join(parts).strip()
    if text:
        yield Statement(line, text)


def fill(text: str, params: Mapping[str, object]) -> str:
    """Return a statement with the parameters of its run, which it names as ``${name}``.

    Spark replaces such names as well, by settings of whichever session a thread has last used.

    Raises:
        ConfigError: a parameter is not given, if *params* say so.
    """
    return _VARIABLE.sub(lambda match: str(params[match[1]]), text)
