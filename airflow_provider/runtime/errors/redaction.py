"""Redaction: texts without the values of secret parameters and without credentials of addresses.

A process remembers the values where it reads them (:func:`remember`). Every text that leaves it
passes :func:`redact`: its output, logs, documents and errors, and Spark's log. A strong value (8
characters or more, or 16 if they are only letters or only digits) is found anywhere, in every
common escaping, in hexadecimal digits and in base64; a weak one (4 or more) where no letter, digit
or underscore stands beside it; any other where it is all between two quotes. Documents are searched
for strong values only, since a weak one could be part of their names and words.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import html
import json
import re
import sys
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_WEAK_CHARS: Final = 4
_STRONG_CHARS: Final = 8
_STRONG_PLAIN_CHARS: Final = 16
_LINE_CHARS: Final = 16  # of a value of several lines, such as a private key
VARIABLES: Final = "SPARK_STREAM_SECRET_"
"""Prefix of the environment variables in which a submitted driver gets its secrets."""
_IN_BASE64: Final = "[A-Za-z0-9+/_-]"


@dataclasses.dataclass(frozen=True)
class Secrets:
    """The values of secret parameters, by the parameter's name; an empty one is no secret."""

    values: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Secrets:
        return cls({}).with_values(values)

    def __bool__(self) -> bool:
        return any(self.values.values())

    def with_values(self, values: Mapping[str, str]) -> Secrets:
        """Return these secrets and further ones; a name may have several values over time."""
        merged = dict(self.values)
        for name, value in values.items():
            stripped = value.strip()  # a file's last line break is seldom a part of the value
            every = (*merged.get(name, ()), value, stripped)
            merged[name] = tuple(dict.fromkeys(each for each in every if each))
        return Secrets(merged)

    def redact(self, text: str) -> str:
        return self._replaced(self._everywhere, text)

    def redact_strong(self, text: str) -> str:
        return self._replaced(self._strong, text)

    def redact_tree(self, value: Any) -> Any:
        return _mapped(value, self.redact_strong) if self._strong.names else value

    def redact_plan(self, plan: Any) -> Any:
        if isinstance(plan, list):
            return [self.redact_plan(each) for each in plan]
        if not isinstance(plan, dict):
            return self.redact_strong(plan) if isinstance(plan, str) else plan
        redacted = {key: self.redact_plan(each) for key, each in plan.items()}
        if str(plan.get("class", "")).endswith(".Literal") and isinstance(plan.get("value"), str):
            redacted["value"] = self._redact_literal(plan["value"], plan.get("dataType"))
        return redacted

    def find(self, text: str) -> str | None:
        search = self._strong
        found = search.pattern.search(text) if search.may_find(text) else None
        return None if found is None else search.names[(found.lastindex or 1) - 1]

    @functools.cached_property
    def java_pattern(self) -> str:
        """The search of :meth:`redact` as a regular expression of Java; empty for no secrets."""
        return "|".join(f"(?:{text})" for _, text in self._patterns(_java_quoted))

    def _redact_literal(self, text: str, data_type: Any) -> str:
        """A short number stays: it may be any number."""
        for name, values in self.values.items():
            numbers = {str(int(value)) for value in values if value.isdecimal()}
            is_number = text in numbers and len(text) >= _WEAK_CHARS
            if is_number or (data_type == "string" and text in values):
                return marker(name)
        return self.redact(text)

    @functools.cached_property
    def _everywhere(self) -> _Search:
        return _Search.of(self._patterns(re.escape), self._all)

    @functools.cached_property
    def _strong(self) -> _Search:
        strong = self._patterns(re.escape, only_strong=True)
        return _Search.of(strong, [value for value in self._all if is_strong(value)])

    @property
    def _all(self) -> list[str]:
        return [value for values in self.values.values() for value in values]

    def _patterns(
        self, quoted: Callable[[str], str], *, only_strong: bool = False
    ) -> list[tuple[str, str]]:
        pairs = [(name, value) for name, values in self.values.items() for value in values]
        pairs.sort(key=lambda pair: -len(pair[1]))
        if only_strong:
            pairs = [(name, value) for name, value in pairs if is_strong(value)]
        return [(name, _pattern_of(value, quoted)) for name, value in pairs]

    def _replaced(self, search: _Search, text: str) -> str:
        if not search.may_find(text):
            return text
        names = search.names
        return search.pattern.sub(lambda found: marker(names[(found.lastindex or 1) - 1]), text)


