"""Decisions about the options of Spark's sources, and about its settings of files and streams.

Spark's own options can leave input out, read it twice or change it. ``options.txt`` has a decision
for each of them, with the versions of Spark that have it. scripts/spark_options.py takes the names
from Spark's jars, and makes docs/spark-options.md of the table.

A section ``[csv]`` has the options of a source, ``[spark.sql.files]`` settings, and a line that
begins with ``>`` is text for the page. The other lines are rows: name, versions, decisions, reason
and fix, with bars between them. Semicolons separate decisions:

``passed``
    Spark gets the value. A reason says how the option can leave out, double or change input.
``pinned``
    The first run of a job decides the value for all later ones.
``lifted VALUE``
    This package sets another default.
``counted VALUE``
    Rows that are left out with this value are counted.
``warned VALUE``
    Rows that are left out with this value are not counted, and the log says so.
``refused VALUE…``, ``refused VALUE… unless OPTION…``
    These values are an error, unless one of the options is given, too.
``only VALUE…``
    All other values are an error.

A value ``*`` is any value.
"""

from __future__ import annotations

import enum
import functools
import importlib.resources
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import set_conf

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

log = logging.getLogger(__name__)

TABLE: Final = "options.txt"
SETTINGS: Final = "spark."
"""Beginning of the names of settings, and of the sections that have them."""
_SECTIONS_OF: Final[Mapping[str, Sequence[str]]] = {
    "csv": ("records", "files"),
    "json": ("records", "files"),
    "xml": ("records", "files"),
    **dict.fromkeys(("text", "parquet", "orc", "avro", "binaryfile"), ("files",)),
}
"""The sections that a format has besides its own."""
_ANY: Final = "*"


class Decision(enum.Enum):
    """The treatment of an option or a setting."""

    PASSED = "passed"
    PINNED = "pinned"
    LIFTED = "lifted"
    COUNTED = "counted"
    WARNED = "warned"
    REFUSED = "refused"
    ONLY = "only"
    UNDECIDED = "undecided"


class Rule(NamedTuple):
    """A decision about some values of an option.

    Attributes:
        decision: the treatment of these values.
        values: as the documentation spells them.
        unless: options beside which these values are harmless.
    """

    decision: Decision
    values: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()

    def applies(self, value: object, given: Mapping[str, str]) -> bool:
        """Whether the value is meant; *given* are all options of the reader, in lower case."""
        lowered = {each.lower() for each in self.values}
        is_meant = _ANY in lowered or str(value).lower() in lowered
        return is_meant and all(given.get(each.lower(), "false") == "false" for each in self.unless)


class Row(NamedTuple):
    """An option or a setting, and the decisions about it.

    Attributes:
        name: as Spark's documentation spells it.
        versions: of Spark that have it: ``3.5-``, or ``3.5-4.0``.
        rules: the decisions.
        reason: a sentence, without its full stop; empty if the option is harmless.
        fix: a clause that says what to do instead.
    """

    name: str
    versions: str
    rules: tuple[Rule, ...]
    reason: str
    fix: str

    @property
    def is_setting(self) -> bool:
        return self.name.startswith(SETTINGS)

    def refuses(self, value: object, given: Mapping[str, str] | None = None) -> bool:
        """Whether the value is an error, beside the other options of the same reader."""
        return any(
            rule.applies(value, given or {}) is (rule.decision is Decision.REFUSED)
            for rule in self.rules
            if rule.decision in {Decision.REFUSED, Decision.ONLY}
        )

    def warns(self, value: object) -> bool:
        """Whether the log names the value."""
        return any(r.decision is Decision.WARNED and r.applies(value, {}) for r in self.rules)


class Section(NamedTuple):
    """The options of a source, or settings whose names begin alike."""

    name: str
    notes: list[str]
    rows: dict[str, Row]


