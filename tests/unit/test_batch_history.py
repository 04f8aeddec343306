"""Batch histories: what is kept of a batch, when it is put, and what cannot stop the job."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from airflow_provider.runtime.base.clock import to_iso
from airflow_provider.runtime.driver.progress import PUT_S, HistoryWriter, entry_of
from airflow_provider.runtime.jobdir.batch_history import (
    FULL,
    HOURS,
    LARGEST_BYTES,
    BatchEntry,
    BatchHistory,
    add_batches,
    history_path,
    without_older,
)
from airflow_provider.runtime.jobdir.query_reports import BatchSizing, SourceLimit
from airflow_provider.runtime.queries.batch_reports import BatchReport, BatchReports, own_report
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import NOW
from tests.present import present
from tests.unit.counting import CountingStorage

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def a_report(batch: int = 0, *, has_run: bool = True, **values: Any) -> dict[str, Any]:
    """Return what Spark says of a batch, as its JSON."""
    phases = {"addBatch": 900, "walCommit": 0} if has_run else {"latestOffset": 3}
    return {
        "batchId": batch,
        "timestamp": to_iso(BEGAN + dt.timedelta(seconds=batch)),
        "numInputRows": 10,
        "inputRowsPerSecond": 10.04,
        "processedRowsPerSecond": 10.0,
        "durationMs": {**phases, "triggerExecution": 1000},
        "stateOperators": [],
        "sources": [],
        **values,
    }


def a_batch(batch: int, **values: Any) -> BatchEntry:
    return dataclasses.replace(entry_of(BatchReport(a_report(batch)), 1), **values)


# --- what is kept of a batch --------------------------------------------------------------------


def test_a_batch_is_what_spark_reports_of_it():
    """
    Sums over operators and sources, times without phases that took none, and how the next is sized.
    """
    operator = {"numRowsTotal": 20, "memoryUsedBytes": 500, "numRowsDroppedByWatermark": 2}
    report = a_report(
        7,
        eventTime={"watermark": "2025-12-31T23:59:58.000Z"},
        stateOperators=[operator, {"numRowsTotal": 1}],
        sources=[{"metrics": {"offsetsBehindLatest": "5"}}, {"metrics": None}],
    )
    batch_sizing = BatchSizing(
        target_s=10.0,
        last_batch_s=9.0,
        decision="unchanged",
        reason="within 25 % of the target",
        sources={"events": SourceLimit(4000, "rows")},
    )

    assert BatchEntry(
        batch=7,
        at="2026-01-01T00:00:07.000Z",
        attempt=3,
        rows=10,
        late_rows=2,
        duration_ms={"addBatch": 900, "triggerExecution": 1000},
        input_rate=10.0,
        process_rate=10.0,
        watermark="2025-12-31T23:59:58.000Z",
        lag_s=10.0,
        state_rows=21,
        state_bytes=500,
        backlog={"offsetsBehindLatest": 5},
        limits={"events": 4000},
        decision="unchanged",
        reason="within 25 % of the target",
    ) == entry_of(BatchReport(report, batch_sizing), 3)
    assert 400 == entry_of(BatchReport(report, late_rows=400), 3).late_rows  # its rows, one by one


@pytest.mark.parametrize(
    "watermark",
    ["1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "+294247-01-10T04:00:54.775Z", None],
)
def test_a_watermark_that_is_no_event_time_has_no_distance(watermark):
    """Before the first event, in a drain, and without a watermark."""
    report = a_report(eventTime={"watermark": watermark} if watermark else {})

    assert (watermark, None) == (
        (batch := entry_of(BatchReport(report), 1)).watermark,
        batch.lag_s,
    )


@pytest.mark.parametrize("rate", [None, float("nan"), float("inf"), "Infinity"])
def test_a_rate_over_no_time_is_not_known(rate):
    """Spark divides by zero before it knows how long a batch took."""
    report = a_report(inputRowsPerSecond=rate)

    assert None is entry_of(BatchReport(report), 1).input_rate


# --- how much is kept ---------------------------------------------------------------------------


def grown(count: int, *, every_s: int = 1, **values: Any) -> BatchHistory:
    history = BatchHistory(query="q", updated=NOW)
    for first in range(0, count, 10):
        new = [
            a_batch(n, at=to_iso(BEGAN + dt.timedelta(seconds=n * every_s)), **values)
            for n in range(first, min(first + 10, count))
        ]
        history = add_batches(history, new, updated=NOW)
    return history


@pytest.mark.slow
def test_older_batches_are_folded_by_the_hour():
    """The last three hundred stay as they are; of the others an hour keeps sums and extremes."""
    history = grown(FULL + 70, every_s=60, state_rows=5)

    assert [*range(70, FULL + 70)] == [batch.batch for batch in history.batches]
    assert [
        ("2026-01-01T00:00:00.000Z", 60, 600, 0, 1000, 1000.0, 1000, 5),
        ("2026-01-01T01:00:00.000Z", 10, 100, 0, 1000, 1000.0, 1000, 5),
    ] == [
        (h.hour, h.batches, h.rows, h.late_rows, h.min_ms, h.mean_ms, h.max_ms, h.state_rows)
        for h in history.hours
    ]


@pytest.mark.slow
def test_hours_are_kept_for_a_week():
    """An hour older than the last 168 that had batches is let go."""
    history = grown(FULL + HOURS + 5, every_s=3600)

    assert HOURS == len(history.hours)
    assert "2026-01-01T05:00:00.000Z" == history.hours[0].hour


@pytest.mark.slow
def test_a_usual_query_has_a_week_and_two_hundred_batches_at_least():
    """With a watermark, state and batch_sizing, that is what fits into the largest document."""
    times = {"addBatch": 12345, "commitBatch": 123, "commitOffsets": 123, "latestOffset": 123}
    history = grown(
        FULL + 2 * HOURS,
        every_s=1800,
        duration_ms={**times, "queryPlanning": 123, "walCommit": 123, "triggerExecution": 12345},
        rows=1234567,
        watermark=NOW,
        lag_s=12.5,
        state_rows=1234567,
        state_bytes=123456789,
        limits={"events": 123456},
        decision="unchanged",
        reason="within 25 % of the target",
    )

    assert HOURS == len(history.hours)
    assert 200 <= len(history.batches) <= FULL
    assert LARGEST_BYTES > len(history.to_bytes()) > LARGEST_BYTES / 2


@pytest.mark.slow
def test_large_batches_are_folded_sooner():
    """Texts and objects are cut, and the document stays as small as ever."""
    many = {f"{n:03}" * 60: n for n in range(100)}
    history = grown(FULL, backlog=many, limits=many, reason="because " * 100)

    assert LARGEST_BYTES >= len(history.to_bytes())
    assert 20 < len(history.batches) < FULL
    assert FULL == len(history.batches) + sum(hour.batches for hour in history.hours)
    assert 16 == len(present(history.batches[0].backlog))


def test_a_batch_is_one_line_without_what_is_null():
    """A person can read the document line by line, and any reader of JSON all of it."""
    data = grown(2).to_bytes()

    assert 2 == sum(line.startswith(b'{"batch":') for line in data.splitlines())
    assert b"null" not in data
    assert [] == json.loads(data)["hours"]


# --- which batches are new ----------------------------------------------------------------------


class Reported:
    """What Py4J gives of a query: an array that knows how often JSON was made of its reports."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.made = 0
        self.is_gone = False

    @property
    def _jsq(self) -> Reported:
        if self.is_gone:
            raise Py4JNetworkError
        return self

    def ran(self, *batches: int) -> None:
        self.reports += [a_report(batch) for batch in batches]

    def waited(self, batch: int) -> None:
        self.reports.append(a_report(batch, has_run=False))

    def _progress(self, report: dict[str, Any]) -> Any:
        def made() -> str:
            self.made += 1
            return json.dumps(report)

        return SimpleNamespace(batchId=lambda: report["batchId"], json=made)

    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self._progress(self.reports[-1]) if self.reports else None

    def recentProgress(self) -> list[Any]:  # noqa: N802 - Spark's name
        return [self._progress(report) for report in self.reports]