def marker(name: str) -> str:
    """Return the text that replaces a secret parameter's value."""
    return f"<parameter {name}>"


def is_strong(value: str) -> bool:
    """Whether other text hardly contains this value by chance."""
    is_plain = value.isalpha() or value.isdecimal()
    return len(value) >= (_STRONG_PLAIN_CHARS if is_plain else _STRONG_CHARS)


@dataclasses.dataclass(frozen=True)
class _Search:
    """A search for values.

    Attributes:
        pattern: with a group for each value.
        names: the parameter of each group.
        needles: in lower case; any text that the pattern matches has one of them. A search for them
            takes a thirtieth of the time, and a savepoint lists a million files.
    """

    pattern: re.Pattern[str]
    names: tuple[str, ...]
    needles: tuple[str, ...]

    @classmethod
    def of(cls, patterns: Sequence[tuple[str, str]], values: Sequence[str]) -> _Search:
        needles = [text for value in values for text in _spellings(value)]
        needles += [text for value in values if is_strong(value) for text in _in_base64(value)]
        return cls(
            re.compile("|".join(f"({each})" for _, each in patterns)),
            tuple(name for name, _ in patterns),
            tuple(dict.fromkeys(each.lower() for each in needles if each)),
        )

    def may_find(self, text: str) -> bool:
        lower = text.lower()
        return bool(self.names) and any(each in lower for each in self.needles)


def _pattern_of(value: str, quoted: Callable[[str], str]) -> str:
    if is_strong(value):
        spellings = "|".join(quoted(each) for each in _spellings(value))
        encoded = "|".join(quoted(each) for each in _in_base64(value))
        return f"(?i:{spellings})|{_IN_BASE64}?(?:{encoded}){_IN_BASE64}?=*"
    spellings = "|".join(quoted(each) for each in _escaped(value))
    if len(value) >= _WEAK_CHARS:
        return f"(?<![A-Za-z0-9_])(?:{spellings})(?![A-Za-z0-9_])"
    return f"(?<=['\"`])(?:{spellings})(?=['\"`])"


def _escaped(value: str) -> list[str]:
    found = [
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        value.replace("'", "''"),
        value.replace("\\", "\\\\").replace("'", "\\'"),
        html.escape(value),
        html.escape(value, quote=False),
        value.replace("`", "``"),
    ]
    found += [json.dumps(each)[1:-1] for each in found]
    for safe in ("", "/", "/:@"):
        found.append(urllib.parse.quote(value, safe=safe))
    found.append(urllib.parse.quote_plus(value))
    return sorted(set(found), key=len, reverse=True)


def _spellings(value: str) -> list[str]:
    lines = [line for line in value.splitlines() if len(line) >= _LINE_CHARS and line != value]
    found = [each for text in (value, *lines) for each in _escaped(text)]
    digits = value.encode(errors="surrogateescape").hex()
    spaced = " ".join(digits[n : n + 2] for n in range(0, len(digits), 2))
    return [*dict.fromkeys(found), digits, spaced]


