"""Rows in state that are counted from changes: after each batch as many as Spark reads there."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import FORMATS, SUSPEND, failing_at, write_events

from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.failures.restart_strategy import NoRestart
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.queries.spark_state import read_state_operators
from airflow_provider.runtime.queries.state_rows import TRACKED, StateRows
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("counted_jobs.py")
LEFT = (
    [(1, "a", 1), (2, "b", 2), (3, "a", 3)],
    [(4, "a", 4), (12, "b", 5), (12, "b", 5)],
    [(13, "c", 6), (25, "a", 7), (3, "a", 1)],  # the last one is late for the batch after it
    [(26, "a", 8), (2, "b", 9), (40, "d", 1)],
    [(41, "a", 1), (42, "a", 1), (60, "e", 1)],
)
RIGHT = tuple([(t + 1, k, v) for t, k, v in batch] for batch in LEFT)
BY_CHANGES = (
    *("windows", "lists", "greatest", "windows_of_windows", "distinct", "kept_forever"),
    *("joined", "joined_forever"),
)
BY_LOOKUPS = ("outer", "sessions")
CHOSEN = {"windows", "joined_forever"}


@pytest.fixture
def looked_up(monkeypatch):
    """Return what each start of a query has chosen: whether Spark looks rows up to count them."""
    chosen: list[bool] = []
    starts = StateRows.starts

    def noted(*args, **kwargs):
        chosen.append(starts(*args, **kwargs))
        return chosen[-1]

    monkeypatch.setattr(StateRows, "starts", noted)
    return chosen


def run(spark, location, query, *, conf=None, **asked):
    params = {"query": query, "right": str(location.root / "right"), "files_per_batch": "1"}
    settings = {**FORMATS["rocksdb"], **(conf or {})}
    asked |= {"entry": f"{JOBS}:counted", "allow_known_bugs": ("HELD-ROWS",)}
    return location.run(spark, "counted", params=params, conf=settings, **asked)


def write(location, first, last):
    write_events(location.input, *LEFT[first:last], first=first)
    write_events(location.root / "right", *RIGHT[first:last], first=first)


def counted(location):
    """Return the rows in state after each batch of all runs, as the history of batches has them."""
    directory = JobDirectory(open_storage(str(location.job_dir)))
    histories = (directory.run(each).history("out") for each in directory.run_ids())
    return {entry.batch: entry.state_rows for h in histories for entry in present(h).batches}


def read(spark, location, batches):
    """Return the same as Spark reads it of the checkpoint."""
    checkpoint = str(location.checkpoint())
    return {
        batch: sum(
            present(each.state_rows)
            for each in read_state_operators(spark, checkpoint, batch=batch)
        )
        for batch in batches
    }


def by_kind(names):
    return [pytest.param(e, marks=[] if e in CHOSEN else [pytest.mark.whole]) for e in names]


@pytest.mark.long
@pytest.mark.parametrize("query", [*by_kind(BY_CHANGES), *by_kind(BY_LOOKUPS)])
def test_rows_are_counted_after_each_batch(spark, location, looked_up, query):
    """
    Two runs, of which the second begins with the state of the first, and drains it. Only an
    operator that does not report all of its changes has its rows looked up.
    """
    write(location, 0, 3)
    run(spark, location, query, run_id="first", **SUSPEND)
    write(location, 3, 5)
    final = run(spark, location, query, run_id="second")

    rows = counted(location)
    assert rows == read(spark, location, rows)
    assert any(rows.values())
    assert {query in BY_LOOKUPS} == set(looked_up)
    last = sum(present(each.state_rows) for each in final.queries["out"].operators)
    assert rows[max(rows)] == last


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("store", ["hdfs", "changelogs"])
def test_the_store_makes_no_difference(spark, location, store):
    """State in the heap, and with changelogs."""
    write(location, 0, 5)
    run(spark, location, "joined_forever", conf=FORMATS[store])

    rows = counted(location)
    assert rows == read(spark, location, rows)


@pytest.mark.long
def test_a_batch_that_runs_again_counts_once(spark, location, looked_up):
    """A run dies after it has staged a batch, and the next one runs it again."""
    write(location, 0, 2)
    run(spark, location, "windows", run_id="first", **SUSPEND)
    write(location, 2, 4)
    with failing_at("sink.precommitted", times=1), pytest.raises(RunFailedError):
        run(spark, location, "windows", run_id="second", restart=NoRestart())
    run(spark, location, "windows", run_id="second")

    rows = counted(location)
    assert rows == read(spark, location, rows)
    assert {False} == set(looked_up)


@pytest.mark.long
@pytest.mark.whole
@pytest.mark.parametrize("asked", ["true", "false"])
def test_what_is_configured_counts(spark, location, looked_up, asked):
    """Lookups that are asked for are made; without them an outer join's rows are not known."""
    write(location, 0, 5)
    final = run(spark, location, "outer", conf={TRACKED: asked})

    rows = counted(location)
    assert {asked == "true"} == set(looked_up)
    assert {None} == set(rows.values()) if asked == "false" else rows == read(spark, location, rows)
    assert [0] == [each.state_rows for each in final.queries["out"].operators]