def look_at(reports: BatchReports, query: Any) -> None:
    reports.collect(query)


def new_of(reports: BatchReports, query: Reported) -> list[int]:
    look_at(reports, query)
    return [report.progress["batchId"] for report in reports.take()]


def test_each_batch_is_new_once():
    """Those since the last look, however many; JSON is made of no other."""
    query, reports = Reported(), BatchReports()
    assert [] == new_of(reports, query)

    query.ran(0)
    assert [0] == new_of(reports, query)
    assert [] == new_of(reports, query)
    assert 1 == query.made
    query.ran(1, 2, 3)
    assert [1, 2, 3] == new_of(reports, query)
    assert 5 == query.made


def test_a_query_that_waits_hides_no_batch():
    """It reports as well, under the number of the batch to come, which is none yet."""
    query, reports = Reported(), BatchReports()
    query.waited(0)
    assert [] == new_of(reports, query)
    query.ran(0)
    query.waited(1)
    assert [0] == new_of(reports, query)
    query.waited(1)
    assert [] == new_of(reports, query)
    query.ran(1)
    assert [1] == new_of(reports, query)


def test_a_later_start_reports_its_own_batches():
    """Spark's list is a new one then; those before the start are not expected again."""
    first, second, reports = Reported(), Reported(), BatchReports()
    first.ran(4, 5)
    reports.starts(3)
    look_at(reports, first)
    reports.starts(5)
    second.ran(6)

    assert [4, 5, 6] == new_of(reports, second)


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_batch_that_was_stopped_after_its_commit_is_known_all_the_same(is_committed):
    """Spark has not reported it; one that was not committed will run again."""
    query, reports = Reported(), BatchReports()
    query.ran(0)
    reports.staged(own_report(0, BEGAN, 1.5, 10))
    look_at(reports, query)
    reports.staged(own_report(1, BEGAN, 1.5, 10))
    asked: list[int] = []

    def committed(batch: int) -> bool:
        asked.append(batch)
        return is_committed

    reports.end(committed)
    reports.end(committed)

    assert [1] == asked
    taken = reports.take()
    assert [0, 1][: 1 + is_committed] == [report.progress["batchId"] for report in taken]
    entry = entry_of(own_report(1, BEGAN, 1.5, 10), 1)
    assert (10, 1500, None, None) == (entry.rows, entry.time_ms, entry.late_rows, entry.state_rows)


