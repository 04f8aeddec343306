"""Fingerprint records: what counts after starts that have or have not committed a batch."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.checkpoint.topology import Fingerprint, OperatorFingerprint
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import (
    FingerprintRecord,
    keep_fingerprint,
    kept_fingerprint,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.support import EpochBench, FakeSink

PATH = f"queries/q/fingerprints/{QUERY_ID}.json"


def made_by(window: str) -> Fingerprint:
    operator = OperatorFingerprint(id=0, kind="stateStoreSave", window=window)
    return Fingerprint(spark="4.3", output_mode="append", operators=(operator,))


TEN, TWENTY = made_by("window(time, 10 minutes)"), made_by("window(time, 20 minutes)")


@pytest.fixture
def job(tmp_path):
    """Yield a job whose query has committed two batches."""
    made = EpochBench(tmp_path / "job", FakeSink("files:/out")).begun().published(2)
    yield made
    made.close()


def test_a_change_counts_when_a_batch_has_committed(job):
    """
    What is put before a start counts from its first commit on; a start that was cut short is
    forgotten by the next one, and the state before a batch is still what made that.
    """
    directory = JobDirectory(job.storage)
    assert kept_fingerprint(directory, "q") is None
    keep_fingerprint(directory, "q", TEN, since=0)
    keep_fingerprint(directory, "q", TWENTY, since=2)
    assert TEN == kept_fingerprint(directory, "q")
    assert TWENTY == kept_fingerprint(directory, "q", 2)

    keep_fingerprint(directory, "q", TEN, since=2)
    record = FingerprintRecord.read(job.storage, PATH)
    assert record is not None
    assert [(0, TEN)] == [(each.since, each.fingerprint) for each in record.versions]

    keep_fingerprint(directory, "q", TWENTY, since=2)
    job.spark.plan(2)
    job.spark.commit(2)
    assert (TEN, TWENTY) == tuple(kept_fingerprint(directory, "q", batch) for batch in (1, 2))
    assert TWENTY == kept_fingerprint(directory, "q")


def test_what_is_not_known_replaces_nothing(job):
    """A plan that cannot be read, or a query without a checkpoint, leaves what was kept."""
    directory = JobDirectory(job.storage)
    keep_fingerprint(directory, "q", TEN, since=0)
    before = job.storage.read(PATH)
    keep_fingerprint(directory, "q", None, since=2)
    keep_fingerprint(directory, "other", TEN, since=0)
    assert before == job.storage.read(PATH)
    assert kept_fingerprint(directory, "other") is None


def test_a_fingerprint_is_read_back_as_it_was_stored(job):
    """Named tuples, missing columns and empty tuples survive the document."""
    odd = dataclasses.replace(TEN.operators[0], key_types=(), columns=None, keys=("a|b", "'x'"))
    record = dataclasses.replace(TEN, operators=(odd,))
    keep_fingerprint(JobDirectory(job.storage), "q", record, since=0)
    assert record == kept_fingerprint(JobDirectory(job.storage), "q")


def test_a_savepoint_carries_what_made_its_batch(job, clock, tmp_path):
    """Of a job that was changed since, the savepoint has what made the state in it."""
    directory = JobDirectory(job.storage)
    keep_fingerprint(directory, "q", TEN, since=0)
    keep_fingerprint(directory, "q", TWENTY, since=2)
    savepoint = take_savepoint(job_source(job.storage.url, clock), str(tmp_path / "s1"))
    assert TEN == savepoint.record.queries["q"].fingerprint
