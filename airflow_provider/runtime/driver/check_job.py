"""Check of a job: all that a run would refuse, without running anything; nothing stays behind."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.clock import Clock, SystemClock, utc_text
from airflow_provider.runtime.driver.mode_choice import load_job
from airflow_provider.runtime.driver.open_queries import starting_point
from airflow_provider.runtime.driver.prepare import (
    check_before_spark,
    check_begin,
    find_requested_run,
)
from airflow_provider.runtime.driver.records import run_record
from airflow_provider.runtime.entry_point import form_of
from airflow_provider.runtime.errors.ways_out import addressing
from airflow_provider.runtime.jobdir.resolve_run import check_same_spec
from airflow_provider.runtime.spark.installation import check_classic, check_java, is_submitted
from airflow_provider.runtime.spark.session import using_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider.runtime.driver.prepare import LoadedJob, RequestedRun
    from airflow_provider.runtime.jobdir.run_spec import RunSpec


@dataclasses.dataclass(frozen=True)
class CheckedQuery:
    """One query as the job's function has declared it.

    Attributes:
        sources: their names.
        sinks: theirs.
    """

    name: str
    sources: tuple[str, ...]
    sinks: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class CheckedJob:
    """The plan of a run that passed all checks.

    Attributes:
        run_id: the run that it would begin or go on with.
        what: in a few words, what would become of that run.
        mode: BATCH or STREAMING; None when Spark was not asked.
        reason: why it is the mode that AUTOMATIC would not prefer; empty for no reason.
        queries: what the job's function has declared; empty when Spark was not asked.
    """

    run_id: str
    what: str
    mode: str | None = None
    reason: str = ""
    queries: tuple[CheckedQuery, ...] = ()


def check_job(
    spec: RunSpec,
    *,
    with_spark: bool = False,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> CheckedJob:
    """Refuse what a run of these options would refuse, as :func:`~.driver.run.run_job` would.

    Args:
        spec: what is wanted.
        with_spark: also start Spark, call the job's function, analyse its queries, and ask its
            sinks; without it the function is imported and not called.
        spark: a session whose JVM is used and left running; None to start Spark, and stop it.
        clock: time; None for the machine's.

    Raises:
        ConfigError: the request cannot be met.
        CheckpointError, JobDrainedError: the job directory cannot be gone on with.
        LeaseHeldError: another driver is running the job.
        RevertError: the run to be replayed cannot be rewound.
    """
    with addressing(form=form_of(spec.entry)):
        return _check_job(spec, with_spark=with_spark, spark=spark, clock=clock or SystemClock())


def _check_job(
    spec: RunSpec, *, with_spark: bool, spark: SparkSession | None, clock: Clock
) -> CheckedJob:
    run = find_requested_run(spec, clock)
    spec, directory, run_id = run.spec, run.directory, run.run_id
    if run.final is not None:
        since = utc_text(run.final.committed)
        what = f"is {run.final.outcome.lower()} since {since}; nothing would run"
        return CheckedJob(run_id, what)
    check_before_spark(spec, directory, run_id, clock)
    if not with_spark:
        check_classic(spec.master, spec.conf)
        if not is_submitted():
            check_java()
        return CheckedJob(run_id, _next_attempt(run))
    with using_spark(
        spark, f"spark-stream check {spec.job_dir}", spec.master, spec.conf
    ) as session:
        job = load_job(spec, directory, run_id, session)
        with job.context.holding:
            check_same_spec(run_record(spec, directory, run_id, job, clock), run.stored)
            start = starting_point(spec, directory, job, clock)
            check_begin(spec, directory, job, start, clock)
            return CheckedJob(run_id, _next_attempt(run), job.plan.mode, job.reason, _declared(job))


def _next_attempt(run: RequestedRun) -> str:
    last = run.directory.run(run.run_id).last_attempt()
    return "would begin" if last is None else f"would resume, as attempt {last.attempt + 1}"


def _declared(job: LoadedJob) -> tuple[CheckedQuery, ...]:
    found = []
    for query in job.queries:
        sinks = [sink.name for sink in query.sinks]
        sinks += [query.native.name] if query.native is not None else []
        sources = tuple(source.name for source in query.sources)
        found.append(CheckedQuery(query.name, sources, tuple(sinks)))
    return tuple(found)
