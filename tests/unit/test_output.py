"""Progress, as it is measured and as it is shown."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import types
from types import MappingProxyType

import pytest

from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.checkpoint.topology import OperatorShape, Topology
from airflow_provider.runtime.cli.output import LiveBlock, live_progress
from airflow_provider.runtime.cli.progress_lines import (
    QueryPace,
    Rates,
    progress_lines,
    watermark_text,
)
from airflow_provider.runtime.driver.lifecycle import Lifecycle
from airflow_provider.runtime.driver.lifecycle.events import AtEnd, JobPhase, QueryPhase, Stop
from airflow_provider.runtime.driver.progress import ProgressMeter, shown_phase, shown_query_phase
from airflow_provider.runtime.failures.classify import classify
from airflow_provider.runtime.jobdir.epoch_documents import BatchCounts, LateCount, totals_after
from airflow_provider.runtime.jobdir.row_counts import RowCounts
from airflow_provider.runtime.jobdir.run_records import ProgressRecord
from airflow_provider.runtime.queries.batch_reports import reading_of
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.sinks.spark_sink import spark_sink
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import a_progress
from tests.present import present
from tests.screens import Screen
from tests.unit.counting import CountingStorage
from tests.unit.support import FakeSink


def shown(record, paces=MappingProxyType({}), columns=140, **more) -> str:
    return "\n".join(progress_lines(record, paces, columns=columns, **more))


def test_progress_is_a_few_lines():
    """
    A person sees phase, attempt and rows, and for each query its batch, watermark, state and backlog.
    """
    text = shown(a_progress(), {"daily": QueryPace(520000.4, 0.5, 90.0)})

    assert [
        "reading · attempt 2 · 1,234,567 rows read · 520,000 rows/s in the last minute",
        "daily  reading  ██████░░░░░░ 50% · 5 files to read · about 90 s left · batch 3 · watermark "
        "2013-01-01 00:00:00 UTC · 42 state rows",
    ] == text.splitlines()


def test_no_line_of_progress_is_wider_than_the_terminal():
    """What does not fit goes on in the next line, whole."""
    record = a_progress(queries={"x" * 30: a_progress().queries["daily"]})
    lines = shown(record, {"x" * 30: QueryPace(1.0, 0.5, 90.0)}, columns=60).splitlines()

    assert all(len(line) < 60 for line in lines)
    assert (
        "  520,000 rows/s in the last minute"
        == shown(record, {"x": QueryPace(5.2e5)}, 60).split("\n")[1]
    )
    assert 4 <= len(lines)
    assert any("watermark 2013-01-01 00:00:00 UTC" in line for line in lines)


def test_a_batch_job_shows_its_stages_and_tasks(clock):
    """The bar is of the tasks that Spark has submitted; rows are not said before they are known."""
    rates, texts = Rates(clock), []
    for stages, done, tasks in ((1, 0, 8), (1, 4, 8), (2, 9, 12)):
        counted = {"stages": stages, "stages_done": stages - 1, "tasks": tasks, "tasks_done": done}
        query = {"phase": "reading", "rows_read": 0, "tasks": counted}
        record = a_progress(rows_read=0, queries={"daily": query})
        texts.append(shown(record, rates.update(record)).splitlines())
        clock.sleep(10)

    assert ["reading · attempt 2"] * 3 == [text[0] for text in texts]
    assert [
        "daily  reading  ░░░░░░░░░░░░ 0% · stage 1 of 1, 0 of 8 tasks",
        "daily  reading  ██████░░░░░░ 50% · stage 1 of 1, 4 of 8 tasks · about 10 s left",
        "daily  reading  █████████░░░ 75% · stage 2 of 2, 9 of 12 tasks · about 7 s left",
    ] == [text[1] for text in texts]


def unread(**backlogs) -> ProgressRecord:
    """Return a progress of queries that have so many files to read."""
    return a_progress(
        queries={
            name: {"phase": "reading", "backlog": None if files is None else {"files": files}}
            for name, files in backlogs.items()
        }
    )


def test_a_bar_shows_what_is_read_and_how_long_the_rest_takes(clock):
    """By how fast the backlog has shrunk in the last minute; before it shrinks no time is known."""
    rates = Rates(clock)
    first = rates.update(unread(daily=30, hourly=None))
    clock.sleep(60)
    grown = rates.update(unread(daily=40, hourly=7))
    clock.sleep(20)
    third = rates.update(unread(daily=30, hourly=7))
    clock.sleep(20)
    last = rates.update(unread(daily=10, hourly=7))
    clock.sleep(600)
    late = rates.update(unread(daily=4, hourly=7))

    nothing = f"{'░' * 12} 0%"
    assert {"daily": nothing, "hourly": None} == {name: p.bar() for name, p in first.items()}
    assert [nothing] * 2 == [pace.bar() for pace in grown.values()]
    assert (f"███{'░' * 9} 25%", None) == (third["daily"].bar(), third["hourly"].left())
    assert ("█████████░░░ 75%", "about 33 s left") == (last["daily"].bar(), last["daily"].left())
    assert "about 7 min left" == late["daily"].left()


def test_a_rate_is_that_of_the_last_minute(clock):
    """What was fast an hour ago says nothing about now."""
    rates = Rates(clock)
    per_second = []
    for rows in (0, 6000, 6060, 6120):
        found = rates.update(a_progress(queries={"daily": {"rows_read": rows}}))
        per_second.append(found["daily"].rows_per_second)
        clock.sleep(60)

    assert [0.0, 100.0, 1.0, 1.0] == per_second


def test_a_bar_is_full_when_all_is_read(clock):
    """Then nothing is left to wait for; a backlog that was never there is read, too."""
    rates = Rates(clock)
    rates.update(unread(daily=8, hourly=0))
    found = rates.update(unread(daily=0, hourly=0))

    assert [(f"{'█' * 12} 100%", None)] * 2 == [(p.bar(), p.left()) for p in found.values()]


@pytest.mark.parametrize(
    ("watermark", "text"),
    [
        ("1970-01-01T00:00:00.000Z", None),
        ("9999-12-31T23:59:59.999Z", "at the end of time"),
        ("2013-01-01T00:00:00.000Z", "2013-01-01 00:00:00 UTC"),
        (None, None),
    ],
)
def test_a_watermark_that_is_no_time_is_not_shown_as_one(watermark, text):
    """Spark's before the first event, and that of a drain, which is behind all time."""
    assert text == watermark_text(watermark)


