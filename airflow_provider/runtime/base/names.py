"""Names and relative paths: checked, or made of other texts."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}")
UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+=-]+")
"""Characters that a name cannot contain."""
CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_RUN_ID_CHARS: Final = 150  # leaves room for the hash, and for file systems' 255


def is_name(text: str) -> bool:
    """Whether *text* can name a file or a folder everywhere, and no other location."""
    return NAME.fullmatch(text) is not None


def is_inside(path: str) -> bool:
    """Whether a relative path stays in the folder that it begins in."""
    parts = path.split("/")
    return not CONTROLS.search(path) and not {"", ".", ".."} & set(parts)


def is_one_part(text: str) -> bool:
    """Whether *text* names something in a folder, and nothing outside or further in."""
    return is_inside(text) and "/" not in text


def check_name(name: str, *, what: str) -> str:
    """Return *name* if it can name a folder everywhere; else raise a ConfigError about *what*."""
    if not is_name(name):
        raise ConfigError(
            f"{what} {name!r}: use letters, digits and _ . + = - only, beginning with a letter or "
            "a digit, 200 at most"
        )
    return name


def check_case(name: str, others: Iterable[str], *, what: str) -> None:
    """Refuse a name that differs from another by case alone: some disks take both for one."""
    for other in others:
        if other != name and other.lower() == name.lower():
            raise ConfigError(
                f"{what} {name!r}: it differs from {other!r} by case alone, and some disks have "
                "one folder for both; rename one"
            )


def quoted(name: str) -> str:
    """Return the name of a column as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"


def derive_run_id(text: str) -> str:
    """Return *text* as a run id: safe in a path, and different for different texts."""
    safe = UNSAFE.sub("_", text).strip("_.+=-")
    if safe == text and len(safe) <= _RUN_ID_CHARS:
        return safe
    return f"{safe[:_RUN_ID_CHARS]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def name_of(function: Any) -> str:
    """Return the name of a function, also behind ``functools.partial``; else of its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


NUMBER: Final = r"(?:0|[1-9][0-9]{0,18})"
"""A number in a name, as a part of a pattern."""
_NUMBER: Final = re.compile(NUMBER)


def number_in(name: str, suffix: str = "") -> int | None:
    """Return the number that *name* is, before *suffix*; None for any other name.

    One number has one name: ``007``, ``+7`` and digits of other scripts are no numbers, since a
    reader that looks for 7 by its name would not find them.
    """
    if not name.endswith(suffix):
        return None
    digits = name[: len(name) - len(suffix)]
    return int(digits) if _NUMBER.fullmatch(digits) else None


def numbers_in(names: Iterable[str], suffix: str = "") -> list[int]:
    """Return the numbers among *names*, sorted; names that are none are passed over."""
    found = (number_in(name, suffix) for name in names)
    return sorted(number for number in found if number is not None)