def parse_table(text: str) -> dict[str, Section]:
    """Return the sections of a table by name; the rows in them by name in lower case."""
    found: list[Section] = []
    for line in text.splitlines():
        if line.startswith("["):
            found.append(Section(line.strip("[]"), [], {}))
        elif line.startswith(">"):
            found[-1].notes.append(line[1:].strip())
        elif line and not line.startswith("#"):
            row = _row(line)
            found[-1].rows[row.name.lower()] = row
    return {section.name: section for section in found}


def _row(line: str) -> Row:
    name, versions, decided, *rest = (part.strip() for part in line.split(" | "))
    reason, fix, *_ = (*rest, "", "")
    return Row(name, versions, tuple(map(_rule, decided.split(";"))), reason, fix)


def _rule(text: str) -> Rule:
    decided, _, unless = text.strip().partition(" unless ")
    word, *values = decided.split()
    return Rule(Decision(word), tuple(values), tuple(unless.split()))


@functools.cache
def sections() -> dict[str, Section]:
    """Return the table."""
    return parse_table(importlib.resources.files(__package__).joinpath(TABLE).read_text("utf-8"))


def rows_of(source_format: str) -> dict[str, Row]:
    """Return the options of a format by name in lower case; none for a format of others."""
    kind = source_format.lower()
    names = (*_SECTIONS_OF.get(kind, ()), kind)
    own = {name.lower(): section for name, section in sections().items()}
    return {key: row for name in names if name in own for key, row in own[name].rows.items()}


def option_names() -> frozenset[str]:
    """Return the names of all options of Spark's sources."""
    rows = (row for section in sections().values() for row in section.rows.values())
    return frozenset(row.name for row in rows if not row.is_setting)


def refused_options(source_format: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each option that is refused: the option, the reason and the fix."""
    rows, given = rows_of(source_format), _lowered(options)
    for name, value in options.items():
        row = rows.get(name.lower())
        if row is not None and row.refuses(value, given):
            yield f"option {row.name}={value}: {row.reason}; {row.fix}"


def warned_options(source_format: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a text for each option whose value leaves out rows that are not counted."""
    rows = rows_of(source_format)
    for name, value in options.items():
        row = rows.get(name.lower())
        if row is not None and row.warns(value):
            yield f"option {row.name}={value}: {row.reason}"


def _lowered(options: Mapping[str, Any]) -> dict[str, str]:
    return {name.lower(): str(value).lower() for name, value in options.items()}


# --- settings -----------------------------------------------------------------------------------


def check_settings(settings: Mapping[str, str], named: str) -> None:
    """Refuse values of settings; *named* says where they are given, such as ``--conf``.

    Raises:
        ConfigError: with one of them Spark leaves out, doubles or changes input.
    """
    for row in _refusing():
        value = settings.get(row.name)
        if value is not None and row.refuses(value):
            raise ConfigError(f"{named} {row.name}={value}: {row.reason}; {row.fix}")


class Conf(Protocol):
    """The settings of a session."""

    def get(self, key: str, default: None, /) -> str | None:
        """Return the value of a setting, or *default* if Spark does not know it."""


def check_session(conf: Conf) -> None:
    """Refuse values of settings wherever they come from: a file of Spark's, or the job itself.

    Raises:
        ConfigError: see :func:`check_settings`.
    """
    for row in _refusing():
        value = conf.get(row.name, None)
        if value is not None and row.refuses(value):
            other = set_conf(row.name, "false" if value.lower() == "true" else "true")
            raise ConfigError(
                f"{row.name}={value}: {row.reason}; {row.fix}: remove it from the job, or from "
                f"spark-defaults.conf, which {other} overrides"
            )


@functools.cache
def _refusing() -> tuple[Row, ...]:
    rows = (row for section in sections().values() for row in section.rows.values())
    return tuple(
        row
        for row in rows
        if row.is_setting and any(rule.decision is Decision.REFUSED for rule in row.rules)
    )
