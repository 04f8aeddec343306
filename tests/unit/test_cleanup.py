"""Cleanup, ``spark-stream cleanup``: what it publishes, and leaves to the run that drains."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.driver.clean_up_job import _held_back_after
from airflow_provider.runtime.jobdir.end_of_input import put_drain_intent
from airflow_provider.runtime.testing.job_directories import (
    CheckpointBuilder,
    JobDirectoryBuilder,
    a_run,
    an_intent,
)


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    """Return a job of two queries: ``q`` was drained in r1, and ``p`` is being drained by r2."""
    job = JobDirectoryBuilder(tmp_path / "job").begin()
    job.request_run("r1", token=1).request_run("r2", token=3)
    job.spark.begin()
    CheckpointBuilder(job.root / "queries" / "p" / "checkpoint").begin("p-id")
    ahead = dataclasses.replace(an_intent("r1"), batch=3, token=1, at="2026-01-01T12:00:00.000Z")
    behind = dataclasses.replace(
        an_intent("r2"), query_id="p-id", batch=9, token=4, at="2026-01-01T10:00:00.000Z"
    )
    put_drain_intent(job.directory, "q", ahead)
    put_drain_intent(job.directory, "p", behind)
    return job


def held_back(job: JobDirectoryBuilder, query: str) -> int | None:
    last = job.directory.run("r2").record()
    assert last is not None
    return _held_back_after(job.directory, last, query)


def test_what_a_drain_has_flushed_waits_for_its_run(job):
    """
    Until the run that drains has called finish() its output is not shown, whatever clocks say.
    """
    job.suspended("r1")

    assert 9 == held_back(job, "p")


def test_what_a_finished_drain_has_flushed_is_published(job):
    """When the run that drains has ended there is nothing left to wait for."""
    job.finished("r2")

    assert [None, None] == [held_back(job, "p"), held_back(job, "q")]


def test_a_job_that_reads_holds_nothing_back(job):
    """While a query still reads, every epoch that Spark has committed is published."""
    job.storage.delete("queries/p/drains")

    assert [None, None] == [held_back(job, "p"), held_back(job, "q")]


@pytest.mark.parametrize(("ended", "expected"), [(False, -1), (True, None)])
def test_a_batch_run_shows_nothing_before_its_end(job, ended, expected):
    """In BATCH all output waits for finish()."""
    if ended:
        job.finished("r2")
    batch = a_run("r2", mode="batch")

    assert expected == _held_back_after(job.directory, batch, "p")