@pytest.mark.parametrize(
    ("late", "minimum", "text"),
    [
        (None, False, "7 rows read"),
        (4, False, "7 rows read · 4 late"),
        (4, True, "at least 4 late"),
    ],
)
def test_late_rows_are_beside_those_read(late, minimum, text):
    """Where some could not be counted one by one, the number is a minimum."""
    found = shown(a_progress(rows_read=7, late_rows=late, late_minimum=minimum, queries={}))

    assert text in found
    assert ("at least" in found) is minimum
    assert "expired" not in found


def test_lost_rows_are_beside_those_read():
    """They were gone before anybody could read them."""
    assert "7 rows read · 1,200 expired before they were read" in shown(
        a_progress(rows_read=7, lost_rows=1200, queries={})
    )


def test_what_is_not_known_is_left_out():
    """Before the first batch a query has no numbers."""
    query = dict.fromkeys(("rows_read", "batch", "watermark", "state_rows", "backlog", "tasks"))
    text = shown(a_progress(queries={"daily": {"phase": "starting", **query}}))

    assert "daily  starting" == text.splitlines()[1]


def test_without_a_terminal_nothing_is_shown(capsys):
    """Into a file or a pipe nothing is drawn."""
    with live_progress() as on_progress:
        assert on_progress is None

    assert ("", "") == capsys.readouterr()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 200])
def test_a_block_stays_below_whatever_is_written(columns):
    """
    Lines of this process and of a child that has inherited its descriptors stay whole above it; of
    the block one is left, the last.
    """
    with Screen(columns) as screen, screen.stream() as terminal:
        block = LiveBlock(terminal)
        for number in range(60):
            block.update([f"reading {number}", "x" * (columns + 50)])
            block.write(f"line {number}\nhalf of ".encode())
            block.write(f"line {number} more\n".encode())
        block.write(b"a question? ")
        block.flush()
        block.close()

    lines = screen.lines()
    written = [line for n in range(60) for line in (f"line {n}", f"half of line {n} more")]
    assert [*written, "a question?", "reading 59"] == lines[:-1]
    assert f"{'x' * (columns - 2)}…" == lines[-1]


def test_a_block_is_as_wide_as_the_terminal_is_now():
    """What is too wide for a terminal that has become narrower is cut."""
    with Screen(120) as screen, screen.stream() as terminal:
        block = LiveBlock(terminal)
        block.update(["y" * 100])
        screen.resize(60)
        sizes = os.get_terminal_size(screen.terminal)
        block.update(["z" * 100])
        block.close()

    assert (60, 59) == (sizes.columns, len(screen.lines()[-1]))


