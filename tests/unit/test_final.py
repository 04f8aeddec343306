"""The final checkpoint is believed only when the logs and the sinks agree."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.driver.records import check_agrees
from airflow_provider.runtime.errors import EXIT_FATAL, CheckpointError
from airflow_provider.runtime.jobdir.epoch_documents import HistoryRecord
from airflow_provider.runtime.jobdir.epochs import EpochListing, EpochRecords
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import FINISHED, SUSPENDED
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import RestoreSettings
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.testing.job_directories import QUERY_ID, JobDirectoryBuilder, a_final
from tests.unit.support import FakeClock


@pytest.fixture
def job(tmp_path) -> JobDirectoryBuilder:
    return JobDirectoryBuilder(tmp_path / "job").begin().request_run()


@pytest.mark.parametrize("outcome", [FINISHED, SUSPENDED])
def test_what_is_so_is_believed(job, outcome):
    """With the batch in Spark's log and the epoch published, the final checkpoint holds."""
    job.ran(2)
    final = a_final(outcome=outcome, batch=2, epoch=2)

    assert final is verify_final(job.directory, final)


def test_an_empty_input_is_believed(job):
    """A query that never had a batch has no epoch either, and holds."""
    final = a_final(batch=None, epoch=None)

    assert final is verify_final(job.directory, final)


@pytest.mark.parametrize("outcome", [FINISHED, SUSPENDED])
@pytest.mark.parametrize("claimed", [1, 7])
def test_a_batch_that_spark_has_not_committed(job, outcome, claimed):
    """A final checkpoint ahead of Spark's commit log is refused, with both batches."""
    job.ran(0)
    job.spark.plan(1)

    with pytest.raises(
        CheckpointError, match=f"committed batch {claimed}, but Spark's commit log ends with 0"
    ) as raised:
        verify_final(job.directory, a_final(outcome=outcome, batch=claimed, epoch=0))
    assert EXIT_FATAL == raised.value.exit_code


def test_a_checkpoint_that_is_gone(job):
    """A final checkpoint whose Spark checkpoint was removed is refused."""
    with pytest.raises(CheckpointError, match="commit log ends with -1"):
        verify_final(job.directory, a_final(batch=0, epoch=None))


def test_a_suspended_job_may_run_on(job):
    """After a suspended run another one may have committed more."""
    job.ran(5)
    final = a_final(outcome=SUSPENDED, batch=2, epoch=2)

    assert final is verify_final(job.directory, final)


def test_a_finished_job_may_not_run_on(job):
    """A batch after the drain means that another program used the checkpoint."""
    job.ran(5)

    with pytest.raises(CheckpointError, match="by hand or by another program"):
        verify_final(job.directory, a_final(batch=2, epoch=2))


def test_an_epoch_that_is_not_published(job):
    """A final checkpoint whose last epoch waits to be published is refused, with the sink."""
    job.ran(0, published=False)

    with pytest.raises(CheckpointError, match="published epoch 0 to files:/out, but its record"):
        verify_final(job.directory, a_final())


def test_an_epoch_without_a_record(job):
    """A final checkpoint whose last epoch nobody recorded is refused."""
    job.spark.begin().run(0)

    with pytest.raises(CheckpointError, match="its record says otherwise"):
        verify_final(job.directory, a_final())


@pytest.mark.parametrize("folded", [True, False])
def test_every_epoch_of_the_run_is_looked_for(job, folded):
    """
    An epoch in the middle of the run that is not published is found, and earlier runs' are not
    asked for.
    """
    job.ran(4)
    records = EpochRecords(job.directory.committables("q"), QUERY_ID)
    records.forget(EpochListing(published=(2,)))
    if folded:
        records.put_folded(HistoryRecord(ranges=[(0, 1, 1, "r1")]))

    with pytest.raises(CheckpointError, match="of epochs 0 to 4, 2 is not published"):
        verify_final(job.directory, a_final(batch=4, epoch=4))
    job.request_run("r2", starting={"q": 2})
    later = a_final("r2", batch=4, epoch=4)
    assert later is verify_final(job.directory, later)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run_id": "r2"}, "that run is of job 'daily_delays' and has none"),
        ({"job": "another"}, "is of job 'another' and its queries q"),
        ({"queries": {}}, "its queries none, but there that run is .* and has q"),
    ],
)
def test_a_final_checkpoint_of_another_run_job_or_query(job, changed, said):
    """It must name the run and the job in whose directory it lies, and each of their queries."""
    job.ran(0)

    with pytest.raises(CheckpointError, match=said):
        verify_final(job.directory, dataclasses.replace(a_final(), **changed))


def test_an_epoch_beyond_the_commit_log(job):
    """A commit that was removed by hand after its epoch was published is noticed."""
    job.ran(3)
    (job.spark.root / "commits" / "3").unlink()

    with pytest.raises(
        CheckpointError, match="published epoch 3 to files:/out and committed batch"
    ):
        verify_final(job.directory, a_final(outcome=SUSPENDED, batch=2, epoch=3))


def test_a_finished_job_has_no_open_batch(job):
    """
    A batch that is planned after the last one means that a commit is gone, or more was to be read.
    """
    job.ran(2)
    job.spark.plan(3)

    with pytest.raises(CheckpointError, match="and 3 is the last that was planned"):
        verify_final(job.directory, a_final(batch=2, epoch=2))


def test_a_job_that_was_restored_since(job):
    """
    The checkpoint has another id then and its own batches; what the run has published stays so.
    """
    job.ran(2)
    shutil.rmtree(job.spark.root)
    job.spark.begin("restored").run(1)
    EpochRecords(job.directory.committables("q"), "restored").continue_after(1)
    final = a_final(batch=2, epoch=2)

    assert final is verify_final(job.directory, final)


def test_a_job_that_is_being_restored(job, tmp_path):
    """Its checkpoint is not there yet; what a run of before has committed is as true as it was."""
    job.ran(2)
    job.spark.storage.put("sources/0/0", b"v1")
    source = job_source(job.storage.url, FakeClock())
    taken = take_savepoint(source, str(tmp_path / "s"), aligned_timeout_s=0, clock=FakeClock())
    final = a_final(outcome=SUSPENDED, batch=2, epoch=2)
    Restore(job.directory, OpenFence(), FakeClock()).begin(RestoreSettings(taken, {"q": "q"}))

    assert final is verify_final(job.directory, final)
    with pytest.raises(CheckpointError, match="3 is not published"):
        verify_final(job.directory, a_final(outcome=SUSPENDED, batch=3, epoch=3))


@pytest.mark.parametrize(("batch", "agrees"), [(2, True), (1, False), (3, False)])
def test_the_savepoint_that_ends_a_run_has_its_batches(job, tmp_path, batch, agrees):
    """
    When Spark's log has changed between the savepoint and the final checkpoint, the run is not
    ended over it.
    """
    job.ran(2)
    job.spark.storage.put("sources/0/0", b"v1")
    source = job_source(job.storage.url, FakeClock())
    taken = take_savepoint(source, str(tmp_path / "s"), aligned_timeout_s=0, clock=FakeClock())
    final = dataclasses.replace(
        a_final(outcome=SUSPENDED, batch=batch, epoch=batch), savepoint=taken.url
    )

    if agrees:
        check_agrees(final, taken.record)
    else:
        with pytest.raises(CheckpointError, match=f"ends with batch {batch}, but the savepoint"):
            check_agrees(final, taken.record)
