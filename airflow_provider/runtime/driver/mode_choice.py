"""Mode of a job: STREAMING or BATCH, settled by what the job's function has declared."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.execution_mode import (
    AUTOMATIC,
    check_batch,
    find_objections,
    wanted_mode,
)
from airflow_provider.runtime.driver.prepare import (
    AS_IN_A_RUN,
    Declaration,
    LoadedJob,
    held,
    judging_input,
    load_job_in,
)
from airflow_provider.runtime.entry_point import form_of
from airflow_provider.runtime.errors import ConfigError, NotAStreamError, SparkStreamError
from airflow_provider.runtime.errors.ways_out import Form, set_option
from airflow_provider.runtime.jobdir.end_of_input import sources_end
from airflow_provider.runtime.jobdir.run_records import BATCH, STREAMING
from airflow_provider.runtime.queries.fixed_ends import check_sink_of_ends
from airflow_provider.runtime.queries.query import bind, check_sources, ending_alone
from airflow_provider.runtime.queries.read_order import check_lists_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec

log = logging.getLogger(__name__)


def load_job(
    spec: RunSpec,
    directory: JobDirectory,
    run_id: str,
    spark: SparkSession,
    declaration: Declaration = AS_IN_A_RUN,
) -> LoadedJob:
    """Call the job's function, which only declares, and settle the mode; nothing is written.

    An AUTOMATIC run that can be had in BATCH calls the function a second time. It is BATCH where
    Spark cannot run the job as a stream; a file of SQL is BATCH only then, a script never.

    Raises:
        ConfigError: the function is not there, failed, or declared what cannot be run.
    """
    stored = directory.run(run_id).record()
    kept = stored.settings if stored is not None else None
    load = functools.partial(
        load_job_in, spec=spec, run_id=run_id, spark=spark, kept=kept, declaration=declaration
    )
    wanted = _wanted(spec, stored)
    try:
        job = load(wanted or STREAMING)
    except NotAStreamError as refused:
        if form_of(spec.entry) is Form.SCRIPT or stored is not None:
            raise
        job = _only_in_batch(load, refused, spec, directory)
    with held(job.context), judging_input(spec):
        _check_input(job, stored)
        is_stream = job.plan.mode == STREAMING
        if wanted == STREAMING or (is_stream and form_of(spec.entry) is Form.SQL):
            return _with_markers(job, directory)
    if job.reason:
        log.info("run=%s mode=BATCH, not STREAMING: %s", run_id, job.reason)
        return job
    objections = find_objections(job.queries, job.plan, _find_resumed(spec, directory))
    if wanted == BATCH:
        check_batch(objections)
        _check_same_queries(job, stored)
        return job
    return _preferring_batch(load, job, [each.why for each in objections], directory)


def _wanted(spec: RunSpec, stored: RunRecord | None) -> str | None:
    """Return the mode that is fixed before the job is known; a script runs once, as streams."""
    if form_of(spec.entry) is Form.SCRIPT:
        return STREAMING
    return wanted_mode(spec.mode, stored.mode if stored is not None else None)


def _check_input(job: LoadedJob, stored: RunRecord | None) -> None:
    """Refuse a mistyped parameter, and input that is missing before the run has begun."""
    job.context.params.check_read()
    if stored is None:  # what a run has read may be moved away
        for source in (source for query in job.queries for source in query.sources):
            source.check_matches(job.spark)


def _preferring_batch(
    load: Callable[[str], LoadedJob], job: LoadedJob, reasons: list[str], directory: JobDirectory
) -> LoadedJob:
    if not reasons:
        try:
            return load(BATCH)
        except ConfigError as error:
            reasons = [str(error)]
    run_id = job.context.run_id
    log.info("run=%s mode=STREAMING, not BATCH: %s", run_id, "; ".join(reasons))
    return _with_markers(job, directory)


def _only_in_batch(
    load: Callable[[str], LoadedJob],
    refused: NotAStreamError,
    spec: RunSpec,
    directory: JobDirectory,
) -> LoadedJob:
    """Return a job in BATCH that Spark cannot run as a stream.

    Raises:
        NotAStreamError: *refused*, where BATCH cannot run it, either; if the user asked for
            STREAMING by name, it names the way to BATCH.
    """
    try:
        job = load(BATCH)
        with held(job.context):
            check_batch(find_objections(job.queries, job.plan, _find_resumed(spec, directory)))
    except SparkStreamError:
        raise refused from refused.__cause__
    if spec.mode == AUTOMATIC:
        return dataclasses.replace(job, reason=refused.parts.what)
    job.context.holding.close()
    others = f"; or {refused.parts.remedy}" if refused.parts.remedy else ""
    remedy = f"BATCH can run it: {set_option('mode', 'batch')}{others}"
    refused.explanation = dataclasses.replace(refused.parts, remedy=remedy)
    raise refused from refused.__cause__


def _with_markers(job: LoadedJob, directory: JobDirectory) -> LoadedJob:
    """Declare queries again whose sources end or fall silent while others continue."""
    if job.plan.until == "stopped":
        check_lists_once(job.queries, alone=ending_alone(job.queries))
    for query in job.queries:
        check_sources(query)
        check_sink_of_ends(query)
    queries = tuple(
        bind(query, directory, sources_end(directory, query.name), job.declare)
        for query in job.queries
    )
    return dataclasses.replace(job, queries=queries)


def _check_same_queries(job: LoadedJob, stored: RunRecord | None) -> None:
    """Refuse to resume a BATCH run whose queries have changed: they commit together."""
    before = stored.query_ids if stored is not None else None
    now = {query.name for query in job.queries}
    if before is not None and set(before) != now:
        msg = (
            f"run {job.context.run_id!r} was begun in BATCH with the queries "
            f"{', '.join(sorted(before))}, and the job now has {', '.join(sorted(now))}; they are "
            "committed together, so put them back, or use another run id"
        )
        raise ConfigError(msg)


def _find_resumed(spec: RunSpec, directory: JobDirectory) -> str | None:
    if spec.from_savepoint is not None:
        return f"the savepoint {spec.from_savepoint}"
    for name in directory.query_names():
        logs = CheckpointLogs(directory.checkpoint(name))
        if logs.exists():
            return f"the checkpoint {logs.url}"
    return None