@pytest.mark.parametrize("lines", [[], ["reading", "daily  reading"]])
def test_a_block_that_ends_leaves_the_cursor_below_it(lines):
    """What is written next begins a line, with nothing empty before it, and the cursor is there."""
    with Screen(80) as screen, screen.stream() as terminal:
        block = LiveBlock(terminal)
        block.update(["first", "second", "third"])
        block.write(b"above\n")
        block.update(lines)
        block.close()
        terminal.write("the summary\n")

    assert ["above", *lines, "the summary"] == screen.lines()
    assert not screen.is_cursor_hidden


def test_a_process_that_is_killed_leaves_the_cursor_at_the_beginning_of_a_line():
    """A block that is never closed hides nothing, and what follows is not written into it."""
    with Screen(80) as screen, screen.stream() as terminal:
        LiveBlock(terminal).update(["reading"])
        terminal.write("Killed\n")

    assert ["reading", "Killed"] == screen.lines()
    assert not screen.is_cursor_hidden


def test_without_rich_a_terminal_gets_plain_lines(monkeypatch):
    """One at first, and others every ten seconds: nothing moves the cursor."""
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setenv("TERM", "xterm")
    with Screen(80) as screen, screen.stream() as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        with live_progress() as on_progress:
            for rows in (1, 2):
                present(on_progress)(a_progress(rows_read=rows))

    assert 1 == len(screen.lines())
    assert " reading, 1 rows read, " in screen.lines()[0]


PROGRAM = """
import logging, os, subprocess, sys
from airflow_provider.runtime.cli.output import live_progress
from airflow_provider.runtime.testing.job_directories import a_progress
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="LOG %(message)s")
with live_progress() as show:
    for number in range(20):
        show(a_progress(attempt=number + 1))
        logging.info("of the runtime %s", number)
        print("print of the job", number)
        subprocess.run([sys.executable, "-S", "-c", f"import os; os.write(2, b'child {number}\\\\n')"])
    if sys.argv[1:] == ["fail"]:
        raise ValueError("as it happens")
    show(a_progress(phase="draining"))
print("all is done")
"""


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["fail", "well"])
def test_what_a_process_and_its_children_write_is_never_torn(ending):
    """
    The log, prints, and what a child writes to the descriptors that it has inherited, in order. The
    block goes when the run has ended well, and stays where it has failed.
    """
    seen: list[list[str]] = []
    with Screen(80, looks=seen.append) as screen:
        ends = (screen.terminal,) * 2
        command = [sys.executable, "-c", PROGRAM, *([ending] if ending == "fail" else [])]
        environ = {**os.environ, "TERM": "xterm"}
        subprocess.run(command, stdout=ends[0], stderr=ends[1], check=False, env=environ)

    lines = screen.lines()
    expected = [
        line
        for n in range(20)
        for line in (f"LOG of the runtime {n}", f"print of the job {n}", f"child {n}")
    ]
    assert expected == sorted(expected, key=lines.index)
    assert expected == [line for line in lines if line in set(expected)]
    blocks = [line for line in lines if " · attempt " in line]
    if ending == "fail":
        assert ["reading · attempt 20"] == [" · ".join(b.split(" · ")[:2]) for b in blocks]
        assert "ValueError: as it happens" == lines[-1]
    else:
        assert ([], "all is done") == (blocks, lines[-1])
    assert all(sum(" · attempt " in line for line in look) <= 1 for look in seen)


# --- the meter ----------------------------------------------------------------------------------


COUNTED = Topology(("flights",), (OperatorShape(0, "stateStoreSave", ("flights",)),))


