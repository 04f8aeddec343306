"""Batch history of a query: its last batches in full, those before them folded by the hour.

For people and plots only. The document stays below :data:`LARGEST_BYTES`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import from_iso, to_iso
from airflow_provider.runtime.base.typed_json import IsoTime, Name, NonNegative, Positive
from airflow_provider.runtime.errors import redaction
from airflow_provider.runtime.storage.documents import Contents, Document, Written

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL: Final = 300
"""So many batches are kept in full, or as many as there is room for."""
HOURS: Final = 168
"""So many hours are kept of older ones: a week."""
LARGEST_BYTES: Final = 128 * 1024
"""Each put writes all of it, and each look of a person reads it. Three hundred batches of a usual
query have room in it with a day of hours, two hundred with a whole week."""
TOTAL: Final = "triggerExecution"
"""Spark's name for the time of a whole batch."""
UNREAD_FILES: Final = "filesOutstanding"
"""The measure of a backlog of files, in the form of those that sources report by themselves."""
NO_WATERMARK: Final = "1970-01-01T00:00:00.000Z"
"""Spark's watermark before the first event."""
_MOST_FIELDS: Final = 16  # of one object of a batch: Spark has nine phases, a query few sources
_MOST_CHARS: Final = 120  # of one text of a batch
_ROOM: Final = LARGEST_BYTES - 1024  # without the other fields, the query's name for example
_HOUR_CHARS: Final = len("2026-01-01T00")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchEntry:
    """One batch.

    Attributes:
        rejected_rows: records that could not be read; None if none are looked at.
        broken_rows: rows that broke a rule, once for each rule; None without rules.
        quarantined_rows: rows that were quarantined; None where nothing is.
        duration_ms: its time by Spark's phase, ``triggerExecution`` for all.
        input_rate: rows a second that have arrived since the batch before it.
        process_rate: rows a second while it ran.
        watermark: with which it ran; None when the query has none.
        lag_s: how far the watermark was behind the clock at its end; None before the first event,
            and once the query drains.
        backlog: the unread input by the sources' own measures; None if no source reports it.
        limits: the next batch's read limits of each sized source; None when none is.
        decision: of the batch sizing; None when the query is not sized.
    """

    batch: NonNegative
    at: IsoTime
    attempt: Positive
    rows: NonNegative | None = None
    late_rows: NonNegative | None = None
    rejected_rows: NonNegative | None = None
    broken_rows: NonNegative | None = None
    quarantined_rows: NonNegative | None = None
    duration_ms: dict[str, NonNegative] = dataclasses.field(default_factory=dict)
    input_rate: float | None = None
    process_rate: float | None = None
    watermark: str | None = None
    lag_s: float | None = None
    state_rows: NonNegative | None = None
    state_bytes: NonNegative | None = None
    backlog: dict[str, int] | None = None
    limits: dict[str, int | float] | None = None
    decision: str | None = None
    reason: str | None = None

    @property
    def time_ms(self) -> int:
        return self.duration_ms.get(TOTAL, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HourEntry:
    """The batches that began in one hour and are no longer kept in full.

    Attributes:
        state_rows: in state at the end of the last one.
    """

    hour: IsoTime
    batches: Positive
    rows: NonNegative
    late_rows: NonNegative
    min_ms: NonNegative
    mean_ms: float
    max_ms: NonNegative
    state_rows: NonNegative | None = None
    state_bytes: NonNegative | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchHistory(Document):
    """``history/<query>.json``: the last batches of a query in a run, and hours of older ones."""

    CONTENTS = Contents.FACTS
    LOCATIONS = ("runs/<run id>/history/{query}.json",)
    WRITTEN = Written("replaced", "driver, with its reports", "nothing to show")

    query: Name
    updated: IsoTime
    batches: list[BatchEntry] = dataclasses.field(default_factory=list)
    hours: list[HourEntry] = dataclasses.field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return the document with a line for each batch and hour: half the size of others."""
        head = _compact({"version": self.VERSION, "query": self.query, "updated": self.updated})
        batches = ",\n".join(_line(batch) for batch in self.batches)
        hours = ",\n".join(_line(hour) for hour in self.hours)
        return f'{head[:-1]},"batches":[\n{batches}],"hours":[\n{hours}]}}\n'.encode()


def without_older(document: bytes, last: int) -> bytes:
    """Return a stored history with its last batches and no hours, which is faster to parse."""
    head, begins, rest = document.partition(b'"batches":[\n')
    batches, ends, _ = rest.rpartition(b'],"hours":[\n')
    lines = batches.splitlines()
    if not begins or not ends or len(lines) <= last:
        return document
    return head + begins + b"\n".join(lines[-last:]) + b'],"hours":[]}\n'


def history_path(query: str) -> str:
    """Return where the history of a query lies, in the directory of its run."""
    return f"history/{query}.json"


def add_batches(history: BatchHistory, new: Iterable[BatchEntry], *, updated: str) -> BatchHistory:
    """Return the history with more batches, as large as it may be."""
    batches = [*history.batches, *(cut_to_size(batch) for batch in new)]
    hours = {hour.hour: hour for hour in history.hours}
    first = max(len(batches) - FULL, 0)
    for batch in batches[:first]:
        _fold(hours, batch)
    sizes = [_size(batch) for batch in batches]
    over = sum(sizes[first:]) + sum(_size(hour) for hour in hours.values()) - _ROOM
    while over > 0 and first < len(batches) - 1:
        over += _fold(hours, batches[first]) - sizes[first]
        first += 1
    return dataclasses.replace(
        history, updated=updated, batches=batches[first:], hours=[*hours.values()]
    )


def cut_to_size(batch: BatchEntry) -> BatchEntry:
    """Return the batch with over-long texts and objects cut."""
    return dataclasses.replace(batch, **{name: _cut(value) for name, value in vars(batch).items()})


def fold_batch(hour: HourEntry | None, batch: BatchEntry) -> HourEntry:
    """Return the hour with one more batch after those in it; an hour of this batch from None."""
    took = batch.time_ms
    if hour is None:
        return HourEntry(
            hour=hour_of(batch),
            batches=1,
            rows=batch.rows or 0,
            late_rows=batch.late_rows or 0,
            min_ms=took,
            mean_ms=float(took),
            max_ms=took,
            state_rows=batch.state_rows,
            state_bytes=batch.state_bytes,
        )
    count = hour.batches + 1
    return HourEntry(
        hour=hour.hour,
        batches=count,
        rows=hour.rows + (batch.rows or 0),
        late_rows=hour.late_rows + (batch.late_rows or 0),
        min_ms=min(hour.min_ms, took),
        mean_ms=round(hour.mean_ms + (took - hour.mean_ms) / count, 3),
        max_ms=max(hour.max_ms, took),
        state_rows=batch.state_rows if batch.state_rows is not None else hour.state_rows,
        state_bytes=batch.state_bytes if batch.state_bytes is not None else hour.state_bytes,
    )


def hour_of(batch: BatchEntry) -> str:
    """Return the begin of the hour in which the batch began."""
    began = from_iso(batch.at).astimezone(dt.timezone.utc)
    return to_iso(began.replace(minute=0, second=0, microsecond=0))


def _fold(hours: dict[str, HourEntry], batch: BatchEntry) -> int:
    """Add the batch to its hour; return the growth in bytes. The first of too many hours goes."""
    name = hour_of(batch)
    before = hours.get(name)
    hours[name] = fold_batch(before, batch)
    grown = _size(hours[name]) - (_size(before) if before is not None else 0)
    if len(hours) > HOURS:
        grown -= _size(hours.pop(next(iter(hours))))
    return grown


def _cut(value: Any) -> Any:
    value = redaction.known().redact_tree(value)  # before a secret is cut
    if isinstance(value, str):
        return value[:_MOST_CHARS]
    if isinstance(value, dict):
        kept = list(value.items())[:_MOST_FIELDS]
        return {key[:_MOST_CHARS]: each for key, each in kept}
    return value


def _size(entry: BatchEntry | HourEntry) -> int:
    return len(_line(entry)) + len(",\n")


def _line(entry: BatchEntry | HourEntry) -> str:
    return _compact({name: value for name, value in vars(entry).items() if value is not None})


def _compact(values: dict[str, Any]) -> str:
    return json.dumps(redaction.known().redact_tree(values), separators=(",", ":"))
