"""Typed JSON: values read as the types that annotations name, and as nothing else.

Understood are ``str``, ``bool``, ``int`` (64 bits, never a boolean), ``float`` (finite), ``None``,
``datetime`` (ISO 8601 with its zone), ``Any`` (JSON, not deeper than :data:`DEEPEST`), ``Literal``,
enums, ``list``, ``dict`` and ``Mapping`` by text, tuples, named tuples, unions, frozen dataclasses
and ``TypedDict``, each inside the other. ``Annotated`` adds a :class:`Check`. Unknown fields are
ignored.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime as dt
import enum
import functools
import json
import math
import types
import typing
from typing import TYPE_CHECKING, Annotated, Any, Final

from airflow_provider.runtime.base.clock import from_iso
from airflow_provider.runtime.base.names import CONTROLS, NAME, is_inside, is_name, is_one_part

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Reader = Callable[[Any], Any]

DEEPEST: Final = 100
"""Lists and objects inside one another, in values without a type, such as a source's offset: deeper
ones end a walk through them in a RecursionError.
"""
MOST_BYTES: Final = 64 << 20
"""The largest JSON text that is parsed by default."""
_TOO_DEEP: Final = "lists and objects too deep inside one another"
_SHOWN_CHARS: Final = 40
_INT_BITS: Final = 63


class Mismatch(Exception):  # noqa: N818 - it never leaves this package's readers
    """A value is not of its type: what was expected, and the value in short."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.field, self.expected, self.found = "", expected, found

    def __str__(self) -> str:
        where = f"{self.field.removeprefix('.')}: " if self.field else ""
        return f"{where}expected {self.expected}, found {self.found}"


OMITTED: Final[Mapping[str, Any]] = types.MappingProxyType({"omitted": True})
"""The metadata of a field that JSON does not have while it is at its default."""


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """A condition on a value beyond its type; a member of ``Annotated``."""

    expected: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    shape: Any = None


def at_least(least: int) -> Check:
    """Return the check of a lower bound of a number."""
    return Check(f"{least} or more", lambda value: value >= least, {"minimum": least})


def at_most(most: int) -> Check:
    """Return the check of the longest list or text."""
    return Check(f"at most {most} of them", lambda value: len(value) <= most, {"maxItems": most})


def among(*words: str) -> Check:
    """Return the check of text that is one of these words."""
    return Check(_one_of(words), lambda value: value in words, {"enum": list(words)})


def between(least: int, most: int) -> Check:
    """Return the check of a number's bounds."""
    limits = {"minimum": least, "maximum": most}
    return Check(f"{least} to {most}", lambda value: least <= value <= most, limits)


def shaped(kind: Any) -> Check:
    """Return the check of an object that could be read as *kind*, and stays the object it is."""

    def holds(value: Any) -> bool:
        decode(kind, value)
        return True

    return Check(f"what {kind.__name__} has", holds, shape=kind)


def _is_time(text: str) -> bool:
    try:
        moment = from_iso(text)
        moment.astimezone(dt.timezone.utc)
    except (ValueError, OverflowError):  # no time; before year 1 or after 9999 in UTC
        return False
    return moment.tzinfo is not None


NonNegative = Annotated[int, at_least(0)]
Positive = Annotated[int, at_least(1)]
Batch = Annotated[int, at_least(-1)]
"""The number of a batch, -1 for none."""
Seconds = Annotated[float, at_least(0)]
Name = Annotated[
    str,
    Check(
        "a name (letters, digits and _ . + = -, 200 at most)",
        is_name,
        {"pattern": f"^{NAME.pattern}$"},
    ),
]
"""A text that may be part of a path."""
PathPart = Annotated[str, Check("a name without a slash", is_one_part)]
"""A part of a path that this package may not have named."""
NameOrNone = Annotated[
    str, Check("a name, or nothing between quotes", lambda text: not text or is_name(text))
]
RelativePath = Annotated[str, Check("a path below its folder", is_inside)]
IsoTime = Annotated[
    str, Check("a time in ISO 8601 with its zone", _is_time, {"format": "date-time"})
]
Address = Annotated[
    str, Check("an address on one line", lambda text: bool(text) and not CONTROLS.search(text))
]
"""A path, or a URL."""