def a_query(rows, spark=None, name="daily", lost=0, native=None):
    sinks = (FakeSink("out"),)
    definition = QueryDefinition(name, None, sinks, "append", ("counts",), (), native)  # type: ignore[arg-type]
    vars(definition).update(topology=COUNTED, is_row_by_row=False)  # which Spark would tell
    late = {"0": (rows or 0) // 5}
    counts = BatchCounts(rows, LateCount(late))
    return types.SimpleNamespace(
        name=name,
        definition=definition,
        counts=types.SimpleNamespace(
            rows_read=lambda: rows,
            totals=lambda: totals_after(None, counts),
            late_rows=lambda: late,
            late_is_minimum=lambda: False,
            lost_rows=lambda: lost,
            run_rows={"out": rows}.get,
        ),
        reading=lambda: reading_of(spark),
        new_batches=list,
    )


LIFE = Lifecycle.of(("daily",), AtEnd.DRAIN)
OPERATOR = {"id": 0, "name": "counts", "kind": "stateStoreSave", "finish_state": "running"}
SPARK = {
    "batchId": 7,
    "eventTime": {"watermark": "2013-01-02T00:00:00.000Z"},
    "stateOperators": [
        {"operatorName": "stateStoreSave", "numRowsTotal": 40},
        {"operatorName": "dedupe", "numRowsTotal": 2},
    ],
    "sources": [
        {"metrics": {"numFilesOutstanding": "5", "numBytesOutstanding": "1000", "other": "9"}},
        {"metrics": {"numFilesOutstanding": "2", "avgOffsetsBehindLatest": "3.5"}},
        {"metrics": None},
        {},
    ],
}


def test_progress_before_the_first_batch(clock):
    """Without a report of Spark's the progress has what is known."""
    record = ProgressMeter(clock, attempt=1).read(LIFE, [a_query(0)])

    assert ("starting", 0, 0.0) == (record.phase, record.rows_read, record.rows_per_second)
    assert {
        "phase": "starting",
        "rows_read": 0,
        "batch": None,
        "watermark": None,
        "state_rows": 0,
        "backlog": None,
        "tasks": None,
        "batch_sizing": None,
        "idle": [],
        "sources": [{"name": "flights", "finish_state": "running"}],
        "operators": [{**OPERATOR, "late_rows": 0}],
        "sinks": [{"name": "out", "rows": 0}],
        "row_counts": encode(RowCounts(late={"counts": 0}, written={"out": 0})),
    } == record.to_dict()["queries"]["daily"]


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
        "tasks": None,
        "batch_sizing": None,
        "idle": [],
        "sources": [{"name": "flights", "finish_state": "running"}],
        "operators": [{**OPERATOR, "late_rows": 2}],
        "sinks": [{"name": "out", "rows": 10}],
        "row_counts": encode(RowCounts(10, late={"counts": 2}, written={"out": 10})),
    } == record.to_dict()["queries"]["daily"]


def test_progress_says_whose_rows_are_a_minimum(clock):
    """Those of a run with one of Spark's own sinks, which are counted in the last attempt alone."""
    meter = ProgressMeter(clock, attempt=1)

    queries = [[a_query(5)], [a_query(5), a_query(5, native=spark_sink("console"))]]
    assert [False, True] == [meter.read(LIFE, each).rows_minimum for each in queries]


def test_progress_has_what_was_lost_to_each_query(clock):
    """It is added up; unknown when it is for one query, whose sink is Spark's own."""
    lost, more, unknown = (
        a_query(5, lost=1200),
        a_query(5, name="b", lost=34),
        a_query(5, lost=None),
    )
    meter = ProgressMeter(clock, attempt=1)
    life = Lifecycle.of(("daily", "b"), AtEnd.DRAIN)

    assert 1234 == meter.read(life, [lost, more]).lost_rows
    assert meter.read(life, [unknown, more]).lost_rows is None


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
        [part.finish_state for part in parts] for parts in (found.sources, found.operators)
    )


def test_every_inner_phase_has_one_that_people_know():
    """Of an attempt and of a query, whether the run ends by a drain or is suspended."""
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
    """What earlier attempts have read counts as read, but not into the rate of this one."""
    meter = ProgressMeter(clock, attempt=2)
    first = meter.read(LIFE, [a_query(1000)])
    clock.time = 10.0
    second = meter.read(LIFE, [a_query(1500)])

    assert [(1000, 0.0), (1500, 50.0)] == [
        (r.rows_read, r.rows_per_second) for r in (first, second)
    ]


@pytest.mark.parametrize("rows", [None, 0])
def test_rows_that_are_not_known_are_not_counted(clock, rows):
    """A query whose input cannot be counted adds nothing to the sum."""
    life = Lifecycle.of(("a", "b"), AtEnd.DRAIN)
    record = ProgressMeter(clock, attempt=1).read(
        life, [a_query(rows, name="a"), a_query(5, name="b")]
    )

    assert 5 == record.rows_read


def test_progress_is_put_when_it_is_news(clock, storage):
    """Of a query that stands still it is said every ten seconds that the driver goes on."""
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
    """On a full disk, say: nothing is decided by it, so that the job goes on."""
    (tmp_path / "run").write_bytes(b"no folder")
    storage = LocalStorage(str(tmp_path / "run"))
    meter = ProgressMeter(clock, attempt=1)

    reported = [meter.report(storage, LIFE, [a_query(rows)]).rows_read for rows in (1, 2)]
    (tmp_path / "run").unlink()
    meter.report(storage, LIFE, [a_query(2)])

    assert [1, 2] == reported
    assert 1 == len(caplog.records)
    assert 2 == present(ProgressRecord.read(storage, "progress.json")).rows_read
