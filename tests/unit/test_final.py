"""The final checkpoint is believed only when the logs and the sinks agree."""

from __future__ import annotations

import pytest

from airflow_provider.runtime.errors import EXIT_FATAL, CheckpointError
from airflow_provider.runtime.final import verify_final
from airflow_provider.runtime.jobdir import FINISHED, SUSPENDED
from tests.unit.jobs import HandMadeJob, a_final


@pytest.fixture
def job(tmp_path) -> HandMadeJob:
    return HandMadeJob(tmp_path / "job").begin()


@pytest.mark.parametrize("outcome", [FINISHED, SUSPENDED])
def test_what_is_so_is_believed(job, outcome):
    """
    With the batch in Spark's log and the epoch published, the final checkpoint holds.
    """
    job.ran(2)
    final = a_final(outcome=outcome, batch=2, epoch=2)

    assert final is verify_final(job.directory, final)


def test_an_empty_input_is_believed(job):
    """
    A query that never had a batch has no epoch either, and holds.
    """
    final = a_final(batch=None, epoch=None)

    assert final is verify_final(job.directory, final)


@pytest.mark.parametrize("outcome", [FINISHED, SUSPENDED])
@pytest.mark.parametrize("claimed", [1, 7])
def test_a_batch_that_spark_has_not_committed(job, outcome, claimed):
    """
    A final checkpoint ahead of Spark's commit log is refused, with both batches.
    """
    job.ran(0)
    job.spark.plan(1)

    with pytest.raises(
        CheckpointError, match=f"committed batch {claimed}, but Spark's commit log ends with 0"
    ) as raised:
        verify_final(job.directory, a_final(outcome=outcome, batch=claimed, epoch=0))
    assert EXIT_FATAL == raised.value.exit_code


def test_a_checkpoint_that_is_gone(job):
    """
    A final checkpoint whose Spark checkpoint was removed is refused.
    """
    with pytest.raises(CheckpointError, match="commit log ends with -1"):
        verify_final(job.directory, a_final(batch=0, epoch=None))


def test_a_suspended_job_may_run_on(job):
    """
    After a suspended run another one may have committed more.
    """
    job.ran(5)
    final = a_final(outcome=SUSPENDED, batch=2, epoch=2)

    assert final is verify_final(job.directory, final)


def test_a_finished_job_may_not_run_on(job):
    """
    A batch after the drain means that another program used the checkpoint.
    """
    job.ran(5)

    with pytest.raises(CheckpointError, match="by hand or by another program"):
        verify_final(job.directory, a_final(batch=2, epoch=2))


def test_an_epoch_that_is_not_published(job):
    """
    A final checkpoint whose last epoch waits to be published is refused, with the sink.
    """
    job.ran(0, published=False)

    with pytest.raises(CheckpointError, match="published epoch 0 to files:/out, but its record"):
        verify_final(job.directory, a_final())


def test_an_epoch_without_a_record(job):
    """
    A final checkpoint whose last epoch nobody recorded is refused.
    """
    job.spark.begin().run(0)

    with pytest.raises(CheckpointError, match="its record says otherwise"):
        verify_final(job.directory, a_final())
