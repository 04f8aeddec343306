"""Rows that are dropped as late are counted, and shown wherever a run is reported."""

from __future__ import annotations

import json
import logging

import pytest
from streams import failing_at, read_with_pandas, write_events

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.storage.open import open_storage
from tests.present import present

pytestmark = pytest.mark.spark

ROWS = 400
ORDER = (1000, 2000, 3000, 4000, 0)  # the fifth file has the earliest rows
FILES = [[(first + n, f"k{n % 7}", 1) for n in range(ROWS)] for first in ORDER]
ONE_BY_ONE = {"files_per_batch": "1"}


@pytest.fixture
def copied(place):
    """Give the earliest file the last modification time, so that Spark reads it last."""
    write_events(place.input, *FILES)
    return place


def said_of_the_run(place, capsys):
    assert main(["status", str(place.job_dir)]) == 0
    text = capsys.readouterr().out
    assert main(["status", str(place.job_dir), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return text, run


def test_late_rows_are_said_everywhere(spark, copied, capsys, caplog):
    """
    Of 2,000 rows 400 come late: the documents, the status and the log have the number.
    """
    with caplog.at_level(logging.WARNING):
        final = copied.run(spark, "late_seconds", params=ONE_BY_ONE)

    told = "at least 400 rows of 2,000 read (20 %) came late and were dropped: 400 by operator 0 of query out"
    text, run = said_of_the_run(copied, capsys)
    assert ROWS * 4 == len(read_with_pandas(copied.output))
    assert ("FINISHED", 2000, ROWS) == (final.outcome, final.rows_read, final.late_rows)
    assert [ROWS] * 4 == [
        final.queries["out"]["operators"][0]["late_rows"],
        run["final"]["late_rows"],
        run["progress"]["late_rows"],
        run["progress"]["queries"]["out"]["operators"][0]["late_rows"],
    ]
    assert told in text
    assert 1 <= sum(told in record.getMessage() for record in caplog.records) <= 2


@pytest.mark.parametrize(
    "point", [pytest.param("sink.precommitted", marks=pytest.mark.whole), "drain.intended"]
)
def test_late_rows_are_counted_once_over_deaths_of_drivers(spark, copied, point):
    """
    A batch that is run again counts once, and what earlier drivers have counted stays.
    """
    with failing_at(point, times=1), pytest.raises(RunFailedError):
        copied.run(spark, "late_seconds", run_id="r", params=ONE_BY_ONE)

    final = copied.run(spark, "late_seconds", run_id="r", params=ONE_BY_ONE)

    assert (2000, ROWS) == (final.rows_read, final.late_rows)


def test_nothing_is_late_in_batch(spark, copied):
    """
    A batch job reads everything at once, so it counts 2,000 rows and no late one.
    """
    final = copied.run(spark, "late_seconds", mode="batch")

    assert 2000 == len(read_with_pandas(copied.output))
    assert (2000, 0) == (final.rows_read, final.late_rows)
    run = JobDirectory(open_storage(str(copied.job_dir))).run(final.run_id)
    assert 0 == present(run.progress()).late_rows
