"""Recovers a job's sinks without running it: finishes pending commits, removes staged files."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.driver.job_checks import writer_of
from airflow_provider.runtime.driver.prepare import check_before_cleanup, load_job_in
from airflow_provider.runtime.jobdir.batch_commit import commit_log_of
from airflow_provider.runtime.jobdir.end_of_input import drain_intent, draining_run
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.savepoints.relocate import relocate
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.spark.session import jvm_pid, using_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.driver.prepare import LoadedJob
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord


def clean_up(
    job_dir: str,
    *,
    entry: str | None = None,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> list[str]:
    """Publish what Spark has committed, and remove staged data that nothing will publish.

    The job's function is called as its last run called it, to learn its sinks; no query is started.

    Args:
        job_dir: the job directory.
        entry: where the job's function lies now; None for where its last run found it.
        conf: Spark configuration.
        spark: a session whose JVM is used and left running; None to start Spark, and stop it.
        clock: time; None for the machine's.

    Returns:
        The names of the queries whose sinks are in order.

    Raises:
        UnknownJobError: no run of the job was ever recorded there.
        LeaseHeldError: a driver is running the job; it does this by itself.

    Crash safety: calling it again completes it.
    Idempotent: by job directory.
    """
    clock = clock or SystemClock()
    directory = open_job_directory(job_dir)
    last = last_run(directory)
    spec = RunSpec(
        job_dir=job_dir,
        entry=entry or last.entry,
        run_id=last.run_id,
        params=last.params,
        secret_params=last.secret_params,
        conf=conf or {},
    )
    observer = check_before_cleanup(spec, directory, clock)
    app_name = f"spark-stream cleanup {job_dir}"
    with using_spark(spark, app_name, spec.master, spec.conf) as session:
        job = load_job_in(last.mode, spec, last.run_id, session)
        name = f"cleanup-{uuid.uuid4().hex}"  # of no run: a task would adopt it as its driver
        lease = acquire_lease(
            directory.storage,
            run_id=name,
            driver_id=name,
            owner=identify_this(jvm_pid(session)),
            clock=clock,
            observer=observer,
        )
        with lease, job.context.holding:
            relocate(directory, lease, clock)
            return _recover(directory, job, last, lease, clock)


def _recover(
    directory: JobDirectory, job: LoadedJob, last: RunRecord, lease: Lease, clock: Clock
) -> list[str]:
    run = directory.run(last.run_id)
    two_phase = [definition for definition in job.queries if definition.native is None]
    for definition in two_phase:
        EpochCommitter(
            definition.name,
            storage=directory.committables(definition.name),
            logs=commit_log_of(directory, run, definition.name, mode=last.mode),
            sinks=definition.sinks,
            lease=lease,
            run_id=last.run_id,
            clock=clock,
            writer=writer_of(directory),
        ).recover(_held_back_after(directory, last, definition.name))
    return [definition.name for definition in two_phase]


def _held_back_after(directory: JobDirectory, last: RunRecord, query: str) -> int | None:
    """Return the batch after which output waits for ``finish()``; None for none."""
    if last.mode == BATCH:
        return -1 if directory.run(last.run_id).final() is None else None
    draining = draining_run(directory)
    if draining is None or directory.run(draining).final() is not None:
        return None
    intent = drain_intent(directory, query)
    return intent.batch if intent is not None else None
