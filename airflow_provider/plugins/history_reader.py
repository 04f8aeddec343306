"""History of batches, as drivers write it: read tolerantly, since versions may differ."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from airflow_provider.plugins.responses import BatchView, HistoryView, HourView, StatisticView
from airflow_provider.runtime.base.names import is_name
from airflow_provider.runtime.base.typed_json import read_json
from airflow_provider.runtime.errors import CorruptDocumentError
from airflow_provider.runtime.jobdir.batch_history import FULL, TOTAL, without_older
from airflow_provider.runtime.observe.samples import largest_backlog
from airflow_provider.runtime.storage.documents import read_stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage


class BatchTime(NamedTuple):
    """What a row of the list shows of a batch.

    Attributes:
        at: when it began.
        total_ms: how long it took.
    """

    at: str | None
    total_ms: float | None


def read_histories(run: Storage) -> list[HistoryView]:
    """Return the history of each query of a run; empty when its driver writes none.

    Args:
        run: ``runs/<run id>``.

    Raises:
        OSError: the storage cannot be read.
    """
    return [_history(query, _read(run, query)) for query in _queries(run)]


def read_batch_times(run: Storage, last: int) -> list[BatchTime]:
    """Return when the newest batches of each query of a run began, and how long they took.

    It takes a fraction of :func:`read_histories`: a list has a row for each of many jobs.

    Args:
        run: ``runs/<run id>``.
        last: how many of each query.

    Raises:
        OSError: the storage cannot be read.
    """
    found = (_batches(_read(run, query, last))[-last:] for query in _queries(run))
    return [
        BatchTime(_text(each.get("at")), _total(_durations(each))) for raw in found for each in raw
    ]


def batch_times(histories: Iterable[HistoryView]) -> list[BatchTime]:
    """Return the same of histories that were read."""
    return [BatchTime(each.at, each.total_ms) for one in histories for each in one.batches]


def _queries(run: Storage) -> list[str]:
    names = [name.removesuffix(".json") for name in run.list("history") if name.endswith(".json")]
    return [name for name in names if is_name(name)]


def _read(run: Storage, query: str, last: int = FULL) -> dict[str, Any]:
    """Return the document of one query; one that cannot be understood is empty."""
    try:
        document = read_stored(run, f"history/{query}.json")
        raw = read_json(without_older(document, last) if last < FULL else document)
    except (CorruptDocumentError, FileNotFoundError, ValueError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _batches(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the batches of a document that have a number."""
    batches = raw.get("batches")
    known = batches if isinstance(batches, list) else []
    return [
        each for each in known if isinstance(each, dict) and _whole(each.get("batch")) is not None
    ]


def _history(query: str, raw: dict[str, Any]) -> HistoryView:
    if not isinstance(raw.get("batches"), list):
        return HistoryView(query=query, updated=None, batches=[])
    return HistoryView(
        query=query,
        updated=_text(raw.get("updated")),
        batches=[_batch(each) for each in _batches(raw)],
        hours=_hours(raw.get("hours")),
    )


def _hours(raw: Any) -> list[HourView]:
    found = []
    for each in raw if isinstance(raw, list) else ():
        with contextlib.suppress(ValidationError):
            found.append(HourView.model_validate(each))
    return found


def _durations(raw: dict[str, Any]) -> dict[str, float]:
    phases = raw.get("duration_ms")
    return {
        str(name): value
        for name, each in (phases.items() if isinstance(phases, dict) else ())
        if (value := _number(each)) is not None
    }


def _total(durations: Mapping[str, float]) -> float | None:
    return durations.get(TOTAL, sum(durations.values()) if durations else None)


def _batch(raw: dict[str, Any]) -> BatchView:
    durations = _durations(raw)
    return BatchView(
        batch=int(raw["batch"]),
        at=_text(raw.get("at")),
        attempt=_whole(raw.get("attempt")),
        rows=_whole(raw.get("rows")),
        late_rows=_whole(raw.get("late_rows")),
        duration_ms={name: ms for name, ms in durations.items() if name != TOTAL},
        total_ms=_total(durations),
        input_rate=_number(raw.get("input_rate")),
        process_rate=_number(raw.get("process_rate")),
        watermark=_text(raw.get("watermark")),
        lag_s=_number(raw.get("lag_s")),
        state_rows=_whole(raw.get("state_rows")),
        state_bytes=_whole(raw.get("state_bytes")),
        backlog=backlog_of(raw.get("backlog")),
        decision=_text(raw.get("decision")),
        reason=_text(raw.get("reason")),
    )


def backlog_of(raw: Any) -> int | None:
    """Return how much is unread, of a number or of numbers by measure; None when not known."""
    if not isinstance(raw, dict):
        return _whole(raw)
    known = {name: value for name, each in raw.items() if (value := _whole(each)) is not None}
    return largest_backlog(known)


def statistics(history: HistoryView) -> list[StatisticView]:
    """Return the least, mean, median, 99th percentile and greatest of each measure."""
    measures: list[tuple[str, str, Iterable[float | None]]] = [
        ("duration", "ms", (batch.total_ms for batch in history.batches)),
        ("rows", "rows", (batch.rows for batch in history.batches)),
        ("rows in", "rows/s", (batch.input_rate for batch in history.batches)),
        ("rows processed", "rows/s", (batch.process_rate for batch in history.batches)),
        ("state", "rows", (batch.state_rows for batch in history.batches)),
        ("state size", "bytes", (batch.state_bytes for batch in history.batches)),
        ("backlog", "rows", (batch.backlog for batch in history.batches)),
        ("watermark behind", "s", (batch.lag_s for batch in history.batches)),
        ("late rows", "rows", (batch.late_rows for batch in history.batches)),
    ]
    found = []
    for measure, unit, values in measures:
        known = sorted(value for value in values if value is not None)
        if known:
            found.append(_statistic(measure, unit, known))
    return found


def _statistic(measure: str, unit: str, known: Sequence[float]) -> StatisticView:
    def at(share: float) -> float:
        return known[max(0, math.ceil(share * len(known)) - 1)]

    return StatisticView(
        measure=measure,
        unit=unit,
        min=known[0],
        avg=sum(known) / len(known),
        p50=at(0.5),
        p99=at(0.99),
        max=known[-1],
    )


def _number(raw: Any) -> float | None:
    is_number = isinstance(raw, int | float) and not isinstance(raw, bool)
    return float(raw) if is_number and math.isfinite(raw) else None


def _whole(raw: Any) -> int | None:
    number = _number(raw)
    return int(number) if number is not None else None


def _text(raw: Any) -> str | None:
    return raw if isinstance(raw, str) else None
