"""The driver: one attempt at a run, from its options to the final checkpoint."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from airflow_provider.runtime.clock import Clock, SystemClock
from airflow_provider.runtime.driver.attempt import Attempt, OnProgress
from airflow_provider.runtime.driver.mode_choice import load_job
from airflow_provider.runtime.driver.prepare import (
    check_before_spark,
    endless_lines,
    find_requested_run,
)
from airflow_provider.runtime.entry_point import form_of
from airflow_provider.runtime.errors.ways_out import addressing
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.spark.secrecy import settings_without_ui
from airflow_provider.runtime.spark.session import describe_settings, using_spark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

log = logging.getLogger(__name__)


def run_job(
    spec: RunSpec,
    *,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    on_spark_started: Callable[[], None] | None = None,
    clock: Clock | None = None,
) -> FinalCheckpoint:
    """Run a job until it has its final checkpoint; one attempt.

    Args:
        spec: what is wanted.
        spark: a session whose JVM is used and left running; None to start Spark, and stop it.
        stop: set by the caller to cancel the attempt.
        on_progress: called about once a second.
        on_spark_started: called when the JVM runs, which changes the process's signal handlers.
        clock: time; None for the machine's.

    Returns:
        The run's final checkpoint, verified; at once when the run has one already.

    Raises:
        ConfigError: the request cannot be met; nothing was written.
        LeaseHeldError: another driver is running the job; nothing was written.
        LeaseLostError: another driver took over; this one has committed nothing since.
        RunFailedError: the attempt failed; what was committed stays, the same request resumes.
        RunCancelledError: the attempt was cancelled; the same request resumes.

    Crash safety: the same request resumes from any point; see the crash table in ARCHITECTURE.md.
    """
    with addressing(form=form_of(spec.entry)):
        return _run_job(
            spec,
            spark=spark,
            stop=stop or threading.Event(),
            on_progress=on_progress,
            on_spark_started=on_spark_started,
            clock=clock or SystemClock(),
        )


def _run_job(
    spec: RunSpec,
    *,
    spark: SparkSession | None,
    stop: threading.Event,
    on_progress: OnProgress | None,
    on_spark_started: Callable[[], None] | None,
    clock: Clock,
) -> FinalCheckpoint:
    run = find_requested_run(spec, clock)
    if run.final is not None:
        return run.final
    spec, directory, run_id = run.spec, run.directory, run.run_id
    observer = check_before_spark(spec, directory, run_id, clock)
    app_name = f"spark-stream {spec.job_dir} {run_id}"
    conf = settings_without_ui(spec.conf, os.environ) if spec.secret_params else spec.conf
    with using_spark(spark, app_name, spec.master, conf) as session:
        if on_spark_started is not None:
            on_spark_started()
        job = load_job(spec, directory, run_id, session)
        is_batch = job.plan.mode == BATCH
        log.info("Spark: %s", describe_settings(job.spark, spec.conf, is_batch=is_batch))
        for line in endless_lines(spec, job):
            log.info("run=%s %s", run_id, line)
        with job.context.holding:
            return Attempt(
                spec,
                directory,
                run_id,
                job,
                observer=observer,
                clock=clock,
                stop=stop,
                on_progress=on_progress,
            ).run()