def test_a_storage_that_is_away_hides_a_last_batch_at_worst():
    """The query has ended, and its end is not to fail for that."""

    def away(_: int) -> bool:
        raise OSError

    reports = BatchReports()
    reports.staged(own_report(1, BEGAN, 1.5, 10))
    reports.end(away)

    assert [] == reports.take()


def test_how_a_batch_was_paced_and_what_it_has_dropped_stays_with_it():
    """Also when the next one has ended before anybody looks."""
    query, reports = Reported(), BatchReports()
    query.ran(0, 1, 2)
    reports.note(0, batch_sizing={"decision": "grows"})
    reports.note(0, late_rows=400)
    reports.note(1, batch_sizing={"decision": "unchanged"})
    look_at(reports, query)

    assert [({"decision": "grows"}, 400), ({"decision": "unchanged"}, None), (None, None)] == [
        (report.batch_sizing, report.late_rows) for report in reports.take()
    ]


def test_without_a_jvm_nothing_is_new():
    """Others notice that it is gone."""
    query = Reported()
    query.ran(0)
    query.is_gone = True

    assert [] == new_of(BatchReports(), query)


# --- when it is put -----------------------------------------------------------------------------


class Query:
    """A query that has run batches since it was last asked."""

    def __init__(self, name: str = "q") -> None:
        self.name = name
        self.ran: list[int] = []

    def new_batches(self) -> list[BatchReport]:
        new, self.ran = self.ran, []
        return [BatchReport(a_report(batch)) for batch in new]


def stored(storage: Any, query: str = "q") -> list[tuple[int, int]]:
    history = BatchHistory.read(storage, history_path(query))
    return [(batch.batch, batch.attempt) for batch in present(history).batches]


