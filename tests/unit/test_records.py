"""Records of a driver's end, and the messages where they cannot be written."""

from __future__ import annotations

import datetime as dt

import pytest

from airflow_provider.runtime.driver.records import end_attempt
from airflow_provider.runtime.errors.explanation import Failure, FailureClass
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.run_records import FAILED, FINISHED
from airflow_provider.runtime.storage.local import LocalStorage
from airflow_provider.runtime.testing.job_directories import an_attempt

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)
LOST = Failure(FailureClass.NON_RECOVERABLE, "no such column", "UNRESOLVED_COLUMN", "a", "worker-7")


@pytest.fixture
def run(tmp_path):
    run = JobDirectory(LocalStorage(str(tmp_path))).run("r1")
    run.put_attempt(an_attempt())
    return run


def test_the_end_of_an_attempt_is_recorded(run):
    """
    Outcome and failure are in the attempt's record, and the failure is the one that is raised.
    """
    assert LOST == end_attempt(run, an_attempt(), NOW, FAILED, LOST)

    (record,) = run.attempts()
    assert (FAILED, LOST.to_dict()) == (record.outcome, record.failure)


def test_an_end_that_cannot_be_recorded_says_both(run, tmp_path):
    """The class of what has failed decides, also where a full disk keeps it from being put down."""
    folder = tmp_path / "runs" / "r1" / "attempts"
    folder.rename(folder.with_name("away"))
    folder.write_bytes(b"no folder")

    told = end_attempt(run, an_attempt(), NOW, FAILED, LOST)

    assert told is not None
    assert FailureClass.NON_RECOVERABLE is told.failure_class
    assert told.reason.startswith("no such column (this could not be recorded: ")
    assert end_attempt(run, an_attempt(), NOW, FINISHED) is None
