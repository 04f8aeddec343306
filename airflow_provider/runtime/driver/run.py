"""The driver: one attempt at a run, from its options to the final checkpoint; and its check."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock, utc_text
from airflow_provider.runtime.base.extensions import PROGRAMS, load_known
from airflow_provider.runtime.base.maturity import describe_use, unproven
from airflow_provider.runtime.driver.attempt import Attempt, OnProgress
from airflow_provider.runtime.driver.job_checks import check_kept_secret
from airflow_provider.runtime.driver.load_job import check_before_cleanup, endless_lines, load_job
from airflow_provider.runtime.driver.open_queries import check_early
from airflow_provider.runtime.driver.records import run_record
from airflow_provider.runtime.driver.take_over import starting_point
from airflow_provider.runtime.entry_point import form_of, is_program, load_before_spark
from airflow_provider.runtime.errors.fixes import addressing, words
from airflow_provider.runtime.jobdir.layout import neighbour_lines, open_job_directory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions, rewound_error
from airflow_provider.runtime.jobdir.run_commit import verify_final
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.jobdir.runs import (
    check_same_as_ended,
    check_same_spec,
    resolve_run_id,
    with_stored_options,
)
from airflow_provider.runtime.queries.known_bugs import check_bug_names
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.restores import is_begun_from_savepoint
from airflow_provider.runtime.savepoints.rewind import check_start
from airflow_provider.runtime.spark.defaults import check_master_and_heap, check_names
from airflow_provider.runtime.spark.installation import check_classic, check_java, is_submitted
from airflow_provider.runtime.spark.options import check_settings
from airflow_provider.runtime.spark.session import describe_settings, using_spark
from airflow_provider.runtime.spark.spark_log import settings_without_ui
from airflow_provider.runtime.storage.open import scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import LeaseObserver
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.spark.session import SparkStarter

log = logging.getLogger(__name__)


def run_job(
    spec: RunSpec,
    *,
    spark: SparkSession | SparkStarter | None = None,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    on_spark_started: Callable[[], None] | None = None,
    clock: Clock | None = None,
) -> FinalCheckpoint:
    """Run a job until it has its final checkpoint; one attempt.

    Args:
        spec: the request.
        spark: a session whose JVM is used and left running, or a starter, which stops Spark
            later; None to start Spark, and stop it.
        stop: set by the caller to cancel the attempt.
        on_progress: called about once a second.
        on_spark_started: called when the JVM runs, which changes the process's signal handlers.
        clock: time; None for the machine's.

    Returns:
        The run's final checkpoint, verified; immediately when the run has one already.

    Raises:
        ConfigError: the request cannot be met; nothing was written.
        LeaseHeldError: another driver is running the job; nothing was written.
        LeaseLostError: another driver took over; this one has committed nothing since.
        RunFailedError: the attempt failed; what was committed stays, the same request resumes.
        RunCancelledError: the attempt was cancelled; the same request resumes.

    Crash safety: the same request resumes from any point; see docs/internals/crash-table.md.
    """
    clock = clock or SystemClock()
    with addressing(form=form_of(spec.entry)):
        run = _find_requested_run(spec, clock)
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
            _describe(job, spec, run_id)
            with job.context.holding:
                return Attempt(
                    spec,
                    directory,
                    run_id,
                    job,
                    observer=observer,
                    clock=clock,
                    stop=stop or threading.Event(),
                    on_progress=on_progress,
                ).run()


def _describe(job: LoadedJob, spec: RunSpec, run_id: str) -> None:
    is_batch = job.plan.mode == BATCH
    log.info("Spark: %s", describe_settings(job.spark, spec.conf, is_batch=is_batch))
    for component in unproven(scheme=scheme_of(spec.job_dir), master=job.spark.sparkContext.master):
        log.warning("%s", describe_use(component))
    for line in endless_lines(spec, job):
        log.info("run=%s %s", run_id, line)


@dataclasses.dataclass(frozen=True)
class CheckedQuery:
    """One query as the job's function has declared it."""

    name: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CheckedJob:
    """The plan of a run that passed all checks."""

    run_id: str
    what: str
    mode: str | None = None
    reason: str = ""
    queries: tuple[CheckedQuery, ...] = ()


