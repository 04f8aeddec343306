"""Rows that are dropped as late are counted, and shown wherever a run is reported."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest
from jobs import SCHEMA
from streams import START, Location, failing_at, read_with_pandas, write_events

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

ROWS = 400
ORDER = (1000, 2000, 3000, 4000, 0)  # the fifth file has the earliest rows
FILES = [[(first + n // 4, f"k{n % 7}", n % 10) for n in range(ROWS)] for first in ORDER]
WINDOWS, FOR_EACH, SESSIONS, DISTINCT, VALUES = (
    {"entry": f"{Path(__file__).with_name('late_jobs.py')}:{job}"}
    for job in (
        "late_windows",
        "late_windows_for_each",
        "late_sessions",
        "late_distinct",
        "only_values",
    )
)
ONE_BY_ONE = {"files_per_batch": "1"}


@pytest.fixture
def copied(location):
    """Give the earliest file the last modification time, so that Spark reads it last."""
    write_events(location.input, *FILES)
    return location


def said_of_the_run(location, capsys):
    assert main(["status", str(location.job_dir)]) == 0
    text = capsys.readouterr().out
    assert main(["status", str(location.job_dir), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return text, run


def counted(location):
    """Return how many rows are in the windows that a job has written."""
    return sum(row[3] for row in read_with_pandas(location.output))


@pytest.mark.long
def test_late_rows_are_said_everywhere(spark, copied, capsys, caplog):
    """Of 2,000 rows 400 come late: the documents, the status and the log have the number."""
    with caplog.at_level(logging.WARNING):
        final = copied.run(spark, "w", params=ONE_BY_ONE, **WINDOWS)

    told = (
        "400 rows of 2,000 read (20 %) came late and were dropped: 400 by operator 0 of query out"
    )
    text, run = said_of_the_run(copied, capsys)
    assert ROWS * 4 == counted(copied)
    assert ("FINISHED", 2000, ROWS) == (final.outcome, final.rows_read, final.late_rows)
    assert [ROWS] * 4 == [
        final.queries["out"].operators[0].late_rows,
        run["final"]["late_rows"],
        run["progress"]["late_rows"],
        run["progress"]["queries"]["out"]["operators"][0]["late_rows"],
    ]
    assert told in text
    assert 1 <= sum(told in record.getMessage() for record in caplog.records) <= 2


@pytest.mark.long
@pytest.mark.parametrize(
    "point", [pytest.param("sink.precommitted", marks=pytest.mark.whole), "drain.intended"]
)
def test_late_rows_are_counted_once_over_deaths_of_drivers(spark, copied, point):
    """A batch that is run again counts once, and what earlier drivers have counted stays."""
    with failing_at(point, times=1), pytest.raises(RunFailedError):
        copied.run(spark, "w", run_id="r", params=ONE_BY_ONE, **WINDOWS)

    final = copied.run(spark, "w", run_id="r", params=ONE_BY_ONE, **WINDOWS)

    assert (2000, ROWS) == (final.rows_read, final.late_rows)


def test_nothing_is_late_in_batch(spark, copied):
    """A batch job reads everything at once, so it counts 2,000 rows and no late one."""
    final = copied.run(spark, "w", mode="batch", **WINDOWS)

    assert 2000 == counted(copied)
    assert (2000, 0) == (final.rows_read, final.late_rows)
    run = JobDirectory(open_storage(str(copied.job_dir))).run(final.run_id)
    assert 0 == present(run.progress()).late_rows


@pytest.mark.long
@pytest.mark.parametrize(
    ("job", "params", "late"),
    [
        pytest.param(WINDOWS, {"window": "10 seconds,5 seconds"}, (ROWS, False), id="sliding"),
        pytest.param(SESSIONS, {}, (ROWS, False), id="sessions"),
        pytest.param(DISTINCT, {}, (ROWS, False), id="distinct", marks=pytest.mark.whole),
        pytest.param(
            WINDOWS,
            {"window": "10 seconds,4 seconds"},
            (0, True),
            id="a length that is no multiple of the slide",
            marks=pytest.mark.whole,
        ),
    ],
)
def test_rows_are_counted_and_not_their_groups(spark, copied, job, params, late):
    """
    Also where Spark has combined them before it drops them, and where each is in several windows.
    """
    final = copied.run(spark, "w", params={**ONE_BY_ONE, **params}, **job)

    least, is_minimum = late
    assert (2000, is_minimum) == (final.rows_read, final.late_minimum)
    assert least == final.late_rows or (is_minimum and 0 < final.late_rows)


@pytest.mark.long
def test_too_many_late_rows_fail_the_run_before_they_are_published(spark, copied):
    """
    A retry fails as well; what was published before stays, and with a limit that accepts them the
    same run goes on. Its late rows are counted once.
    """
    asked = {"run_id": "r", "params": ONE_BY_ONE, **WINDOWS}
    for _ in range(2):
        with pytest.raises(RunFailedError, match=r"400 rows of 2,000 read \(20 %\)") as error:
            copied.run(spark, "w", late="fail", late_limit="19.9%", **asked)
        assert FailureClass.NON_RECOVERABLE is error.value.failure.failure_class
        assert "Accepted are 19.9 %" in str(error.value)
    assert 0 < counted(copied) < 4 * ROWS

    final = copied.run(spark, "w", late="fail", late_limit="20%", **asked)

    assert ("FINISHED", 2000, ROWS, 4 * ROWS) == (
        final.outcome,
        final.rows_read,
        final.late_rows,
        counted(copied),
    )


@pytest.mark.long
def test_too_many_late_rows_do_not_reach_a_function(spark, copied):
    """
    A function of ``for_each_batch`` is not called with the batch that crosses the limit, and with
    a limit that accepts it the run calls the function once.
    """
    params = {**ONE_BY_ONE, "trace": str(copied.trace)}
    asked = {"run_id": "r", "params": params, **FOR_EACH}
    with pytest.raises(RunFailedError, match=r"400 rows of 2,000 read \(20 %\)") as error:
        copied.run(spark, "w", late="fail", late_limit="19.9%", **asked)
    assert FailureClass.NON_RECOVERABLE is error.value.failure.failure_class
    seen = copied.noted()

    final = copied.run(spark, "w", late="fail", late_limit="20%", **asked)

    epochs = [int(line.partition(":")[0]) for line in copied.noted()]
    rows = sum(int(line.partition(":")[2]) for line in copied.noted())
    assert ("FINISHED", 2000, ROWS) == (final.outcome, final.rows_read, final.late_rows)
    assert (list(range(len(epochs))), 4 * ROWS) == (epochs, rows)
    assert seen == copied.noted()[: len(seen)]


def names_in_order(location):
    """Give the files names in the order of their rows, and all of them one time."""
    for number, first in enumerate(ORDER):
        (location.input / f"{number:03d}.csv").rename(location.input / f"{first:05d}.csv")
    for file in location.input.iterdir():
        os.utime(file, (START, START))


@pytest.mark.long
def test_files_are_read_by_name_also_by_a_run_that_is_resumed(spark, copied, caplog):
    """Of copied files a driver warns. By name no row is late, whichever driver reads them."""
    names_in_order(copied)
    by_name = {"params": {**ONE_BY_ONE, "read_order": "name"}, **WINDOWS}
    with caplog.at_level(logging.INFO):
        with failing_at("files.published_one", times=1), pytest.raises(RunFailedError):
            copied.run(spark, "w", run_id="r", **by_name)
        final = copied.run(spark, "w", run_id="r", **by_name)
        other = Location(copied.root / "other")
        params = {**ONE_BY_ONE, "input": str(copied.input)}
        other.run(spark, "w", params=params, **WINDOWS)

    assert (2000, 0, 2000) == (final.rows_read, final.late_rows, counted(copied))
    log = caplog.text
    assert "files of source events by name" in log
    assert "files of source events by modification time" in log
    assert 1 == log.count("5 of 5 files were modified in one second")


def test_rows_are_read_before_they_are_filtered(spark, copied, caplog):
    """
    A filter that a reader of text could take over does not change the number of rows read; where
    one of Parquet does, the log has its filters.
    """
    final = copied.run(spark, "v", **VALUES)

    assert (2000, 800) == (final.rows_read, len(read_with_pandas(copied.output)))
    assert "is without what" not in caplog.text

    parquet, other = copied.root / "parquet", Location(copied.root / "other")
    spark.read.schema(SCHEMA).csv(str(copied.input)).write.parquet(str(parquet))
    params = {"input": str(parquet), "format": "parquet"}
    with caplog.at_level(logging.INFO):
        other.run(spark, "v", params=params, **VALUES)
    assert "rows_read is without what [IsNotNull(v), GreaterThan(v,5)] leave out" in caplog.text
