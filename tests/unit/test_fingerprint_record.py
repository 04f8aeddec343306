"""The record of a query: what counts after starts that have or have not committed a batch."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.checkpoint.topology import (
    Fingerprint,
    OperatorFingerprint,
    OperatorShape,
    Topology,
)
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.query_records import (
    TopologyRecord,
    keep_topology,
    kept_fingerprint,
    kept_topology,
    put_topology,
)
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.unit.counting import CountingStorage
from tests.unit.support import EpochBench, FakeSink

PATH = f"queries/q/topologies/{QUERY_ID}.json"


def made_by(window: str) -> Fingerprint:
    operator = OperatorFingerprint(id=0, kind="stateStoreSave", window=window)
    return Fingerprint(spark="4.3", output_mode="append", operators=(operator,))


TEN, TWENTY = made_by("window(time, 10 minutes)"), made_by("window(time, 20 minutes)")
EVENTS = Topology(("events",), (OperatorShape(0, "stateStoreSave"),))
OTHERS = Topology(("others",), (OperatorShape(0, "dedupe"),))


def start(directory: JobDirectory, fingerprint: Fingerprint | None, topology=EVENTS) -> None:
    before = CheckpointLogs(directory.checkpoint("q")).position()
    keep_topology(directory, "q", topology, fingerprint, before=before)


@pytest.fixture
def job(tmp_path):
    """Yield a job whose query has committed two batches."""
    made = EpochBench(tmp_path / "job", FakeSink("files:/out")).begun().published(2)
    yield made
    made.close()


@pytest.fixture
def directory(job) -> JobDirectory:
    return JobDirectory(job.storage)


def test_a_change_counts_when_a_batch_has_committed(job, directory):
    """
    What is put before a start counts from its first commit on; a start that was cut short is
    forgotten by the next one, and the state before a batch is still what made that.
    """
    assert kept_fingerprint(directory, "q") is None
    put_topology(directory, "q", QUERY_ID, EVENTS, TEN)
    start(directory, TWENTY)
    assert TEN == kept_fingerprint(directory, "q")
    assert TWENTY == kept_fingerprint(directory, "q", 2)

    start(directory, TEN)
    record = TopologyRecord.read(job.storage, PATH)
    assert record is not None
    assert [(0, TEN)] == [(each.since, each.fingerprint) for each in record.versions]

    start(directory, TWENTY)
    job.spark.plan(2)
    job.spark.commit(2)
    assert (TEN, TWENTY) == tuple(kept_fingerprint(directory, "q", batch) for batch in (1, 2))
    assert TWENTY == kept_fingerprint(directory, "q")


def test_what_is_not_known_replaces_nothing(job, directory):
    """A plan that cannot be read, or a query without a checkpoint, leaves what was kept."""
    put_topology(directory, "q", QUERY_ID, EVENTS, TEN)
    before = job.storage.read(PATH)
    start(directory, None)
    position = CheckpointLogs(directory.checkpoint("q")).position()
    keep_topology(directory, "other", EVENTS, TEN, before=position)
    assert before == job.storage.read(PATH)
    assert kept_fingerprint(directory, "other") is None


def test_the_first_topology_stays(job, directory):
    """A later start, and a restore that is continued, change neither it nor earlier versions."""
    start(directory, TEN)
    start(directory, TWENTY, OTHERS)
    put_topology(directory, "q", QUERY_ID, OTHERS, TEN)

    assert EVENTS == kept_topology(directory, "q")
    assert TWENTY == kept_fingerprint(directory, "q", 2)


def test_a_topology_without_names_is_completed_by_the_first_start(directory):
    """A savepoint of a checkpoint that no job directory held has no names; its fingerprint stays."""
    put_topology(directory, "q", QUERY_ID, Topology((None,), None), TEN)
    start(directory, TWENTY)

    assert EVENTS == kept_topology(directory, "q")
    assert (TEN, TWENTY) == tuple(kept_fingerprint(directory, "q", batch) for batch in (1, 2))


def test_a_query_of_which_nothing_was_planned_may_become_another(tmp_path):
    """Its record is the last start's."""
    bench = EpochBench(tmp_path / "job", FakeSink("files:/out")).begun()
    directory = JobDirectory(bench.storage)
    start(directory, TEN)
    start(directory, TWENTY, OTHERS)
    bench.close()

    assert OTHERS == kept_topology(directory, "q")
    assert TWENTY == kept_fingerprint(directory, "q")


def test_a_record_that_another_driver_puts_first_stays(job, directory, monkeypatch):
    """A driver was paused before its first record, and another one has started the query."""
    put_if_absent = CountingStorage.put_if_absent
    others: list[str] = []

    def paused(storage, path, data):
        if not others:
            others.append(path)
            start(directory, TEN)
        return put_if_absent(storage, path, data)

    monkeypatch.setattr(CountingStorage, "put_if_absent", paused)
    start(JobDirectory(CountingStorage(job.storage)), TEN, OTHERS)

    assert [PATH] == others
    assert EVENTS == kept_topology(directory, "q")


@pytest.mark.slow
def test_a_start_that_changes_nothing_writes_nothing(job, directory):
    """One write that is refused, and one read."""
    start(directory, TEN)
    counted = CountingStorage(job.storage)
    position = CheckpointLogs(directory.checkpoint("q")).position()
    keep_topology(JobDirectory(counted), "q", EVENTS, TEN, before=position)

    assert 1 == counted.taken()["put"]


def test_a_fingerprint_is_read_back_as_it_was_stored(directory):
    """Named tuples, missing columns and empty tuples survive the document."""
    odd = dataclasses.replace(TEN.operators[0], key_types=(), columns=None, keys=("a|b", "'x'"))
    record = dataclasses.replace(TEN, operators=(odd,))
    start(directory, record)
    assert record == kept_fingerprint(directory, "q")


def test_a_savepoint_carries_what_made_its_batch(job, directory, clock, tmp_path):
    """Of a job that was changed since, the savepoint has what made the state in it."""
    put_topology(directory, "q", QUERY_ID, EVENTS, TEN)
    start(directory, TWENTY)
    savepoint = take_savepoint(job_source(job.storage.url, clock), str(tmp_path / "s1"))
    assert TEN == savepoint.record.queries["q"].fingerprint