def read_json(text: str | bytes, *, at_most_bytes: int = MOST_BYTES) -> Any:
    """Return values of JSON; ValueError if not JSON, too large, or deeper than ``2 * DEEPEST``.

    A text may have half of a character, as Python reads the name of a file that is no Unicode. The
    name of a field may not: JSON libraries that write it again fail.
    """
    if len(text) > at_most_bytes:
        raise ValueError(f"{len(text)} bytes, more than {at_most_bytes}")
    try:
        raw = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    if _is_deeper(raw, 2 * DEEPEST):
        raise ValueError(_TOO_DEEP)
    if _has_broken_name(raw):
        raise ValueError("the name of a field has half of a character")
    return raw


def _has_broken_name(raw: Any) -> bool:
    if isinstance(raw, dict):
        names = "".join(raw)
        is_broken = not names.isascii() and names.encode(errors="ignore").decode() != names
        return is_broken or any(map(_has_broken_name, raw.values()))
    return isinstance(raw, list) and any(map(_has_broken_name, raw))


def decode(kind: Any, raw: Any) -> Any:
    """Return values of JSON as *kind*; raise Mismatch if they are something else."""
    return _reader(kind)(raw)


def encode(value: Any) -> Any:
    """Return *value*, as :func:`decode` makes them, as plain values of JSON."""
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [encode(each) for each in _trimmed(value)]
    if isinstance(value, dt.datetime):
        value = value.astimezone(dt.timezone.utc).isoformat().replace("+00:00", "Z")
    elif dataclasses.is_dataclass(value):
        value = {
            f.name: encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.metadata != OMITTED or getattr(value, f.name) != f.default
        }
    elif isinstance(value, collections.abc.Mapping):
        value = {key: encode(each) for key, each in value.items()}
    return value


def _trimmed(values: Any) -> Any:
    defaults = getattr(values, "_field_defaults", {})
    end = len(values)
    while (
        end > len(values) - len(defaults) and values[end - 1] == defaults[values._fields[end - 1]]
    ):
        end -= 1
    return values[:end]


