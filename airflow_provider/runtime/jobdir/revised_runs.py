"""Output that an operation removes, and what is read of it later: the facts of a correction.

They are a part of the operation's first document (:mod:`.journal`), which is put before the first
row is removed. So a correction needs no document of its own: it is the operation, when that is
done.

=======================================  ==========================================================
a death                                  the correction
=======================================  ==========================================================
before ``operations/<n>.1.json``         there is none: nothing was removed
after it, rows are being removed         there is none yet: operation n+1 continues it with the
                                         same facts, and n as its ``correction``
before ``operations/<n+1>.2.json``       the same, under the next number
after it                                 there is one, that of n; a paused driver that puts
                                         ``<n>.2.json`` later makes no second one
=======================================  ==========================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.typed_json import OMITTED, Name, NonNegative
from airflow_provider.runtime.jobdir.event_times import EventTimes, joined

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class RevisedQuery:
    """Published output of a query that is removed.

    Attributes:
        epochs: their number.
        rows: of all sinks.
        event_times: the least and greatest of the rows, in milliseconds; None when not known.
        is_partial: whether the event times of some rows are not known.
        complete_ms: the event time up to which the output was complete; None for none.
    """

    epochs: NonNegative
    rows: NonNegative
    event_times: EventTimes | None = dataclasses.field(default=None, metadata=OMITTED)
    is_partial: bool = dataclasses.field(default=False, metadata=OMITTED)
    complete_ms: int | None = dataclasses.field(default=None, metadata=OMITTED)

    def with_epoch(self, rows: int, event_times: EventTimes | None) -> RevisedQuery:
        """Return it with an epoch more."""
        return RevisedQuery(
            self.epochs + 1,
            self.rows + rows,
            joined((self.event_times, event_times)),
            self.is_partial or (rows > 0 and event_times is None),
            self.complete_ms,
        )

    def covering(self, other: RevisedQuery) -> RevisedQuery:
        """Return what covers this and another count of the same output."""
        known = [each for each in (self.complete_ms, other.complete_ms) if each is not None]
        return RevisedQuery(
            max(self.epochs, other.epochs),
            max(self.rows, other.rows),
            joined((self.event_times, other.event_times)),
            self.is_partial or other.is_partial,
            max(known, default=None),
        )


@dataclasses.dataclass(frozen=True)
class RevisedRun:
    """Published output of a run that is removed, by query.

    Attributes:
        interval: the interval of the run, as ISO 8601; None without one.
    """

    run_id: Name
    interval: tuple[str, str] | None
    queries: dict[Name, RevisedQuery]


def merged(before: Iterable[RevisedRun], now: Iterable[RevisedRun]) -> list[RevisedRun]:
    """Return what an operation removes that takes the place of one that was cut short.

    The earlier one may have removed some of it, so that *now* has only the rest.
    """
    found: dict[str, RevisedRun] = {}
    for run in (*before, *now):
        queries = dict(found[run.run_id].queries) if run.run_id in found else {}
        for name, query in run.queries.items():
            queries[name] = queries[name].covering(query) if name in queries else query
        found[run.run_id] = dataclasses.replace(run, queries=queries)
    return list(found.values())
