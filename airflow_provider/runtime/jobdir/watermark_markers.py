"""Watermark markers: rows that move a source's event time on, without a row of the job's.

Spark's watermark of a query is the least of its sources', a source's moves with its rows alone, and
is forgotten when the query stops. So a source that has ended, or is silent, holds all others back.
A *marked* source is read as ``union(source, markers)``, then the watermark, then a filter that lets
no marker through. Its markers are a tiny stream of files: one row, with an event time, moves the
source's watermark as a row of the source's would. Sources that have ended are announced after each
start, as Flink does with tasks that were finished when it restored them (FLIP-147); those that are
silent are moved along with the others (queries/watermarks.py).
"""

from __future__ import annotations

import json
import uuid
from typing import Final

from airflow_provider.runtime.storage.open import open_storage

END_MS: Final = 253402300799999
"""The event time of a finished source: 9999-12-31, as after a drain's first batch."""

_SUFFIX: Final = ":marker"  # a colon is in no source's own name
MARKER_COLUMN: Final = "at"
"""Its only one: microseconds since 1970."""


def marker_name(source: str) -> str:
    """Return the name of the stream of a source's markers."""
    return f"{source}{_SUFFIX}"


def is_marker(name: str | None) -> bool:
    """Whether a stream is one of markers."""
    return name is not None and name.endswith(_SUFFIX)


def put_marker(folder: str, at_ms: int) -> None:
    """Let the source whose markers lie in *folder* be at event time *at_ms*, if it is not later.

    Crash safety: a marker lies there whole or not at all; two say the same as the later one.
    """
    row = json.dumps({MARKER_COLUMN: at_ms * 1000}).encode()
    open_storage(folder).put(f"{uuid.uuid4().hex}.json", row)
