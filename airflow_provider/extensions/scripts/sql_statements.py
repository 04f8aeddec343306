"""Statements of a file of SQL, with the lines in which they begin; pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.ways_out import set_conf, set_param

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# What may hold a semicolon that ends nothing, and words; the first that matches counts.
_TOKEN: Final = re.compile(
    r"""--[^\n]* | /\*.*?\*/ | '(?:\\.|[^'\\])*' | "(?:\\.|[^"\\])*" | `(?:``|[^`])*`
    | \$\{[^}]*\} | \w+ | .""",
    re.DOTALL | re.VERBOSE,
)
_COMMENTS: Final = ("--", "/*")
_NAME: Final = "[A-Za-z_][A-Za-z0-9_]*"
# A parameter's, or one of Spark's own, such as ${env:HOME}.
_VARIABLE: Final = re.compile(rf"\$\{{({_NAME}(?::[^}}]*)?)\}}")
_MARKER: Final = re.compile(rf"(?<![\w:\])']):({_NAME})")
_UNSAFE: Final = re.compile(r"""['"`\\\x00-\x1f]|\$\{""")
_OPTIONS: Final = frozenset({"OPTIONS", "WITH", "TBLPROPERTIES"})
_SET: Final = re.compile(r"SET\b", re.IGNORECASE)
_VIEW: Final = re.compile(r"CREATE\s+(\w+\s+)*?VIEW\b", re.IGNORECASE)


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


class ParameterError(ConfigError):
    """A statement names a parameter where none can stand.

    Args:
        message: what is wrong, and the way out.
        line: of the statement, from 0.
    """

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def fill(text: str, params: Mapping[str, object]) -> str:
    """Return a statement with the parameters that stand in paths and identifiers, as ``${name}``.

    A path stands in the quotes of an option or of ``LOCATION``, an identifier in backticks. A value
    is a marker, ``:name``, which Spark binds: it never becomes a part of the statement's text.

    Args:
        text: the statement, without comments.
        params: the run's parameters.

    Raises:
        ParameterError: a name stands elsewhere, or a value has a quote in it.
        ConfigError: a parameter is not given, if *params* say so.
    """
    parts: list[str] = []
    is_set = _SET.match(text) is not None
    before, depth = "", 0  # of the parentheses of OPTIONS (…), WITH (…)
    for match in _TOKEN.finditer(text):
        part = match[0]
        is_option = depth > 0 or before.upper() == "LOCATION"
        is_place = part[0] == "`" or (part[0] in "'\"" and is_option)
        for found in _VARIABLE.finditer(part):
            line = text.count("\n", 0, match.start() + found.start())
            if is_set or not is_place:
                raise ParameterError(_way_out(found[1], is_set=is_set), line)
            _check_value(found[1], params[found[1]], line)
        parts.append(_VARIABLE.sub(lambda found: str(params[found[1]]), part))
        if part == "(" and (depth or before.upper() in _OPTIONS):
            depth += 1
        depth -= part == ")" and depth > 0
        before = before if part.isspace() else part
    return "".join(parts)


def _way_out(name: str, *, is_set: bool) -> str:
    text = f"${{{name}}}"
    if ":" in name:
        return (
            f"{text}: variables of Spark are not replaced here; {set_param('NAME')}, and write "
            ":NAME for the value"
        )
    if is_set:
        return f"{text}: SET takes no parameter; use {set_conf('KEY', 'VALUE')}"
    return (
        f"{text} is a path, in the quotes of an option, or an identifier in backticks; for a value "
        f"write :{name}, without quotes"
    )


def _check_value(name: str, value: object, line: int) -> None:
    """Refuse a value that could end the quotes in which it stands, or be replaced again."""
    if not isinstance(value, str | int | float):
        kind = type(value).__name__
        msg = f"${{{name}}}: a path or an identifier is text, and the parameter is a {kind}"
        raise ParameterError(msg, line)
    found = _UNSAFE.search(str(value))
    if found is not None:
        msg = (
            f"${{{name}}}: the parameter has {found[0]!r} in it, which a path or an identifier "
            f"here cannot have; choose another one"
        )
        raise ParameterError(msg, line)


def markers(text: str) -> list[str]:
    """Return the names of a statement's markers, ``:name``; a cast, ``::``, is none."""
    code = "".join(m[0] if m[0][0] not in "'\"`" else "''" for m in _TOKEN.finditer(text))
    return list(dict.fromkeys(_MARKER.findall(code)))


def split_view(text: str) -> tuple[str, str | None]:
    """Return a statement that makes a view in two parts: up to its ``AS``, and its query.

    Spark does not parse a view whose query has markers, and parses that query alone.

    Returns:
        The whole statement and None where it makes no view of a query.
    """
    if not _VIEW.match(text):
        return text, None
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        if depth == 0 and match[0].upper() == "AS":
            return text[: match.end()], text[match.end() :]
    return text, None
