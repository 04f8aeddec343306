"""A driver whose storage is away when it has something to say."""

from __future__ import annotations

from pathlib import Path

import pytest
from streams import write_events

from airflow_provider.runtime.driver import attempt
from airflow_provider.runtime.errors import EXIT_FATAL, RunFailedError
from airflow_provider.runtime.errors.explanation import FailureClass

pytestmark = pytest.mark.spark

JOBS = Path(__file__).with_name("outage_jobs.py")


@pytest.mark.long
def test_a_failure_that_cannot_be_recorded_keeps_its_class_and_its_words(
    spark, location, monkeypatch
):
    """
    A batch fails for good while the job directory is away: the attempt ends with that failure's exit
    code, and its error says both what has failed and that nobody could be told.
    """
    # Else a slow machine finds that the lease has gone before Spark has told why.
    monkeypatch.setattr(attempt, "_SLOW_POLL_S", 60.0)
    write_events(location.input, [(1, "a", 7)])
    asked = {"entry": f"{JOBS}:taking_its_place", "params": {"job_dir": str(location.job_dir)}}

    with pytest.raises(RunFailedError) as raised:
        location.run(spark, "taking_its_place", **asked)
    failure = raised.value.failure

    assert (FailureClass.NON_RECOVERABLE, "KeyError") == (failure.failure_class, failure.condition)
    assert EXIT_FATAL == RunFailedError(failure).exit_code
    assert "query 'out': 7 (this could not be recorded: " in str(raised.value)
    assert location.job_dir.is_file()
    assert not list((location.job_dir.with_name("away") / "runs").glob("*/final.json"))
