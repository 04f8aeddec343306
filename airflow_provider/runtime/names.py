"""Names that may be parts of a path: checked, or made of other texts."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import Any, Final

from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.typed_json import is_name

_RUN_ID_CHARS: Final = 150  # leaves room for the hash, and for file systems' 255
UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.+=-]+")
"""What a name cannot have in it."""


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
    """Return what a function is called, also behind ``functools.partial``; else its type."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
