"""Starts of a script's queries: what Spark says of them, also when they have ended."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

_PROGRESSES: Final = 100
"""How many of a query's progresses Spark keeps by itself."""


class Starts:
    """Spark's queries that a run has started for the script's, by name; those that have ended, too.

    A query of the job is started more than once: for its input, and for its drain.

    Args:
        spark: the job's session.
    """

    def __init__(self, spark: SparkSession) -> None:
        # Spark's own list of what runs, of all sessions of its application.
        self._active = spark._jsparkSession.sharedState().activeStreamingQueries()
        self._known = set(self._runs())
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
        self._known.add(str(query.runId))
        return query

    def stop_others(self) -> list[str]:
        """Stop what the runtime has not started; return the names of these queries.

        Call it in the thread that starts the job's queries: a start that it is in is in the list of
        Spark's, and not yet known here.
        """
        from py4j.protocol import Py4JJavaError

        others = {run: query for run, query in self._runs().items() if run not in self._known}
        for query in others.values():
            with contextlib.suppress(Py4JJavaError):  # it has failed meanwhile
                query.stop()
        self._known.update(others)
        return [str(query.name() or run) for run, query in others.items()]

    def _runs(self) -> dict[str, Any]:
        """Return what runs, by the id of its start; a query may end at any moment."""
        found, queries = {}, self._active.elements()
        while queries.hasMoreElements():
            query = queries.nextElement()
            found[str(query.runId())] = query
        return found

    def last(self, name: str) -> StreamingQuery | None:
        """Return the newest start of a query; None before the first."""
        return self._last.get(name)

    def recent_progress(self, name: str) -> list[Any]:
        """Return the last progresses of all starts of a query, the newest last."""
        last = self._last.get(name)
        found = [*self._before.get(name, ()), *(last.recentProgress if last is not None else ())]
        return found[-_PROGRESSES:]
