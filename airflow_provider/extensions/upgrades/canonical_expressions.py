"""Canonical text of Spark's expressions: the same for the same, whatever their ids; pure."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.operators import type_text
from airflow_provider.runtime.queries.plan_tree import id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from airflow_provider.runtime.queries.plan_tree import Node, Values

    Text = Callable[["Node"], str]

_MOST_CHARS: Final = 400
"""A column that is used twice in each of many steps has a text that doubles with every step."""

_BETWEEN: Final = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "Remainder": "%",
    "EqualTo": "=",
    "EqualNullSafe": "<=>",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "And": "and",
    "Or": "or",
}
_AFTER: Final = {"IsNull": "is null", "IsNotNull": "is not null"}
# They change a type's nullability, a name or a precision for Spark alone.
_TRANSPARENT: Final = frozenset(
    {"Alias", "KnownNullable", "KnownNotNull", "KnownFloatingPointNormalized"}
)
_NOISE: Final = frozenset(
    [
        "class",
        "num-children",
        "nullable",
        "metadata",
        "exprId",
        "qualifier",
        "resultId",
        "timeZoneId",
        "evalMode",
        "evalContext",
        "failOnError",
        "ansiEnabled",
        "explicitMetadata",
        "nonInheritableMetadataKeys",
        "evalType",
        "func",
        "udfDeterministic",
        "randomSeed",
    ]
)
_UNITS: Final = (
    ("day", 86_400_000_000),
    ("hour", 3_600_000_000),
    ("minute", 60_000_000),
    ("second", 1_000_000),
    ("millisecond", 1000),
    ("microsecond", 1),
)
# Of a slice of data: each run of a job has its own, and continues with the state of the last.
_MOMENTS: Final = frozenset({"timestamp", "timestamp_ntz", "date"})
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?)?(Z|[+-]\d\d:?\d\d)?")
_TO_MOMENT: Final = "PreciseTimestampConversion"
_ADDS_GAP: Final = frozenset({"TimeAdd", "TimestampAddInterval"})


def canonical(node: Node, columns: Mapping[int, str]) -> str:
    """Return an expression's text; a column whose id is not in *columns* keeps its name."""
    if node.kind == "AttributeReference":
        return columns.get(id_of(node.values), str(node.values["name"]))

    def text(child: Node) -> str:
        return canonical(child, columns)

    return _shortened(_special(node, text) or _call(node, text))


