"""Numbers as names of stored files and folders: each number has one name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBER: Final = r"(?:0|[1-9][0-9]{0,18})"
"""A number in a name, as a part of a pattern."""
_NUMBER: Final = re.compile(NUMBER)


def number_in(name: str, suffix: str = "") -> int | None:
    """Return the number that *name* is, before *suffix*; None for any other name.

    One number has one name: ``007``, ``+7`` and digits of other scripts are no numbers, since
    a reader that looks for 7 by its name would not find them.
    """
    if not name.endswith(suffix):
        return None
    digits = name[: len(name) - len(suffix)]
    return int(digits) if _NUMBER.fullmatch(digits) else None


def numbers_in(names: Iterable[str], suffix: str = "") -> list[int]:
    """Return the numbers among *names*, sorted; names that are none are passed over."""
    found = (number_in(name, suffix) for name in names)
    return sorted(number for number in found if number is not None)
