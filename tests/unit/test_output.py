"""Progress, as it is measured and as it is shown."""

from __future__ import annotations

import dataclasses
import io
import types
from types import MappingProxyType

import pytest
from rich.console import Console

from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.cli.catching_up import CatchingUp
from airflow_provider.runtime.cli.output import live_progress, progress_table
from airflow_provider.runtime.driver.lifecycle.events import AtEnd, JobPhase, QueryPhase, Stop
from airflow_provider.runtime.driver.lifecycle.machine import Lifecycle
from airflow_provider.runtime.driver.progress import ProgressMeter, shown_phase, shown_query_phase
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.run_records import ProgressRecord
from airflow_provider.runtime.storage.local import LocalStorage
from tests.present import present
from tests.unit.counting import CountingStorage
from tests.unit.jobs import a_progress


def shown(record, bars=MappingProxyType({})) -> str:
    text = io.StringIO()
    Console(file=text, width=140).print(progress_table(record, bars=bars))
    return text.getvalue()


def test_progress_is_a_table():
    """
    A person sees phase, attempt and rate, and for each query its rows, batch, watermark, state and
    backlog.
    """
    text = shown(a_progress())

    assert "reading · attempt 2 · 520,000 rows/s" in text
    for part in ("daily", "1,234,567", "3", "2013-01-01 00:00:00Z", "42", "5 files"):
        assert part in text


def unread(**backlogs) -> ProgressRecord:
    """Return a progress of queries that have so many files to read."""
    return a_progress(
        queries={
            name: {"phase": "reading", "backlog": None if files is None else {"files": files}}
            for name, files in backlogs.items()
        }
    )


def test_a_bar_shows_what_is_read_and_how_long_the_rest_takes(clock):
    """
    By how fast the backlog has shrunk since it was largest; before it shrinks no time is known.
    """
    catching_up = CatchingUp(clock)
    first = catching_up.look(unread(daily=30, hourly=None))
    clock.sleep(60)
    grown = catching_up.look(unread(daily=40, hourly=7))
    clock.sleep(20)
    third = catching_up.look(unread(daily=30, hourly=7))
    clock.sleep(20)
    last = catching_up.look(unread(daily=10, hourly=7))

    nothing = f"{'░' * 12} 0%"
    assert {"daily": nothing} == first
    assert {"daily": nothing, "hourly": nothing} == grown
    assert {"daily": f"███{'░' * 9} 25%\nabout 60 s left", "hourly": nothing} == third
    assert {"daily": "█████████░░░ 75%\nabout 13 s left", "hourly": nothing} == last
    table = shown(unread(daily=10), last)
    assert all(line in table for line in last["daily"].splitlines())


def test_a_bar_is_full_when_all_is_read(clock):
    """
    Then nothing is left to wait for; a backlog that was never there is read, too.
    """
    catching_up = CatchingUp(clock)
    catching_up.look(unread(daily=8, hourly=0))

    assert dict.fromkeys(("daily", "hourly"), f"{'█' * 12} 100%") == catching_up.look(
        unread(daily=0, hourly=0)
    )


@pytest.mark.parametrize(
    ("watermark", "cell"),
    [("1970-01-01T00:00:00.000Z", " - "), ("9999-12-31T23:59:59.999Z", " end "), (None, " - ")],
)
def test_a_watermark_that_is_no_time_is_not_shown_as_one(watermark, cell):
    """
    Spark's before the first event, and that of a drain, which is behind all time.
    """
    text = shown(a_progress(queries={"daily": {"rows_read": 1, "watermark": watermark}}))

    assert cell in text
    assert "1970" not in text
    assert "9999" not in text


def test_what_is_not_known_is_a_dash():
    """
    Before the first batch a query has no numbers, and the table says so.
    """
    query = dict.fromkeys(("rows_read", "batch", "watermark", "state_rows", "backlog"))
    text = shown(a_progress(queries={"daily": {"phase": "starting", **query}}))

    assert 5 == text.count(" - ")


