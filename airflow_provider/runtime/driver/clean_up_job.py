"""Cleanup of a job that no driver runs: publishes what Spark has committed, removes the rest."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.driver.idle_job import last_request
from airflow_provider.runtime.driver.job_checks import writer_of
from airflow_provider.runtime.driver.load_job import check_before_cleanup, load_job_in
from airflow_provider.runtime.jobdir.end_of_input import drain_intent, draining_run
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease
from airflow_provider.runtime.jobdir.pinned_settings import read_pins
from airflow_provider.runtime.jobdir.run_commit import commit_log_of
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.savepoints.relocation import relocate
from airflow_provider.runtime.savepoints.restores import check_no_open_restore
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.spark.session import jvm_pid, using_spark

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.driver.load_job import LoadedJob
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

    Crash safety: calling it again completes it.
    """
    clock = clock or SystemClock()
    directory = open_job_directory(job_dir)
    last, spec = last_request(directory, entry, conf)
    observer = check_before_cleanup(spec, directory, clock)
    with using_spark(spark, f"spark-stream cleanup {job_dir}", spec.master, spec.conf) as session:
        pins = read_pins(directory.storage)
        job = load_job_in(last.mode, spec, last.run_id, session, pins=pins)
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
            check_no_open_restore(directory)
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
    if last.mode == BATCH:
        return -1 if directory.run(last.run_id).final() is None else None
    draining = draining_run(directory)
    if draining is None or directory.run(draining).final() is not None:
        return None
    intent = drain_intent(directory, query)
    return intent.batch if intent is not None else None
