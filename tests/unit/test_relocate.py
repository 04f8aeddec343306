"""A driver leaves the checkpoints to which an earlier one may still write."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import LeaseLostError, MissingStateError
from airflow_provider.runtime.jobdir.checkpoint_locations import locations, next_number
from airflow_provider.runtime.jobdir.journal import draft
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.savepoints import checkpoint_copies, relocation
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.storage.copy_files import copy_files
from airflow_provider.runtime.testing.job_directories import QUERY_ID
from tests.dying import dies_at
from tests.unit.support import EpochBench, FakeFrame, FakeSink, counted

STEPS = ("relocation.intended", "relocation.copied", "relocation.done")


@pytest.fixture
def job(tmp_path):
    bench = EpochBench(tmp_path / "job", FakeSink()).begun()
    yield bench
    bench.close()


def relocated(job: EpochBench, *queries: str):
    """Take the lease of a silent driver, as one that follows it, and return it."""
    lease = job.lease()
    relocate(JobDirectory(job.storage), lease, job.clock, queries)
    return lease


def test_late_writes_land_where_nobody_reads(job):
    """The epochs go on under the same id, whatever the old driver's Spark still writes."""
    first = job.recovered()
    job.spark.run(0)
    first.pre_commit(FakeFrame("a"), 0, counted(1))
    first.commit_ready()
    before = job.spark

    relocated(job)
    before.plan(1, sources=['{"logOffset":7}']).commit(1)

    assert "checkpoint-1" == job.spark.root.name
    assert (QUERY_ID, 0) == (job.spark.logs.query_id(), job.spark.logs.position().last_offsets)
    assert job.spark.root.joinpath("offsets/0").samefile(before.root / "offsets/0")
    Restores(JobDirectory(job.storage)).remove_left()
    assert ["checkpoint-1", "committables"] == job.storage.list("queries/q")


def test_a_planned_batch_is_planned_in_the_copy(job):
    """It runs again with the offsets that the old driver may have staged it with."""
    job.spark.run(0).plan(1, sources=['{"logOffset":1}']).storage.put("sources/0/1", b"v1")
    job.lease()
    relocated(job)
    assert 1 == job.spark.logs.position().open_batch
    assert ('{"logOffset":1}',) == job.spark.logs.offsets(1).sources


def test_the_first_batch_runs_again_without_state(job):
    """A copy of a query that has committed nothing has its plan, and no state."""
    job.spark.plan(0).keep_state()
    job.lease()
    relocated(job)
    assert 0 == job.spark.logs.position().open_batch
    assert not job.spark.logs.is_stateful()


def test_a_query_that_was_never_started_gets_a_location(job):
    """The old driver may be about to start it."""
    job.lease()
    relocated(job, "new")
    assert {"new": 1, "q": 1} == locations(job.storage)


def test_behind_a_driver_that_has_ended_nothing_is_copied(job):
    """Also when another one before it has not: its checkpoints were left."""
    job.spark.run(0)
    job.lease()
    relocated(job).release()
    relocated(job).release()
    relocated(job)
    assert "checkpoint-1" == job.spark.root.name


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_that_dies_while_it_relocates(job, step):
    """The next one knows from its own lease that the old locations are exposed, and relocates."""
    job.spark.run(0)
    job.lease()

    with dies_at(step):
        relocated(job)
    job.end(2)  # it has certainly ended, and the one before it has not

    relocated(job)

    assert (1 if step == "relocation.done" else 2) == locations(job.storage)["q"]
    assert 0 == job.spark.logs.position().last_commit
    Restores(JobDirectory(job.storage)).remove_left()
    assert [job.spark.root.name] == job.storage.list("queries/q")


def test_an_overtaken_driver_does_not_relocate(job, monkeypatch):
    """Its lease is gone when it has copied, so its record names no location."""
    job.spark.run(0)
    job.lease()

    def overtaken(name):
        if name == "relocation.copied":
            monkeypatch.setattr(failpoints, "hit", lambda _: None)
            relocated(job)

    monkeypatch.setattr(failpoints, "hit", overtaken)
    with pytest.raises(LeaseLostError):
        relocated(job)
    assert {"q": 2} == locations(job.storage)


@pytest.mark.parametrize("read", [next_number, draft])
def test_a_driver_that_is_overtaken_before_its_record_does_not_go_on(job, monkeypatch, read):
    """
    The next driver has relocated under the same number: this one neither starts nor relocates, and
    what it has read before is not what counts.
    """
    job.spark.run(0)
    job.lease()

    def overtaken(*arguments):
        monkeypatch.setattr(relocation, read.__name__, read)
        found = read(*arguments)
        relocated(job)
        return found

    monkeypatch.setattr(relocation, read.__name__, overtaken)
    with pytest.raises(LeaseLostError):
        relocated(job)
    assert {"q": 1} == locations(job.storage)


def test_a_batch_that_spark_removes_meanwhile_gives_way_to_a_newer_one(job, monkeypatch):
    """The old driver's Spark runs on while its checkpoint is copied."""
    job.spark.run(0).run(1)
    before, calls = job.spark, []

    def copy(source, target, files):
        calls.append(source)
        if len(calls) == 1:
            before.run(2).run(3)
            for path in ("offsets/0", "commits/0", "offsets/1", "commits/1"):
                (before.root / path).unlink()
        return copy_files(source, target, files)

    monkeypatch.setattr(checkpoint_copies, "copy_files", copy)
    job.lease()
    relocated(job)
    assert 3 == job.spark.logs.position().last_commit


def test_a_checkpoint_that_lacks_files_is_named_and_nothing_changes(job):
    """It stays where it is, for a person to look at."""
    job.spark.run(0).run(1)
    (job.spark.root / "offsets/0").unlink()
    job.lease()
    with pytest.raises(MissingStateError, match="offsets/0"):
        relocated(job)
    assert {} == locations(job.storage)
    assert 1 == CheckpointLogs(job.storage.at("queries/q/checkpoint")).position().last_commit
