"""Supervision periods: the run that a DAG run's task supervises, after any number of stops."""

from __future__ import annotations

import pytest

from airflow_provider.hooks.task_runs import Period
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.testing.job_directories import JobDirectoryBuilder
from tests.unit.counting import CountingStorage


@pytest.mark.parametrize("stops", [0, 1, 2, 3, 4, 7, 8, 9, 31, 32, 33])
def test_the_last_successor_is_found(tmp_path, clock, stops):
    """Each begins when the one before it was stopped, and is looked for by doubling."""
    job = JobDirectoryBuilder(tmp_path / "job")
    for number in range(1, stops + 1):
        job.suspended("stream" if number == 1 else f"stream.{number}")
    counted = CountingStorage(job.storage)

    found = Period(JobDirectory(counted), "stream", "task", 0, clock).run_id()

    assert ("stream" if not stops else f"stream.{stops + 1}") == found
    assert counted.taken()["read"] <= 25


def test_a_stream_that_has_finished_has_no_successor(tmp_path, clock):
    """After a drain there is nothing left to do."""
    job = JobDirectoryBuilder(tmp_path / "job").suspended("stream").finished("stream.2")

    assert "stream.2" == Period(job.directory, "stream", "task", 0, clock).run_id()