def _in_base64(value: str) -> Iterator[str]:
    """Yield the characters that base64 always has of a value, at any offset in the bytes."""
    data = value.encode(errors="surrogateescape")
    found = []
    for before in range(3):
        text = base64.b64encode(bytes(before) + data).decode()
        first = -(-before * 8 // 6)
        whole = text[first : (before + len(data)) * 8 // 6]
        found += [whole, whole.translate(str.maketrans("+/", "-_"))]
    yield from dict.fromkeys(found)


def _java_quoted(text: str) -> str:
    return "".join(each if each.isalnum() else f"\\x{{{ord(each):x}}}" for each in text)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_mapped(key, change): _mapped(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(each, change) for each in value]
    return value


# --- what this process knows ----------------------------------------------------------------------

_lock = threading.Lock()
_known = Secrets({})


def remember(values: Mapping[str, str]) -> None:
    """Keep these values out of every text that leaves this process from now on."""
    global _known  # noqa: PLW0603 - one process has one standard error, and one set of secrets
    with _lock:
        _known = _known.with_values(values)


def remember_own(environ: Mapping[str, str]) -> None:
    """Remember the secrets that a process passes on to a driver in its environment."""
    remember({name: text for name, text in environ.items() if name.startswith(VARIABLES)})


def known() -> Secrets:
    """Return the secrets that this process has read."""
    return _known


def redact(text: str) -> str:
    """Return *text* without the values of the secret parameters that this process has read."""
    return _known.redact(text)


class RedactedStream:
    """A text stream whose writes pass :func:`redact`; all else is the stream's own.

    Its *name* in :mod:`sys` is how a pickled function finds it in another process.
    """

    def __init__(self, stream: Any, name: str) -> None:
        self._stream = stream
        self._name = name

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, str]]:
        return getattr, (sys, self._name)


@contextlib.contextmanager
def redacted_output() -> Iterator[None]:
    """Redact everything that Python code prints or logs while the block runs."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        RedactedStream(stream, name)
        for stream, name in zip(before, ("stdout", "stderr"), strict=True)
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


# --- credentials in addresses ---------------------------------------------------------------------

HIDDEN: Final = "…"
# The part before the @ is a container, not a user.
_CONTAINERS: Final = re.compile(r"(abfs|abfss|wasb|wasbs)://[^/:@]+@", re.IGNORECASE)
_SCHEME: Final = re.compile(r"(?:(?:[a-z][a-z0-9+.-]*:)+/{1,2})*", re.IGNORECASE)
_HTTP: Final = re.compile(r"(.*:)?https?:")
_HOSTS: Final = re.compile(r"(\[[0-9a-f:.]*\]|[^:@\[\]]*)(:\d*)?(,[^:@]+(:\d*)?)*", re.IGNORECASE)
_WORDS: Final = "pass(?:word|wd|phrase)?|pwd|secret|token|credential|api_?key|access_?key|signature"
_VALUE: Final = r"(?:'[^']*'|\"[^\"]*\"|[^\s&;,'\")}]+)"
_NAMED: Final = re.compile(rf"(\b\w*(?:{_WORDS})\w*\s*=\s*){_VALUE}", re.IGNORECASE)
# Of other texts only what no sentence says: a lease has a token.
_NAMED_IN_TEXT: Final = re.compile(
    rf"(\b\w*(?:password|passwd|pwd|secret|api_?key|access_?key)=){_VALUE}", re.IGNORECASE
)
_OPTIONS: Final = re.compile(r"\?[\w.%-]+=.*", re.DOTALL)
_IN_TEXT: Final = re.compile(r"([a-z][a-z0-9+.-]*://)([^\s/@'\"]*:[^\s/@'\"]*)@", re.IGNORECASE)


def shown_address(address: str) -> str:
    """Return a URL or a DSN for messages: without user, password and the values of its options."""
    if _CONTAINERS.match(address):
        return _without_options(address)
    scheme = _SCHEME.match(address)[0]  # type: ignore[index]  # none is a match, too
    rest = address[len(scheme) :]
    before, at, after = rest.rpartition("@")
    if at and not _is_path(scheme, before):
        rest = f"{HIDDEN}@{after}"
    return _without_options(f"{scheme}{rest}")


def without_credentials(text: str) -> str:
    """Return a text, such as a library's message, without the credentials of its addresses."""
    return _IN_TEXT.sub(rf"\1{HIDDEN}@", _NAMED_IN_TEXT.sub(rf"\1{HIDDEN}", text))


def _is_path(scheme: str, before: str) -> bool:
    """Whether an ``@`` after this part of an address belongs to its path."""
    if _HTTP.match(scheme):
        return False
    host = re.split(r"[/?#]", before, maxsplit=1)[0]
    if not scheme.endswith("//"):
        return "/" in before and ":" not in before
    return len(host) < len(before) and _HOSTS.fullmatch(host) is not None


def _without_options(address: str) -> str:
    return _NAMED.sub(rf"\1{HIDDEN}", _OPTIONS.sub(f"?{HIDDEN}", address))