def shown(value: Any) -> str:
    """Return a value of JSON in short, for an error."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, int) and abs(value) >> _INT_BITS:
        return "a number of more than 64 bits"
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


@functools.cache
def _reader(kind: Any) -> Reader:
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in _GENERICS:
        return _GENERICS[origin](*args)
    if isinstance(kind, type):
        if issubclass(kind, enum.Enum):
            return _choice([(member.value, member) for member in kind])
        if issubclass(kind, tuple):
            return _named_tuple(kind)
        if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
            return _record(kind)
    raise TypeError(f"{kind!r} is no type of a document's field")


def _no(raw: Any, expected: str) -> Mismatch:
    return Mismatch(expected, shown(raw))


def _within(problem: Mismatch, step: str) -> Mismatch:
    problem.field = step + problem.field
    return problem


def _is_whole(raw: Any) -> bool:
    return type(raw) is int and not abs(raw) >> _INT_BITS


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise _no(raw, "text")
    return raw


def _whole(raw: Any) -> int:
    if not _is_whole(raw):
        raise _no(raw, "a whole number of 64 bits")
    return int(raw)


def _number(raw: Any) -> float:
    if not (_is_whole(raw) or (isinstance(raw, float) and math.isfinite(raw))):
        raise _no(raw, "a finite number")
    return float(raw)


def _boolean(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise _no(raw, "true or false")
    return raw


def _nothing(raw: Any) -> None:
    if raw is not None:
        raise _no(raw, "null")


def _moment(raw: Any) -> dt.datetime:
    if not isinstance(raw, str) or not _is_time(raw):
        raise _no(raw, "a time in ISO 8601 with its zone")
    return from_iso(raw)


def _anything(raw: Any) -> Any:
    if _is_deeper(raw, DEEPEST):
        raise _no(raw, f"values no deeper than {DEEPEST}")
    return raw


def _is_deeper(raw: Any, levels: int) -> bool:
    level = [raw]
    for _ in range(levels):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def _choice(options: list[tuple[Any, Any]]) -> Reader:
    def read(raw: Any) -> Any:
        for value, option in options:
            if type(raw) is type(value) and raw == value:
                return option
        raise _no(raw, _one_of([value for value, _ in options]))

    return read


def _literal(*options: Any) -> Reader:
    return _choice([(option, option) for option in options])


def _one_of(options: collections.abc.Sequence[Any]) -> str:
    texts = [json.dumps(option) for option in options]
    return texts[0] if len(texts) == 1 else f"one of {', '.join(texts)}"


def _union(*kinds: Any) -> Reader:
    readers = [_reader(kind) for kind in kinds if kind is not types.NoneType]
    allows_none = len(readers) < len(kinds)

    def read(raw: Any) -> Any:
        if raw is None and allows_none:
            return None
        problems = []
        for reader in readers:
            try:
                return reader(raw)
            except Mismatch as problem:
                problems.append(problem)
        deepest = max(problems, key=lambda problem: len(problem.field))
        if not deepest.field:
            deepest.expected = " or ".join(
                [problem.expected for problem in problems] + ["null"] * allows_none
            )
        raise deepest

    return read


def _annotated(kind: Any, *metadata: Any) -> Reader:
    reader = _reader(kind)
    checks = [each for each in metadata if isinstance(each, Check)]

    def read(raw: Any) -> Any:
        value = reader(raw)
        for check in checks:
            if not check.holds(value):
                raise _no(raw, check.expected)
        return value

    return read


def _list(kind: Any) -> Reader:
    reader = _reader(kind)

    def read(raw: Any) -> list[Any]:
        if not isinstance(raw, list):
            raise _no(raw, "a list")
        return [_at(index, reader, each) for index, each in enumerate(raw)]

    return read


def _tuple(*kinds: Any) -> Reader:
    if kinds[-1] is ...:
        reader = _list(kinds[0])
        return lambda raw: tuple(reader(raw))
    readers = [_reader(kind) for kind in kinds]
    return lambda raw: tuple(_each(raw, readers, least=len(readers)))


def _named_tuple(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = [_reader(hints[name]) for name in kind._fields]
    least = len(readers) - len(kind._field_defaults)
    return lambda raw: kind(*_each(raw, readers, least=least))


def _each(raw: Any, readers: list[Reader], *, least: int) -> list[Any]:
    if not isinstance(raw, list) or not least <= len(raw) <= len(readers):
        count = str(least) if least == len(readers) else f"{least} to {len(readers)}"
        raise _no(raw, f"a list of {count}")
    pairs = zip(readers, raw, strict=False)  # the last ones may be left out
    return [_at(index, reader, each) for index, (reader, each) in enumerate(pairs)]


def _at(index: int, reader: Reader, raw: Any) -> Any:
    try:
        return reader(raw)
    except Mismatch as problem:
        raise _within(problem, f"[{index}]") from None


def _mapping(names: Any, kind: Any) -> Reader:
    name_reader, reader = _reader(names), _reader(kind)

    def read(raw: Any) -> dict[str, Any]:
        if not isinstance(raw, dict):
            raise _no(raw, "an object")
        found = {}
        for name, value in raw.items():
            try:
                found[name_reader(name)] = reader(value)
            except Mismatch as problem:
                step = f".{name}" if is_name(name) else f"[{shown(name)}]"
                raise _within(problem, step) from None
        return found

    return read


def _record(kind: Any) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
        names = {f.name for f in fields}
        required = {
            f.name
            for f in fields
            if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        }
    else:
        names, required = set(hints), set(kind.__required_keys__)
    readers = {name: _reader(hints[name]) for name in hints if name in names}

    def read(raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise _no(raw, "an object")
        values = {}
        for name, reader in readers.items():
            if name in raw:
                try:
                    values[name] = reader(raw[name])
                except Mismatch as problem:
                    raise _within(problem, f".{name}") from None
            elif name in required:
                raise _within(Mismatch("a value", "none"), f".{name}")
        return kind(**values)

    return read


_SCALARS: Final[dict[Any, Reader]] = {
    Any: _anything,
    str: _text,
    int: _whole,
    float: _number,
    bool: _boolean,
    dt.datetime: _moment,
    None: _nothing,
    types.NoneType: _nothing,
}
_GENERICS: Final[dict[Any, Callable[..., Reader]]] = {
    Annotated: _annotated,
    typing.Literal: _literal,
    typing.Union: _union,
    types.UnionType: _union,
    list: _list,
    tuple: _tuple,
    dict: _mapping,
    collections.abc.Mapping: _mapping,
}