def look(writer: HistoryWriter, storage: Any, *queries: Query) -> None:
    asked: Any = queries
    writer.write(storage, asked)


def end(writer: HistoryWriter, storage: Any, *queries: Query) -> None:
    asked: Any = queries
    writer.write(storage, asked, at_end=True)


def test_a_history_costs_a_put_every_ten_seconds(clock, storage):
    """And one read, at the first; of a query without new batches nothing is put."""
    counted, query = CountingStorage(storage), Query()
    writer = HistoryWriter(clock, 1)
    for clock.time in range(60):
        query.ran.append(int(clock.time))
        look(writer, counted, query)
    assert {"put": 6, "read": 1} == counted.taken()

    for clock.time in range(60, 120):
        look(writer, counted, query)
    assert {"put": 1} == counted.taken()
    assert [(n, 1) for n in range(60)] == stored(storage)


def test_the_end_of_an_attempt_puts_what_is_left(clock, storage):
    """The next attempt goes on with it."""
    for attempt in (1, 2):
        query, writer = Query(), HistoryWriter(clock, attempt)
        for batch in range(3):
            query.ran.append(3 * attempt + batch)
            look(writer, storage, query)
        end(writer, storage, query)
        end(writer, storage, query)

    assert [(3, 1), (4, 1), (5, 1), (6, 2), (7, 2), (8, 2)] == stored(storage)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"version": 99}', b'{"version": 1, "query": "other", "updated": "x"}'],
)
def test_what_is_no_history_is_replaced(clock, storage, caplog, data):
    """A damaged document, and one of a later version, cost a warning."""
    storage.put(history_path("q"), data)
    query = Query()
    query.ran = [0]
    look(HistoryWriter(clock, 1), storage, query)

    assert [(0, 1)] == stored(storage)
    assert 1 == len(caplog.records)
    assert "it is replaced" in caplog.text


def test_a_history_that_cannot_be_put_is_said_once_and_stops_nothing(clock, tmp_path, caplog):
    """On a full disk, say; when there is room again, nothing is missing."""
    (tmp_path / "run").write_bytes(b"no folder")
    storage, query, writer = LocalStorage(str(tmp_path / "run")), Query(), HistoryWriter(clock, 1)
    for batch in range(4):
        clock.time += PUT_S
        query.ran.append(batch)
        look(writer, storage, query)
    (tmp_path / "run").unlink()
    clock.time += PUT_S
    look(writer, storage, query)

    assert 1 == len(caplog.records)
    assert [(0, 1), (1, 1), (2, 1), (3, 1)] == stored(storage)


def test_a_report_that_nobody_understands_stops_nothing(clock, storage, caplog):
    """Of another version of Spark, say; other queries have their history all the same."""
    odd, query = Query("odd"), Query()
    odd.new_batches = lambda: [BatchReport({"batchId": 1})]  # type: ignore[method-assign]
    query.ran = [0]
    look(HistoryWriter(clock, 1), storage, odd, query)

    assert [(0, 1)] == stored(storage)
    assert "query=odd its batches are not recorded" in caplog.text


# --- the last batches of what is stored ---------------------------------------------------------


@pytest.mark.parametrize("batches", [0, 3, 40, 41, 700])
def test_the_last_batches_are_read_without_the_others(batches):
    """They are those of the whole document, whatever a text holds that looks like its layout."""
    reason = '],"hours":[\n"batches":[\n'
    found = add_batches(
        BatchHistory(query="out", updated=NOW),
        [a_batch(number, reason=reason) for number in range(batches)],
        updated=NOW,
    )
    document = found.to_bytes()
    shortened = json.loads(without_older(document, 40))
    whole = json.loads(document)

    assert whole["batches"][-40:] == shortened["batches"]
    assert {**whole, "batches": [], "hours": []} == {**shortened, "batches": [], "hours": []}


@pytest.mark.parametrize("document", [b"", b"[]", b'{"batches":[{},{}],"hours":[]}', b"\xff"])
def test_a_document_of_another_layout_is_left_as_it_is(document):
    """Such as one of another version, or a damaged one."""
    assert document == without_older(document, 1)
