"""Names and relative paths: checked, or made of other texts."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any, Final

from airflow_provider.runtime.errors import ConfigError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}")
UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+=-]+")
"""Characters that a name cannot contain."""
CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_RUN_ID_CHARS: Final = 150  # leaves room for the hash, and for file systems' 255


def is_name(text: str) -> bool:
    """Whether *text* can name a file or a folder everywhere, and no other place."""
    return NAME.fullmatch(text) is not None


def is_inside(path: str) -> bool:
    """Whether a relative path stays in the folder that it begins in."""
    parts = path.split("/")
    return not CONTROLS.search(path) and not {"", ".", ".."} & set(parts)


def is_one_part(text: str) -> bool:
    """Whether *text* names something in a folder, and nothing outside or further in."""
    return is_inside(text) and "/" not in text


def check_name(name: str, *, what: str) -> str:
    """Return *name* if it can name a folder everywhere.

    Raises:
        ConfigError: it cannot.
    """
    if not is_name(name):
        msg = (
            f"{what} {name!r}: use letters, digits and _ . + = - only, beginning with a letter or "
            "a digit, 200 at most"
        )
        raise ConfigError(msg)
    return name


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
