"""Starts of a script's queries: what Spark says of them, also when they have ended."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_PROGRESSES: Final = 100
"""How many of a query's progresses Spark keeps by itself."""


class Starts:
    """Spark's queries that a run has started for the script's, by name; those that have ended, too.

    A query of the job is started more than once: for its input, and for its drain.
    """

    def __init__(self) -> None:
        self._last: dict[str, StreamingQuery] = {}
        self._before: dict[str, deque[Any]] = {}

    def add(self, query: StreamingQuery) -> StreamingQuery:
        """Take a query that has started, and return it."""
        name = str(query.name)
        ended = self._last.get(name)
        if ended is not None:
            kept = self._before.setdefault(name, deque(maxlen=_PROGRESSES))
            kept.extend(ended.recentProgress)
        self._last[name] = query
        return query

    def last(self, name: str) -> StreamingQuery | None:
        """Return the newest start of a query; None before the first."""
        return self._last.get(name)

    def recent_progress(self, name: str) -> list[Any]:
        """Return the last progresses of all starts of a query, the newest last."""
        last = self._last.get(name)
        found = [*self._before.get(name, ()), *(last.recentProgress if last is not None else ())]
        return found[-_PROGRESSES:]