def check_job(
    spec: RunSpec,
    *,
    with_spark: bool = False,
    spark: SparkSession | SparkStarter | None = None,
    clock: Clock | None = None,
) -> CheckedJob:
    """Refuse what a run of these options would refuse, as :func:`~.driver.run.run_job` would."""
    clock = clock or SystemClock()
    with addressing(form=form_of(spec.entry)):
        run = _find_requested_run(spec, clock)
        spec, directory, run_id = run.spec, run.directory, run.run_id
        if run.final is not None:
            since = utc_text(run.final.committed)
            what = f"is {run.final.outcome.lower()} since {since}; nothing would run"
            return CheckedJob(run_id, what)
        check_before_spark(spec, directory, run_id, clock)
        what = _next_attempt(run)
        if not with_spark:
            check_classic(spec.master, spec.conf)
            if not is_submitted():
                check_java()
            return CheckedJob(run_id, what)
        app_name = f"spark-stream check {spec.job_dir}"
        with using_spark(spark, app_name, spec.master, spec.conf) as session:
            job = load_job(spec, directory, run_id, session)
            with job.context.holding:
                with job.refusals.collecting():
                    check_same_spec(run_record(spec, directory, run_id, job, clock), run.stored)
                start = starting_point(spec, directory, job, clock)
                check_early(spec, directory, job, start, clock)
                queries = tuple(
                    CheckedQuery(q.name, tuple(s.name for s in q.sources), tuple(q.sink_names))
                    for q in job.queries
                )
                return CheckedJob(run_id, what, job.plan.mode, job.reason, queries)


def _next_attempt(run: _RequestedRun) -> str:
    last = run.directory.run(run.run_id).last_attempt()
    return "would begin" if last is None else f"would resume, as attempt {last.attempt + 1}"


@dataclasses.dataclass(frozen=True)
class _RequestedRun:
    spec: RunSpec
    directory: JobDirectory
    run_id: str
    stored: RunRecord | None
    final: FinalCheckpoint | None


def _find_requested_run(spec: RunSpec, clock: Clock) -> _RequestedRun:
    directory = open_job_directory(spec.job_dir)
    run_id = resolve_run_id(directory, spec, clock.now())
    run = directory.run(run_id)
    stored, final = run.record(), run.final()
    spec = with_stored_options(spec, stored)
    if final is not None:
        if (error := rewound_error(directory.url, run_id, run.rewound())) is not None:
            raise error
        check_same_as_ended(spec, stored)
        verify_final(directory, final)
    return _RequestedRun(spec, directory, run_id, stored, final)


def check_before_spark(
    spec: RunSpec, directory: JobDirectory, run_id: str, clock: Clock
) -> LeaseObserver:
    """Refuse all that can be refused without the seconds that a JVM takes to start.

    Raises:
        ConfigError: the request cannot be met.
        LeaseHeldError: another driver is running the job.
        RevertError: the run to be replayed cannot be rewound.
    """
    if is_program(spec.entry):
        load_known(PROGRAMS, "check")(spec)
    if spec.replays is not None:
        check_start(directory, spec.replays, with_later=spec.with_later)
    if spec.from_savepoint is not None and not is_begun_from_savepoint(directory):
        open_savepoint(spec.from_savepoint)
    check_preconditions(directory, run_id, driver_id=spec.driver_id, replays=spec.replays)
    check_kept_secret(spec)
    check_bug_names(spec.allow_known_bugs)
    if not is_submitted():
        check_master_and_heap(spec.master, spec.conf, words()["CONF"])
    check_settings(spec.conf, words()["CONF"])
    for line in (*neighbour_lines(directory), *check_names(spec.conf, words()["CONF"])):
        log.warning("%s", line)
    observer = check_before_cleanup(spec, directory, clock)  # waits, so behind what is quick
    if not is_program(spec.entry):
        load_before_spark(spec.entry)
    return observer
