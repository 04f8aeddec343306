"""Late and lost rows: how many a run has dropped, or found expired, and the warnings about them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord

CountInput = Callable[[], "int | None"]
LateRows = Mapping[str, int]
"""Rows by the id of the stateful operator that has dropped them as late."""


@dataclasses.dataclass(frozen=True)
class LateCount:
    """The late rows that a batch dropped.

    Attributes:
        is_minimum: an aggregation's rows could not be counted, and each of its groups counts as
            one row.
    """

    rows: LateRows = dataclasses.field(default_factory=dict)
    is_minimum: bool = False


CountLate = Callable[[], LateCount | None]


def add_rows(before: int | None, more: int | None) -> int | None:
    """Return how many rows that makes together."""
    return None if before is None or more is None else before + more


def add_late(before: LateRows | None, more: LateCount | None) -> dict[str, int] | None:
    """Return how many rows that makes together, by operator."""
    if before is None or more is None:
        return None
    both = {**before, **more.rows}
    return {operator: before.get(operator, 0) + more.rows.get(operator, 0) for operator in both}


def totals_after(
    ours: EpochRecord | None, read: int | None, late: LateCount | None, lost: int
) -> dict[str, Any]:
    """Return what the record of an epoch says of the run up to and with it.

    Args:
        ours: the record of the epoch before; None when the run begins with this one.
        read: the input rows of this epoch; None when not known.
        late: what it has dropped; None when not known.
        lost: what its sources had no more.
    """
    was_minimum = ours is not None and ours.late_minimum
    return {
        "rows_read": add_rows(ours.rows_read if ours else 0, read),
        "late_rows": add_late(ours.late_rows if ours else {}, late),
        "late_minimum": was_minimum or (late is not None and late.is_minimum),
        "lost_rows": (ours.lost_rows if ours else 0) + lost,
    }


log = logging.getLogger(__name__)


def late_rows_of(late: LateRows | None, operator: int) -> int | None:
    """Return how many rows a stateful operator has dropped; None when not known."""
    return None if late is None else late.get(str(operator), 0)


def total_of(counts: Mapping[str, LateRows | None]) -> int | None:
    """Return how many rows the operators of all queries have dropped; None when not known."""
    known = [sum(late.values()) for late in counts.values() if late is not None]
    return sum(known) if len(known) == len(counts) else None


def sum_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None when one of them is not known."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def describe_dropped_rows(document: Mapping[str, Any]) -> list[str]:
    """Return the rows that a run dropped or lost, and the timers that it ignored, a line each.

    Of a run that has finished also that it has written nothing of what it has read: by another
    separator, or columns in another order, all times are NULL, and no window has such a row.

    Args:
        document: a final checkpoint or a progress record, as plain values.
    """
    late, lost = describe_late_rows(document), document.get("lost_rows")
    found = [late] if late is not None else []
    if lost:
        found.append(f"{lost:,} messages had expired before they were read (failOnDataLoss=false)")
    ignored = _describe_ignored_timers(document)
    if ignored is not None:
        found.append(ignored)
    if not found and _has_written_nothing(document):
        found.append(
            f"{document['rows_read']:,} rows were read and none was written: see that the schema, "
            "the times and the filters fit the data"
        )
    return found


def _describe_ignored_timers(document: Mapping[str, Any]) -> str | None:
    ignored = document.get("ignored_timers")
    if not ignored:
        return None
    operators = [
        f"{operator['ignored_timers']:,} of operator {operator['name']} of query {name}"
        for name, query in document["queries"].items()
        for operator in query.get("operators", ())
        if operator.get("ignored_timers")
    ]
    return (
        f"{ignored:,} timers that callbacks registered while the job was drained never fire: "
        f"{', '.join(operators)}"
    )


def _has_written_nothing(document: Mapping[str, Any]) -> bool:
    """Whether a final checkpoint is that of a run that ended with rows read, and none out."""
    is_known = bool(document.get("rows_read")) and not document.get("rows_minimum")
    if document.get("outcome") != "FINISHED" or not is_known:
        return False
    sinks = [sink for query in document["queries"].values() for sink in query.get("sinks", ())]
    return bool(sinks) and all(sink["rows"] == 0 for sink in sinks)


def describe_late_rows(document: Mapping[str, Any]) -> str | None:
    """Return in words what a run has dropped as late; None when it has dropped nothing.

    Args:
        document: a final checkpoint or a progress record, as plain values.
    """
    late, rows = document.get("late_rows"), document.get("rows_read")
    if not late:
        return None
    share = f" of {rows:,} read ({100 * late / rows:.3g} %)" if rows else ""
    operators = [
        f"{operator['late_rows']:,} by operator {operator['name']} of query {name}"
        for name, query in document["queries"].items()
        for operator in query.get("operators", ())
        if operator.get("late_rows")
    ]
    at_least = "at least " if document.get("late_minimum") else ""
    return f"{at_least}{late:,} rows{share} came late and were dropped: {', '.join(operators)}"


class LateWarnings:
    """Warns of late rows in the log: of the first ones, and whenever they have doubled."""

    def __init__(self) -> None:
        self._logged_rows = 0

    def look(self, document: Mapping[str, Any]) -> None:
        """Warn of what a progress record tells, if there is enough that is new."""
        late = document.get("late_rows") or 0
        if late and late >= 2 * self._logged_rows:
            self._logged_rows = late
            log.warning("%s", describe_late_rows(document))
