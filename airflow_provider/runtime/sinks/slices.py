"""Slices: the part of a table that a run replaces, as bounds of its columns. Pure.

A slice is written as SQL: comparisons of columns with literals, joined by AND, such as
``day = DATE '2026-01-02'`` or ``at >= TIMESTAMP '2026-01-02T00:00:00Z' AND at < …``. Because it
bounds columns one by one, the statistics of a data file tell whether all of its rows are inside,
none, or some; a row with a null in one of these columns is outside, as in a WHERE clause.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from airflow_provider.runtime.errors import ConfigError, RefusedRowsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from airflow_provider.runtime.api.sinks import Committable

Value: TypeAlias = "bool | int | str | dt.date | dt.datetime"

_INTEGERS: Final = frozenset({"byte", "short", "integer", "long"})
_TYPES: Final = _INTEGERS | {"boolean", "date", "string", "timestamp", "timestamp_ntz"}
_TOKEN: Final = re.compile(
    r"""\s*(?:
    (?P<literal>(?:(?P<kind>DATE|TIMESTAMP)\s*)?'(?P<text>[^'\\]*)')
    |(?P<number>-?\d+)(?![\w.])
    |(?P<operator><=|>=|=|<|>)
    |(?P<word>[A-Za-z_]\w*)
    |`(?P<quoted>[^`]+)`
    )""",
    re.VERBOSE | re.IGNORECASE,
)
_FORM: Final = (
    "write comparisons of columns with literals, joined by AND, such as "
    '"day = DATE \'2026-01-02\'" or "hour >= 3 AND hour < 6"'
)


class Relation(enum.Enum):
    """How many rows of a file are inside a slice."""

    ALL = "all"
    NONE = "none"
    SOME = "some"  # or unknown


class ColumnRange(NamedTuple):
    """What is known of a column's values in a file.

    Attributes:
        low: no value is lower; None if unknown.
        high: no value is higher; None if unknown.
        nulls: the number of nulls; None if unknown.
        rows: the number of rows; None if unknown.
    """

    low: Value | None
    high: Value | None
    nulls: int | None
    rows: int | None


@dataclasses.dataclass(frozen=True)
class Bound:
    """One end of an interval."""

    value: Value
    is_inside: bool


@dataclasses.dataclass(frozen=True)
class Bounds:
    """An interval of one column's values; an end that is None has no bound."""

    low: Bound | None = None
    high: Bound | None = None

    def relation(self, column: ColumnRange) -> Relation:
        if column.rows is not None and column.nulls is not None and column.nulls >= column.rows:
            return Relation.NONE
        if column.low is None or column.high is None:
            return Relation.SOME
        if self._is_below(column.high) or self._is_above(column.low):
            return Relation.NONE
        is_all = not self._is_below(column.low) and not self._is_above(column.high)
        return Relation.ALL if is_all and column.nulls == 0 else Relation.SOME

    def is_empty(self) -> bool:
        """Whether no value is inside."""
        if self.low is None or self.high is None:
            return False
        low, high = self.low, self.high
        return low.value > high.value or (  # type: ignore[operator]  # one column's, so comparable
            low.value == high.value and not (low.is_inside and high.is_inside)
        )

    def narrowed(self, operator: str, value: Value) -> Bounds:
        """Return the values of this interval that also compare so with *value*."""
        low, high = self.low, self.high
        bound = Bound(value, operator in {"=", ">=", "<="})
        if operator in {"=", ">", ">="} and (low is None or _is_tighter(bound, low, sign=1)):
            low = bound
        if operator in {"=", "<", "<="} and (high is None or _is_tighter(bound, high, sign=-1)):
            high = bound
        return Bounds(low, high)

    def comparisons(self) -> Iterator[tuple[str, Value]]:
        """Yield the operators and values that say the same, at most two."""
        if self.low is not None:
            yield (">=" if self.low.is_inside else ">"), self.low.value
        if self.high is not None:
            yield ("<=" if self.high.is_inside else "<"), self.high.value

    def _is_below(self, value: Any) -> bool:
        low = self.low
        return low is not None and (value < low.value or (value == low.value and not low.is_inside))

    def _is_above(self, value: Any) -> bool:
        high = self.high
        return high is not None and (
            value > high.value or (value == high.value and not high.is_inside)
        )


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of a table.

    Attributes:
        text: as the job wrote it.
        bounds: the interval of each column that it names.
    """

    text: str
    bounds: Mapping[str, Bounds]

    def relation(self, columns: Mapping[str, ColumnRange]) -> Relation:
        """Return how many rows of a file are inside; a column that is missing is unknown."""
        unknown = ColumnRange(None, None, None, None)
        found = {
            bounds.relation(columns.get(name, unknown)) for name, bounds in self.bounds.items()
        }
        if Relation.NONE in found:
            return Relation.NONE
        return Relation.SOME if Relation.SOME in found else Relation.ALL

    def mask(self, rows: pa.RecordBatch, skipped: frozenset[str] = frozenset()) -> pa.Array:
        """Return whether each row is inside, never null; columns *skipped* are taken for inside."""
        import pyarrow as pa
        import pyarrow.compute as pc

        compared = {
            ">=": pc.greater_equal,
            ">": pc.greater,
            "<=": pc.less_equal,
            "<": pc.less,
        }
        inside = pa.array([True] * rows.num_rows, pa.bool_())
        for name in self.bounds.keys() - skipped:
            column = rows.column(name)
            for operator, value in self.bounds[name].comparisons():
                found = compared[operator](column, pa.scalar(value, column.type))
                inside = pc.and_(inside, pc.fill_null(found, False))  # noqa: FBT003 - Arrow's form
        return inside


def rows_outside(name: str, rows: int, part: Slice, staged: str = "") -> RefusedRowsError:
    """Return the error of *rows* outside of the slice that their run replaces, *staged* there."""
    where = f"; they are staged in {staged}" if staged else ""
    return RefusedRowsError(
        f"{name}: {rows:,} rows are not in the slice that the run replaces, {part.text}; nothing "
        f"is published. Filter them out, or widen the slice{where}"
    )


def will_replace(replace: str | None, committables: Iterable[Committable]) -> bool:
    """Whether a sink with *replace* replaces all rows of *committables*: they have its slice."""
    return replace is not None and all(c.data.get("slice") == replace for c in committables)


def count_inside(mask: pa.Array) -> int:
    """Return the number of rows that a mask of :meth:`Slice.mask` has inside."""
    import pyarrow.compute as pc

    return int(pc.sum(mask, min_count=0).as_py())


def parse_slice(text: str, types: Mapping[str, Any], name: str) -> Slice:
    """Read a slice.

    Args:
        text: SQL, see the module.
        types: Spark's names of the types of the table's columns.
        name: of the sink, for errors.

    Raises:
        ConfigError: it is not of this form, or names what the table lacks.
    """
    where = f"{name}: replace={text!r}"
    bounds: dict[str, Bounds] = {}
    for column, operator, literal in _comparisons(text, where):
        if column not in types:
            known = ", ".join(sorted(types))
            raise ConfigError(f"{where}: there is no column {column!r}; the columns are {known}")
        kind = types[column]
        if not isinstance(kind, str) or kind not in _TYPES:
            shown = kind if isinstance(kind, str) else kind.get("type")
            raise ConfigError(
                f"{where}: column {column!r} of type {shown} cannot bound a slice; use one of "
                f"{', '.join(sorted(_TYPES))}"
            )
        value = _typed(literal, kind, f"{where}: column {column!r}")
        bounds[column] = bounds.get(column, Bounds()).narrowed(operator, value)
    if empty := [column for column, interval in bounds.items() if interval.is_empty()]:
        raise ConfigError(f"{where}: no value of column {empty[0]!r} can be in it")
    return Slice(text, bounds)


class _Literal(NamedTuple):
    kind: str  # "DATE", "TIMESTAMP", "TEXT", "NUMBER" or "BOOLEAN"
    text: str


def _comparisons(text: str, where: str) -> Iterator[tuple[str, str, _Literal]]:
    tokens = _tokens(text, where)
    if len(tokens) % 4 != 3:  # noqa: PLR2004 - three tokens, and an AND between them
        raise ConfigError(f"{where}: {_FORM}")
    for begin in range(0, len(tokens), 4):
        column, operator, literal = tokens[begin : begin + 3]
        joined = tokens[begin + 3] if begin + 3 < len(tokens) else ("word", "AND")
        is_joined = joined[0] == "word" and str(joined[1]).upper() == "AND"
        if not is_joined or column[0] not in {"word", "quoted"} or operator[0] != "operator":
            raise ConfigError(f"{where}: {_FORM}")
        found = literal[1]
        if literal[0] == "word" and str(found).upper() in {"TRUE", "FALSE"}:
            found = _Literal("BOOLEAN", str(found).upper())
        if not isinstance(found, _Literal):
            raise ConfigError(f"{where}: {_FORM}")
        yield str(column[1]), str(operator[1]), found


def _tokens(text: str, where: str) -> list[tuple[str, str | _Literal]]:
    tokens: list[tuple[str, str | _Literal]] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConfigError(f"{where}: {text[position:].strip()[:20]!r} is not read; {_FORM}")
        position = match.end()
        if match["literal"] is not None:
            kind = (match["kind"] or "TEXT").upper()
            tokens.append(("literal", _Literal(kind, match["text"])))
        elif match["number"] is not None:
            tokens.append(("literal", _Literal("NUMBER", match["number"])))
        else:
            kind = next(k for k in ("operator", "word", "quoted") if match[k] is not None)
            tokens.append((kind, match[kind]))
    return tokens


def _typed(literal: _Literal, kind: str, where: str) -> Value:
    """Return the value of a literal as a column of this type has it."""
    fits = {
        "date": {"DATE", "TEXT"},
        "timestamp": {"TIMESTAMP", "TEXT"},
        "timestamp_ntz": {"TIMESTAMP", "TEXT"},
        "string": {"TEXT"},
        "boolean": {"BOOLEAN"},
    }.get(kind, {"NUMBER"})
    if literal.kind not in fits:
        shown = literal.text if literal.kind in {"NUMBER", "BOOLEAN"} else f"'{literal.text}'"
        raise ConfigError(f"{where} is of type {kind}, which {shown} is not")
    if literal.kind == "NUMBER":
        return int(literal.text)
    if literal.kind == "BOOLEAN":
        return literal.text == "TRUE"
    return literal.text if kind == "string" else _time(literal.text, kind, where)


def _time(text: str, kind: str, where: str) -> dt.date:
    try:
        if kind == "date":
            return dt.date.fromisoformat(text)
        time = dt.datetime.fromisoformat(re.sub(r"[zZ]$", "+00:00", text))
    except ValueError:
        raise ConfigError(f"{where} is of type {kind}, which {text!r} is not") from None
    if kind == "timestamp" and time.tzinfo is None:
        raise ConfigError(
            f"{where} is a moment, and {text!r} has no time zone; write it with Z or with an "
            "offset such as +01:00"
        )
    if kind == "timestamp_ntz" and time.tzinfo is not None:
        raise ConfigError(f"{where} has no time zone, and {text!r} has one; leave it out")
    return time.astimezone(dt.timezone.utc) if time.tzinfo is not None else time


def _is_tighter(bound: Bound, other: Bound, *, sign: int) -> bool:
    if bound.value == other.value:
        return not bound.is_inside
    return (bound.value > other.value) == (sign > 0)  # type: ignore[operator]  # as in is_empty
