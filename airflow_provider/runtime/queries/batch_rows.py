"""The rows of one batch: counted at each tap, and found again if they were taken out."""

from __future__ import annotations

import contextlib
import functools
import logging
import urllib.parse
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.taps import SHOWN_ROWS
from airflow_provider.runtime.sinks.committer import QuarantinedRows

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.jobdir.epoch_documents import TapCount
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.taps import Rule, Tap

log = logging.getLogger(__name__)

_SHOWN: Final = 300  # characters of a row


class BatchRows:
    """The rows of one batch, or batch job: counts them, and finds those that were taken out.

    Args:
        began: when the batch began.
        execution: returns the JVM's ``QueryExecution``, which has run.
        rows_of: returns a tap's rows, computed again; None if the batch has no such tap.
    """

    def __init__(
        self,
        query: QueryDefinition,
        *,
        began: dt.datetime,
        execution: Callable[[], Any],
        rows_of: Callable[[Tap], DataFrame | None],
    ) -> None:
        self._query, self._began = query, began
        self._execution, self._rows_of = execution, rows_of
        self._counts: dict[str, TapCount] = {}
        self._split: DataFrame | None = None

    @contextlib.contextmanager
    def without_taken(self, df: DataFrame) -> Iterator[DataFrame]:
        """Yield what the sinks of the query get of *df*."""
        if self._query.split is None:
            yield df
            return
        self._split = df.persist()
        try:
            yield self._query.split.passed(self._split)
        finally:
            self._split.unpersist()

    def count_taps(self) -> dict[str, TapCount]:
        """Count at each tap, when the batch has run."""
        for tap in self._query.taps:
            rows = functools.partial(self._rows, tap)
            self._counts[tap.name] = tap.count(self._execution(), rows)
        return self._counts

    def agreed(self, read: Mapping[str, int] | None) -> dict[str, int] | None:
        """Return the rows *read* of each source, after :meth:`count_taps`, counted once.

        A scan's count has the rows of tasks that ran again, and misses those of a part of the plan
        that was dropped. If it is not what the tap has seen, the source is read again to count.
        """
        if read is None:
            return None
        found = dict(read)
        for tap in self._query.taps:
            scans = self._query.scans_of(tap.source) if tap.source is not None else None
            scanned = sum(found.get(name, 0) for name in scans or ())
            if scans is None or scanned == self._counts[tap.name].rows:
                continue
            rows = self._rows(tap)
            again = rows.count() if rows is not None else 0
            text = "query=%s source=%s: %d rows by its scan, and %d when it is read again"
            log.info(text, self._query.name, tap.source, scanned, again)
            found |= {**dict.fromkeys(scans, 0), scans[0]: again}
        return found

    def _rows(self, tap: Tap) -> DataFrame | None:
        return self._split if tap is self._query.split else self._rows_of(tap)

    def quarantined(
        self, late: Iterable[DataFrame] = (), late_rows: int = 0
    ) -> QuarantinedRows | None:
        """Return the rows of the batch to quarantine, with *late* rows; None without any."""
        from pyspark.sql import functions as sf

        found, expected = list(late), late_rows
        for tap in self._query.taps:
            if tap.quarantines and self._counts[tap.name].taken:
                expected += self._counts[tap.name].taken
                found += [tap.quarantined(rows) for rows in [self._rows(tap)] if rows is not None]
        if not expected:
            return None
        query, at = sf.lit(self._query.name).alias("query"), sf.lit(self._began).alias("at")
        rows = functools.reduce(lambda one, other: one.union(other), found)
        return QuarantinedRows(rows.select(query, "*", at), expected)

    def examples(self, tap: Tap, rule: Rule) -> list[str]:
        """Return a few rows that break a rule, with what is wrong and where it is, if known."""
        try:
            rows = self._rows(tap)
            columns = ("row", "reason", "origin")
            found = tap.breaking(rows, rule).select(*columns).take(SHOWN_ROWS) if rows else []
        except Exception as error:  # noqa: BLE001 - they are a part of another error
            log.debug("no examples of rule %s: %s", rule.name, error)
            return []
        return [_example(*row) for row in found]


def _example(row: str | None, reason: str | None, origin: str | None) -> str:
    text, place = row or "", origin or ""
    if "/" in place:  # a file, and the byte at which the read part of it begins
        place = urllib.parse.unquote(place.rpartition("/")[2].rpartition(":")[0])
    beside = ", ".join(filter(None, (reason, place and f"in {place}")))
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{shown} ({beside})" if beside else shown