def test_without_a_terminal_nothing_is_shown(capsys):
    """
    Into a file or a pipe no table is drawn.
    """
    with live_progress() as on_progress:
        assert on_progress is None

    assert ("", "") == capsys.readouterr()


def test_on_a_terminal_a_table_follows_the_run(monkeypatch):
    """
    On a terminal every progress takes the place of the one before.
    """

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with live_progress() as on_progress:
        assert on_progress is not None
        on_progress(a_progress())
        on_progress(a_progress(phase="draining"))

    assert "draining" in terminal.getvalue()


# --- the meter ----------------------------------------------------------------------------------


COUNTED = Topology(("flights",), (OperatorShape(0, "stateStoreSave", ("flights",)),))


def a_query(rows, spark=None, name="daily"):
    return types.SimpleNamespace(
        name=name,
        definition=types.SimpleNamespace(topology=COUNTED, operators=("counts",), ended=()),
        epochs=types.SimpleNamespace(
            rows_read=lambda: rows, late_rows=lambda: {"0": (rows or 0) // 5}
        ),
        last_progress=lambda: spark,
        new_batches=list,
        pacing=lambda: None,
        unread_files=lambda: None,
        idle_sources=list,
    )


LIFE = Lifecycle.of(("daily",), AtEnd.DRAIN)
SPARK = {
    "batchId": 7,
    "eventTime": {"watermark": "2013-01-02T00:00:00.000Z"},
    "stateOperators": [{"numRowsTotal": 40}, {"numRowsTotal": 2}],
    "sources": [
        {"metrics": {"numFilesOutstanding": "5", "numBytesOutstanding": "1000", "other": "9"}},
        {"metrics": {"numFilesOutstanding": "2", "avgOffsetsBehindLatest": "3.5"}},
        {"metrics": None},
        {},
    ],
}


def test_progress_before_the_first_batch(clock):
    """
    Without a report of Spark's the progress has what is known.
    """
    record = ProgressMeter(clock, attempt=1).read(LIFE, [a_query(0)])

    assert ("starting", 0, 0.0) == (record.phase, record.rows_read, record.rows_per_second)
    assert {
        "phase": "starting",
        "rows_read": 0,
        "batch": None,
        "watermark": None,
        "state_rows": 0,
        "backlog": None,
        "pacing": None,
        "idle": [],
        "sources": [{"name": "flights", "mark": "running"}],
        "operators": [{"id": 0, "name": "counts", "mark": "running", "late_rows": 0}],
    } == record.queries["daily"]


def test_progress_is_what_spark_reports(clock):
    """
    Batch, watermark and state come from Spark's report, and the backlog is summed over sources.
    """
    record = ProgressMeter(clock, attempt=1).read(LIFE, [a_query(10, SPARK)])

    assert {
        "phase": "starting",
        "rows_read": 10,
        "batch": 7,
        "watermark": "2013-01-02T00:00:00.000Z",
        "state_rows": 42,
        "backlog": {"numFilesOutstanding": 7, "numBytesOutstanding": 1000},
        "pacing": None,
        "idle": [],
        "sources": [{"name": "flights", "mark": "running"}],
        "operators": [{"id": 0, "name": "counts", "mark": "running", "late_rows": 2}],
    } == record.queries["daily"]


@pytest.mark.parametrize(
    ("phase", "source", "operator"),
    [
        (QueryPhase.READING, "running", "running"),
        (QueryPhase.READ, "running", "running"),  # the intent to drain is not stored
        (QueryPhase.DRAINING, "finished", "partly_finished"),
        (QueryPhase.DRAINED, "finished", "finished"),
    ],
)
def test_progress_says_what_has_ended(clock, phase, source, operator):
    """
    A source has ended when the intent to drain its query is stored, an operator when it is drained.
    """
    life = dataclasses.replace(LIFE, queries={"daily": phase})
    found = ProgressMeter(clock, attempt=1).read(life, [a_query(0)]).queries["daily"]

    assert ([source], [operator]) == tuple(
        [part["mark"] for part in found[key]] for key in ("sources", "operators")
    )


def test_every_inner_phase_has_one_that_people_know():
    """
    Of an attempt and of a query, whether the run ends by a drain or is suspended.
    """
    for at_end in AtEnd:
        life = Lifecycle.of(("daily",), at_end)
        shown_jobs = {shown_phase(dataclasses.replace(life, phase=phase)) for phase in JobPhase}
        shown_queries = {
            shown_query_phase(dataclasses.replace(life, queries={"daily": phase}), "daily")
            for phase in QueryPhase
        }

        end = "finished" if at_end is AtEnd.DRAIN else "suspended"
        assert {"starting", "reading", "draining", "committing", end} == shown_jobs
        assert {"starting", "reading", "draining", "committing"} == shown_queries


@pytest.mark.parametrize(
    ("changes", "phase"),
    [
        ({"phase": JobPhase.HALTING, "stop": Stop(AtEnd.DRAIN, savepoint=False)}, "draining"),
        ({"phase": JobPhase.HALTING, "stop": Stop(AtEnd.SUSPEND, savepoint=True)}, "committing"),
        ({"phase": JobPhase.CLOSING, "stop": Stop(AtEnd.SUSPEND, savepoint=True)}, "suspended"),
        ({"phase": JobPhase.CLOSING, "cancelled": True}, "cancelled"),
        ({"phase": JobPhase.ENDED, "failure": classify(ValueError("bad"))}, "failed"),
    ],
)
def test_a_stopped_attempt_shows_what_follows_and_how_it_ends(changes, phase):
    """
    While a stop is carried out it shows the next phase; when it closes, its end; its queries, too.
    """
    life = dataclasses.replace(LIFE, queries={"daily": QueryPhase.HALTING}, **changes)

    assert (phase, phase) == (shown_phase(life), shown_query_phase(life, "daily"))


def test_the_rate_is_the_attempts_own(clock):
    """
    What earlier attempts have read counts as read, but not into the rate of this one.
    """
    meter = ProgressMeter(clock, attempt=2)
    first = meter.read(LIFE, [a_query(1000)])
    clock.time = 10.0
    second = meter.read(LIFE, [a_query(1500)])

    assert [(1000, 0.0), (1500, 50.0)] == [
        (r.rows_read, r.rows_per_second) for r in (first, second)
    ]


@pytest.mark.parametrize("rows", [None, 0])
def test_rows_that_are_not_known_are_not_counted(clock, rows):
    """
    A query whose input cannot be counted adds nothing to the sum.
    """
    life = Lifecycle.of(("a", "b"), AtEnd.DRAIN)
    record = ProgressMeter(clock, attempt=1).read(
        life, [a_query(rows, name="a"), a_query(5, name="b")]
    )

    assert 5 == record.rows_read


def test_progress_is_put_when_it_is_news(clock, storage):
    """
    Of a query that stands still it is said every ten seconds that the driver goes on.
    """
    counted = CountingStorage(storage)
    meter = ProgressMeter(clock, attempt=1)
    for clock.time in range(31):
        assert 7 == meter.report(counted, LIFE, [a_query(7)]).rows_read
    assert {"put": 4} == counted.taken()

    clock.time += 1
    meter.report(counted, LIFE, [a_query(8)])
    assert {"put": 1} == counted.taken()
    assert 8 == present(ProgressRecord.read(counted, "progress.json")).rows_read


def test_progress_that_cannot_be_put_is_told_once_and_stops_nothing(clock, tmp_path, caplog):
    """
    On a full disk, say: nothing is decided by it, so that the job goes on.
    """
    (tmp_path / "run").write_bytes(b"no folder")
    storage = LocalStorage(str(tmp_path / "run"))
    meter = ProgressMeter(clock, attempt=1)

    reported = [meter.report(storage, LIFE, [a_query(rows)]).rows_read for rows in (1, 2)]
    (tmp_path / "run").unlink()
    meter.report(storage, LIFE, [a_query(2)])

    assert [1, 2] == reported
    assert 1 == len(caplog.records)
    assert 2 == present(ProgressRecord.read(storage, "progress.json")).rows_read
