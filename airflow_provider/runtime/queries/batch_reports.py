"""Spark's reports of the batches of a running query, each of which is given once."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_RUN: Final = "addBatch"  # a phase that only a batch has: a query that waits reports, too


class BatchReport(NamedTuple):
    """What is known of a batch that has ended.

    Attributes:
        progress: Spark's ``StreamingQueryProgress``.
        pacing: how the next one was fitted to the target time; None when it was not.
    """

    progress: dict[str, Any]
    pacing: dict[str, Any] | None = None


class BatchReports:
    """Collects the reports of one query, over all its starts.

    Spark keeps the last hundred, so that none is missed by who looks every second.

    Thread safety: :meth:`paced` is called in Spark's callback thread, the others are not.
    """

    def __init__(self) -> None:
        self._seen = -1
        self._new: list[BatchReport] = []
        self._pacing: dict[int, dict[str, Any]] = {}

    def starts(self, committed: int) -> None:
        """Expect the batches after *committed*; what was collected of an earlier start stays."""
        self._seen = committed

    def paced(self, batch: int, pacing: dict[str, Any]) -> None:
        """Note how the batch after this one was fitted to the target time."""
        self._pacing[batch] = pacing

    def look(self, query: StreamingQuery) -> None:
        """Collect what has ended since the last look; never raises for what Spark cannot say."""
        from py4j.protocol import Py4JError

        try:
            for progress in self._unseen(query):
                self._seen = progress["batchId"]
                self._new.append(BatchReport(progress, self._pacing.pop(self._seen, None)))
        except Py4JError as error:  # the JVM may be gone, which others notice
            log.debug("batches of %s cannot be read: %s", query, error)

    def take(self) -> list[BatchReport]:
        """Return what was collected, oldest first, and forget it."""
        new, self._new = self._new, []
        return new

    def _unseen(self, query: StreamingQuery) -> list[dict[str, Any]]:
        """Return the new ones; asks for no more than the last one where only that can be new."""
        last = query._jsq.lastProgress()
        if last is None or last.batchId() <= self._seen:
            return []
        progress = _read(last)
        has_run = _RUN in progress["durationMs"]
        missing = progress["batchId"] - self._seen - (0 if has_run else 1)
        if missing <= 1 and has_run:
            return [progress]
        return list(self._recent(query))[::-1] if missing else []

    def _recent(self, query: StreamingQuery) -> Iterator[dict[str, Any]]:
        """Yield those that were not seen, newest first; the others are not made JSON of."""
        recent = query._jsq.recentProgress()
        for place in reversed(range(len(recent))):
            progress = recent[place]
            if progress.batchId() <= self._seen:
                return
            read = _read(progress)
            if _RUN in read["durationMs"]:
                yield read


def last_progress_of(query: StreamingQuery) -> dict[str, Any] | None:
    """Return Spark's last progress of a query; None before the first."""
    progress = query._jsq.lastProgress()
    return _read(progress) if progress is not None else None


def _read(progress: Any) -> dict[str, Any]:
    return dict(json.loads(progress.json()))
