"""Policy of late rows: count them, fail above a limit, or let the watermark wait; pure."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from airflow_provider.runtime.errors import ConfigError

COUNT: Final = "count"
FAIL: Final = "fail"
WAIT: Final = "wait"
LATE: Final = (COUNT, FAIL, WAIT)

_SHARE: Final = re.compile(r"(\d+(?:\.\d+)?) ?%")
_WHOLE: Final = 100.0


@dataclasses.dataclass(frozen=True)
class LateLimit:
    """How many late rows each query of a run may drop.

    Attributes:
        rows: so many; None where a share is meant.
        share: so many of a hundred that the query has read up to then.
    """

    rows: int | None = 0
    share: float | None = None

    def is_crossed(self, late: int, read: int | None) -> bool:
        """Whether so many late rows, of so many read, are more than allowed.

        Of an unknown number no share is known, so that each late row is one too many.
        """
        if self.rows is not None:
            return late > self.rows
        return late > 0 and (read is None or _WHOLE * late > (self.share or 0.0) * read)

    def __str__(self) -> str:
        """Return it as people give it."""
        return f"{self.rows:,} rows" if self.rows is not None else f"{self.share:g} %"


def parse_late_limit(text: str) -> LateLimit:
    """Read a limit: a number of rows, or a share such as ``0.1%``.

    Raises:
        ConfigError: it is neither.
    """
    if text.isascii() and text.isdigit():
        return LateLimit(rows=int(text))
    found = _SHARE.fullmatch(text) if text.isascii() else None
    share = float(found[1]) if found else math.nan
    if not 0 <= share <= _WHOLE:
        msg = f"late limit {text!r}: a number of rows such as 100, or a share such as 0.1%"
        raise ConfigError(msg)
    return LateLimit(rows=None, share=share)