def _shortened(text: str) -> str:
    if len(text) <= _MOST_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{text[: _MOST_CHARS // 2]}… ({digest})"


def _special(node: Node, text: Text) -> str | None:
    kind, values, children = node
    if kind in _TRANSPARENT:
        return text(children[0])
    if kind in _BETWEEN and len(children) == 2:  # noqa: PLR2004 - what stands between two
        return f"({text(children[0])} {_BETWEEN[kind]} {text(children[1])})"
    if kind in _AFTER:
        return f"({text(children[0])} {_AFTER[kind]})"
    if kind == "Cast":
        inner = text(children[0])
        is_number = children[0].kind == "Literal"  # Spark gives it the type of the other side
        return inner if is_number else f"cast({inner} as {type_text(values['dataType'])})"
    write = _WRITERS.get(kind)
    return write(node, text) if write is not None else None


def _literal(node: Node, _: Text) -> str:
    values = node.values
    value = values["value"]
    if value is None:
        return "null"
    if values["dataType"] == "binary":
        return "<binary>"  # Spark writes the array's address in its memory
    if values["dataType"] in _MOMENTS or _MOMENT.fullmatch(str(value)):
        return "<time>"
    return repr(str(value)) if values["dataType"] == "string" else str(value)


def _random(node: Node, _: Text) -> str:
    """Return a random number without its seed, which differs at each start."""
    return f"{node.kind.lower()}()"


def _aggregate(node: Node, text: Text) -> str:
    function, *filters = node.children
    distinct = "distinct " if node.values.get("isDistinct") else ""
    where = f" where {text(filters[0])}" if filters else ""
    return f"{distinct}{text(function)}{where}"


def _field(node: Node, text: Text) -> str:
    (struct,), location = node.children, node.values["ordinal"]
    name = node.values.get("name")
    if name is None and isinstance(kind := struct.values.get("dataType"), dict):  # of ``struct.*``
        name = kind["fields"][location]["name"]
    return f"{text(struct)}.{name or location}"


def _call(node: Node, text: Text) -> str:
    kind, values, children = node
    name = str(values.get("name") or "") if kind.endswith(("UDF", "UDAF")) else ""
    more = [] if name else [f"{key}={value}" for key, value in _settings(values)]
    return f"{name or kind.lower()}({', '.join([*map(text, children), *more])})"


def _settings(values: Values) -> Iterator[tuple[str, str]]:
    children = values["num-children"]
    for key, value in values.items():
        if key in _NOISE or key.endswith("Offset") or value is None:
            continue
        if key == "dataType":
            yield key, type_text(value)
        elif isinstance(value, bool):
            yield key, str(value).lower()
        elif isinstance(value, (str, float)) or (isinstance(value, int) and value >= children):
            yield key, str(value)


# --- windows --------------------------------------------------------------------------------------


def _window(node: Node, text: Text) -> str | None:
    """Return a window as the job wrote it; None for any other struct.

    Spark's analysis has made arithmetic of it: ``start = t - (t - offset) % slide``,
    ``end = start + duration``. A session is ``start = t``, ``end = t + gap``.
    """
    children = node.children
    if [each.values.get("value") for each in children[::2]] != ["start", "end"]:
        return None
    start, end = (_unwrapped(each) for each in children[1::2])
    if start.kind == "Subtract" and end.kind == "Add":
        return _window_by_time(start, end, text)
    gap = next((node for node in end.within() if node.kind in _ADDS_GAP), None)
    if gap is None:
        return None
    length = next((n for n in gap.children[1].within() if n.kind == "Literal"), None)
    by = str(length.values["value"]) if length is not None else text(gap.children[1])
    return f"session_window({text(gap.children[0])}, {by})"


def _moment(node: Node, text: Text) -> str | None:
    earlier = node.children[0]
    if earlier.kind != "Subtract" or earlier.children[1].values.get("value") != "1":
        return None
    end = _unwrapped(earlier.children[0])
    return f"window_time({text(end.children[0])})" if end.kind == "GetStructField" else None


def _unwrapped(node: Node) -> Node:
    while node.kind in {*_TRANSPARENT, _TO_MOMENT, "Cast"} and node.children:
        node = node.children[0]
    return node


def _window_by_time(start: Node, end: Node, text: Text) -> str | None:
    aligned = start.children[0]
    remainder = next((node for node in aligned.within() if node.kind == "Remainder"), None)
    if aligned.kind != "Subtract" or remainder is None or remainder.children[0].kind != "Subtract":
        return None
    moment = aligned.children[0]
    column = moment.children[0] if moment.kind == _TO_MOMENT else moment
    numbers = (end.children[1], remainder.children[1], remainder.children[0].children[1])
    if any(node.kind != "Literal" for node in numbers):
        return None
    duration, slide, offset = (int(node.values["value"]) for node in numbers)
    parts = [text(column), duration_text(duration)]
    parts += [f"every {duration_text(slide)}"] if slide != duration else []
    parts += [f"from {duration_text(offset)}"] if offset else []
    return f"window({', '.join(parts)})"


_WRITERS: Final[Mapping[str, Callable[[Node, Text], str | None]]] = {
    "Literal": _literal,
    "AggregateExpression": _aggregate,
    "GetStructField": _field,
    "Rand": _random,
    "Randn": _random,
    "CreateNamedStruct": _window,
    _TO_MOMENT: _moment,
}


def duration_text(micros: int) -> str:
    """Return a duration in the greatest unit that it is a multiple of: ``10 minutes``."""
    name, size = next((n, s) for n, s in _UNITS if micros % s == 0)
    count = micros // size
    return f"{count} {name}{'' if count == 1 else 's'}"
