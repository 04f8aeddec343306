"""Lines of a pod's log with their times, by which the next part is found.

The API server gives lines from the end, not from a position. An offset is the time of the last line
in nanoseconds, as the node's container runtime has written it.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from airflow_provider.runtime.api.launchers import LogPart

_LINE: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d) ?(.*)", re.DOTALL
)
_NANOSECONDS: Final = 1_000_000_000


def lines_after(text: bytes, offset: int) -> LogPart:
    """Return the whole lines that were written after a time.

    Args:
        text: lines, each after its time in RFC 3339.
        offset: the time, in nanoseconds since 1970.
    """
    lines: list[str] = []
    last = offset
    for line in text[: text.rfind(b"\n") + 1].splitlines():
        found = _LINE.fullmatch(line)
        moment = _nanoseconds(found) if found is not None else None
        if found is None or moment is None:
            continue  # such as the kubelet's own words about a log that it has lost
        if moment > offset:
            lines.append(found[4].decode(errors="replace"))
            last = max(last, moment)
    return LogPart(tuple(lines), last)


def _nanoseconds(found: re.Match[bytes]) -> int | None:
    zone = "+00:00" if found[3] == b"Z" else found[3].decode()
    try:
        seconds = dt.datetime.fromisoformat(found[1].decode() + zone).timestamp()
    except (ValueError, OverflowError):
        return None
    return int(seconds) * _NANOSECONDS + int((found[2] or b"0").ljust(9, b"0"))
