"""Values of partition columns: read from the log's texts, and compared with ``where=``. Pure."""

from __future__ import annotations

import datetime as dt
import operator
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.api.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BOOLEANS: Final = {"true": True, "false": False}
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_LISTS: Final = frozenset({"in", "not in"})
OPERATORS: Final = (*_COMPARISONS, *sorted(_LISTS))
"""What a condition of ``where=`` compares by."""


class Condition(NamedTuple):
    """One condition of ``where=``; values are texts as in Delta's log, None is null."""

    column: str
    operator: str
    value: str | tuple[str | None, ...] | None


def is_partition_type(kind: Any) -> bool:
    """Whether values of a Delta type are read exactly from the texts of the log."""
    return isinstance(kind, str) and (kind in _READERS or kind.startswith("decimal("))


def read_value(text: str | None, kind: str) -> Any:
    """Return the value that a text of the log stands for; a time without zone is in UTC.

    Raises:
        ValueError: the text is not of the Delta type *kind*.
    """
    if not text:  # Delta writes null as an empty text, too
        return None
    if not is_partition_type(kind):
        raise ValueError(f"partitions of the type {kind} are not read: their texts are not exact")
    if kind.startswith("decimal("):
        return _decimal(text)
    return _READERS[kind](text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError(f"{text!r} is neither true nor false")
    return _BOOLEANS[text.lower()]


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is not a decimal") from error


def _local_time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(_micros(text.replace("Z", "+00:00"))).replace(tzinfo=None)


def _instant(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(_micros(text.replace("Z", "+00:00")))
    return moment.replace(tzinfo=moment.tzinfo or dt.timezone.utc).astimezone(dt.timezone.utc)


def _micros(text: str) -> str:
    """Return the text of a time with six digits after the point: Python 3.10 reads no others."""
    before, point, after = text.partition(".")
    digits = after[: len(after) - len(after.lstrip("0123456789"))]
    return f"{before}.{digits:0<6}{after[len(digits) :]}" if point else text


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "string": str,
    "boolean": _boolean,
    "date": dt.date.fromisoformat,
    "timestamp": _instant,
    "timestamp_ntz": _local_time,
}


def as_text(value: Any) -> str | None:
    """Return a value of ``where=`` as the log would have it."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dt.date):  # and datetime
        return value.isoformat()
    return str(value)


def parse_conditions(where: Sequence[Any]) -> tuple[Condition, ...]:
    """Read ``where=``.

    Raises:
        ConfigError: a condition is not ``(column, operator, value)``, or its operator is unknown.
    """
    found = []
    for each in where:
        is_triple = isinstance(each, list | tuple) and len(each) == len(Condition._fields)
        if not is_triple or not isinstance(each[0], str) or each[1] not in OPERATORS:
            raise ConfigError(
                f"where: {each!r} is not a condition; write (column, operator, value) with an "
                f"operator of {', '.join(OPERATORS)}"
            )
        found.append(Condition(each[0], each[1], _value_of(*each)))
    return tuple(found)


def _value_of(column: str, comparison: str, value: Any) -> str | tuple[str | None, ...] | None:
    is_many = isinstance(value, list | tuple | set | frozenset)
    if is_many != (comparison in _LISTS):
        needs = "a list of values" if comparison in _LISTS else "one value"
        raise ConfigError(f"where: {column!r} {comparison}: {needs} is needed")
    if is_many:
        return tuple(sorted(map(as_text, value), key=lambda text: (text is not None, text or "")))
    if value is None and comparison not in {"=", "!="}:
        raise ConfigError(f"where: {column!r} {comparison}: null compares by = and != only")
    return as_text(value)


class PartitionFilter:
    """The files that ``where=`` selects, by their partition."""

    def __init__(self, conditions: Sequence[Condition], types: Mapping[str, str]) -> None:
        """Read the values by the types of the table's partition columns.

        Raises:
            ConfigError: a column does not partition the table, a value is not of its type, or
                the table is partitioned by a type whose texts are not exact.
        """
        for column, kind in types.items():
            if not is_partition_type(kind):
                raise ConfigError(
                    f"the table is partitioned by {column!r} of the type {kind}, whose texts in the"
                    " log are not exact; read it with Delta's own connector"
                )
        self._tests = [(each, self._parsed(each, types)) for each in conditions]

    def selects(self, partition: Mapping[str, Any]) -> bool:
        """Whether files of *partition* are read; null meets no comparison with a value.

        Raises:
            ConfigError: the file was added when the table had other partition columns.
        """
        for each, _ in self._tests:
            if each.column not in partition:
                raise ConfigError(
                    f"where: a file was added when {each.column!r} did not partition the table; "
                    "filter in the query, or start from a later version"
                )
        return all(
            _holds(partition.get(each.column), each.operator, wanted)
            for each, wanted in self._tests
        )

    def _parsed(self, condition: Condition, types: Mapping[str, str]) -> Any:
        kind = types.get(condition.column)
        if kind is None:
            known = ", ".join(types) or "no column"
            raise ConfigError(
                f"where: {condition.column!r} does not partition the table, which is partitioned "
                f"by {known}; filter other columns in the query"
            )
        try:
            if isinstance(condition.value, tuple):
                return [read_value(text, kind) for text in condition.value]
            return read_value(condition.value, kind)
        except ValueError as error:
            raise ConfigError(f"where: {condition.column!r} is {kind}: {error}") from error


def _holds(value: Any, comparison: str, wanted: Any) -> bool:
    if comparison == "in":
        return value in wanted
    if comparison == "not in":
        return value is not None and value not in wanted
    if wanted is None:
        return (value is None) == (comparison == "=")
    return value is not None and bool(_COMPARISONS[comparison](value, wanted))
