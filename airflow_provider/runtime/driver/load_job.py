"""The job's function: called to declare its queries, for the mode in which they run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.extensions import PROGRAMS, load_known
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.driver.execution_mode import (
    AUTOMATIC,
    ExecutionPlan,
    Objection,
    check_batch,
    check_slices,
    find_objections,
    replaced_slices,
    resolve_plan,
    summary_of,
    wanted_mode,
)
from airflow_provider.runtime.driver.job_checks import (
    check_names_and_locations,
    declares_only,
)
from airflow_provider.runtime.entry_point import (
    check_entry_file,
    form_of,
    is_entry_file,
    is_program,
    load_entry,
)
from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    NotAStreamError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import definition_of, line_of
from airflow_provider.runtime.errors.fixes import Form, set_option
from airflow_provider.runtime.errors.refusals import Refusals
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.jobdir.end_of_input import sources_end
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import wait_for_free_lease
from airflow_provider.runtime.jobdir.pinned_settings import Pins, read_pins
from airflow_provider.runtime.jobdir.run_options import RETRY
from airflow_provider.runtime.jobdir.run_records import BATCH, STREAMING
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.queries.file_listing import check_lists_once
from airflow_provider.runtime.queries.fixed_ends import check_sink_of_ends
from airflow_provider.runtime.queries.query import bind, check_sources, ending_alone, upstream_of
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.restores import is_begun_from_savepoint
from airflow_provider.runtime.spark.options import check_session
from airflow_provider.runtime.spark.session import choose_maintenance, job_session
from airflow_provider.runtime.spark.session_rows import SessionRows
from airflow_provider.runtime.spark.spark_log import keep_secrets
from airflow_provider.runtime.spark.versions import explain_missing
from airflow_provider.runtime.storage.open import check_location, local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import LeaseObserver
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import Declare, QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceBinding


log = logging.getLogger(__name__)

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


def check_before_cleanup(spec: RunSpec, directory: JobDirectory, clock: Clock) -> LeaseObserver:
    """Check what every command on a job needs, and wait until its lease is free."""
    check_entry_file(spec.entry)
    check_location(directory.url)
    return wait_for_free_lease(directory.storage, clock)


@dataclasses.dataclass(frozen=True)
class LoadedJob:
    """The declarations of the job's function, and the mode in which they run."""

    name: str
    spark: SparkSession
    rows: SessionRows
    context: JobContext
    plan: ExecutionPlan
    queries: tuple[QueryDefinition, ...]
    declare: Declare
    reason: str = ""

    @property
    def refusals(self) -> Refusals:
        return self.context.refusals

    @functools.cached_property
    def upstream(self) -> Mapping[str, tuple[str, ...]]:
        return upstream_of(self.queries)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """How a job's function is called."""

    function: Callable[[JobContext], None] | None = None
    make_context: Callable[..., JobContext] = JobContext


AS_IN_A_RUN: Final = Declaration()


def load_job_in(
    mode: str,
    spec: RunSpec,
    run_id: str,
    spark: SparkSession,
    kept: Mapping[str, str] | None = None,
    *,
    pins: Pins,
    declaration: Declaration = AS_IN_A_RUN,
    collects: bool = False,
) -> LoadedJob:
    """Call the job's function once, for a fixed mode; nothing is written.

    With *collects* the mistakes of its sinks and queries wait in ``LoadedJob.refusals``.
    """
    params = spec.all_params()
    if spec.secret_params:
        keep_secrets(spark)
    rows = _begin_session(mode, spec, spark, kept, pins)
    function = declaration.function or _load(spec)
    # A script runs in a thread of its own, and guards what it does there itself.
    guard = contextlib.nullcontext if is_program(spec.entry) else declares_only
    _send_by_value(function, is_given=declaration.function is not None)

    def declare(bindings: Mapping[str, SourceBinding]) -> JobContext:
        context = declaration.make_context(
            rows.session,
            params=params,
            run_id=run_id,
            mode=mode,
            interval=spec.interval,
            target_batch_s=spec.target_batch_s,
            discards_output=spec.bootstrap == "discard",
            bindings=bindings,
            job_dir=spec.job_dir,
        )
        context.refusals = Refusals(collects=collects)
        reporting = context.refusals.reporting()
        held, judging = _held(context), _judging_input(spec.missing_input)
        with held, judging, guard(), rows.shared(), reporting:
            _call(function, context)
        return context

    context = declare({})
    with _held(context), context.refusals.reporting():
        pins.check(rows.now(), rows.given, rows.usual)
        check_names_and_locations(context.queries)
        check_session(context.spark.conf)
        plan = _planned(spec, context.queries, mode, definition_of(function))
    choose_maintenance(rows.session, is_endless=plan.until == "stopped")
    return LoadedJob(
        name=getattr(function, "__name__", "job"),
        spark=rows.session,
        rows=rows,
        context=context,
        plan=plan,
        queries=context.queries,
        declare=lambda bindings: declare(bindings).queries,
    )


def _begin_session(
    mode: str,
    spec: RunSpec,
    spark: SparkSession,
    kept: Mapping[str, str] | None,
    pins: Pins,
) -> SessionRows:
    from pyspark.errors import IllegalArgumentException

    is_on_disk = local_path_of(spec.job_dir) is not None
    try:
        session = job_session(spark, spec.conf, kept, is_batch=mode == BATCH, on_disk=is_on_disk)
        return SessionRows.begin(session, spec.conf, pins.values)
    except IllegalArgumentException as error:  # the value of a setting
        raise refusal_of(error) from error


def endless_lines(spec: RunSpec, job: LoadedJob) -> list[str]:
    """Return why a run continues until it is stopped, if the user has not asked for that."""
    names = dict.fromkeys(
        source.name for query in job.queries for source in query.sources if not source.bounded
    )
    is_automatic = spec.until is not None or is_program(spec.entry)  # which says so by its triggers
    if is_automatic or job.plan.until != "stopped" or not names:
        return []
    return [
        f"continues until it is stopped, since nothing says where {' and '.join(names)} ends; "
        "ctx.read(…, bounded=True) says that the data does"
    ]


def _load(spec: RunSpec) -> Callable[[JobContext], None]:
    return load_known(PROGRAMS, "load")(spec) if is_program(spec.entry) else load_entry(spec.entry)


def declared_queries(
    mode: str, spec: RunSpec, run_id: str, spark: SparkSession
) -> tuple[QueryDefinition, ...]:
    """Return the queries of a job, for a caller that only reads them, or their sinks."""
    pins = read_pins(open_job_directory(spec.job_dir).storage)
    job = load_job_in(mode, spec, run_id, spark, pins=pins)
    with job.context.holding:
        return job.queries


def _planned(
    spec: RunSpec, queries: tuple[QueryDefinition, ...], mode: str, location: str
) -> ExecutionPlan:
    try:
        return dataclasses.replace(resolve_plan(spec, queries), mode=mode)
    except ConfigError as error:
        error.at(location)
        raise


@contextlib.contextmanager
def _held(context: JobContext) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        stack.push(context.holding)
        yield
        stack.pop_all()


@contextlib.contextmanager
def _judging_input(missing_input: str) -> Iterator[None]:
    try:
        yield
    except AbsentInputError as error:
        if missing_input == RETRY:
            raise
        refused = ConfigError(error.parts.what)
        refused.explanation = error.explanation
        raise refused from error


def _call(function: Callable[[JobContext], None], context: JobContext) -> None:
    try:
        function(context)
    except SparkStreamError as error:
        error.at(line_of(error))
        raise
    except (Exception, SystemExit) as error:
        more = explain_missing(error)
        msg = f"{classify(error).explanation.what}{more}" if more else None
        raise refusal_of(error, msg, location=definition_of(function)) from error


def _send_by_value(function: Callable[..., None], *, is_given: bool) -> None:
    """Send the job's definitions to Spark's Python workers, which cannot import its file."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    file = Path(getattr(module, "__file__", None) or "")
    is_ours = is_given and not _INSTALLED.intersection(file.parts)
    if module is not None and (is_ours or is_entry_file(module)):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # Spark's


def load_job(
    spec: RunSpec,
    directory: JobDirectory,
    run_id: str,
    spark: SparkSession,
    declaration: Declaration = AS_IN_A_RUN,
) -> LoadedJob:
    """Call the job's function, which only declares, and settle the mode; nothing is written.

    The caller adds its own checks to ``LoadedJob.refusals``, and then checks these.

    Raises:
        ConfigError: the function does not exist, failed, or declared what cannot run.
    """
    form, stored = form_of(spec.entry), directory.run(run_id).record()
    load = functools.partial(
        load_job_in,
        spec=spec,
        run_id=run_id,
        spark=spark,
        kept=stored.settings if stored is not None else None,
        pins=_pins_of(spec, directory),
        declaration=declaration,
        collects=True,
    )

    def objections_to(job: LoadedJob) -> list[Objection]:
        resumed = _find_resumed(spec.from_savepoint, directory)
        return find_objections(job.queries, job.plan, resumed)

    wanted = wanted_mode(spec.mode, stored.mode if stored is not None else None)
    if form is Form.SCRIPT:
        wanted = STREAMING  # it runs once, as streams
    try:
        job = load(wanted or STREAMING)
    except NotAStreamError as refused:
        if form is Form.SCRIPT or stored is not None:
            raise
        job = _only_in_batch(load, refused, objections_to, is_automatic=spec.mode == AUTOMATIC)
    with _held(job.context), _judging_input(spec.missing_input):
        _check_input(job, stored)
        is_decided = wanted == STREAMING or form is Form.SQL or bool(job.refusals)
        if is_decided and job.plan.mode == STREAMING:
            return _with_markers(job, directory)
    if job.reason:
        log.info("run=%s mode=BATCH, not STREAMING: %s", run_id, job.reason)
        return job
    objections = objections_to(job)
    if wanted == BATCH:
        with job.refusals.collecting():
            check_batch(objections)
            _check_same_queries(job, stored)
        return job
    slices = replaced_slices(job.queries)  # which decide for BATCH where it is possible
    reasons = [each.why for each in objections if each.refuses or not slices]
    return _preferring_batch(load, job, reasons, directory)


def _pins_of(spec: RunSpec, directory: JobDirectory) -> Pins:
    """Return the settings that the job's rows have: its own, or its first savepoint's."""
    pins = read_pins(directory.storage)
    if pins.values or spec.from_savepoint is None or is_begun_from_savepoint(directory):
        return pins
    saved = open_savepoint(spec.from_savepoint)
    return Pins.of(saved.record.settings, saved.record.run_id, saved.url)


def _check_input(job: LoadedJob, stored: RunRecord | None) -> None:
    with job.refusals.collecting():
        job.context.params.check_read()
    if stored is None:  # what a run has read may be moved away
        for source in (source for query in job.queries for source in query.sources):
            source.check_matches(job.spark)


def _preferring_batch(
    load: Callable[[str], LoadedJob], job: LoadedJob, reasons: list[str], directory: JobDirectory
) -> LoadedJob:
    if not reasons:
        try:
            in_batch = load(BATCH)
            in_batch.refusals.check()
        except ConfigError as error:
            reasons = [str(error)]
        else:
            return in_batch
    run_id = job.context.run_id
    log.info("run=%s mode=STREAMING, not BATCH: %s", run_id, summary_of(reasons))
    log.debug("run=%s not BATCH: %s", run_id, "; ".join(reasons))
    return _with_markers(job, directory, reasons)


def _only_in_batch(
    load: Callable[[str], LoadedJob],
    refused: NotAStreamError,
    objections_to: Callable[[LoadedJob], list[Objection]],
    *,
    is_automatic: bool,
) -> LoadedJob:
    try:
        job = load(BATCH)
        with _held(job.context):
            check_batch(objections_to(job))
    except SparkStreamError:
        raise refused from refused.__cause__
    if is_automatic:
        return dataclasses.replace(job, reason=refused.parts.what)
    job.context.holding.close()
    others = f"; or {refused.parts.remedy}" if refused.parts.remedy else ""
    remedy = f"BATCH can run it: {set_option('mode', 'batch')}{others}"
    refused.explanation = dataclasses.replace(refused.parts, remedy=remedy)
    raise refused from refused.__cause__


def _with_markers(
    job: LoadedJob, directory: JobDirectory, reasons: Sequence[str] = ()
) -> LoadedJob:
    with job.refusals.collecting():
        check_slices(job.queries, reasons)
    with job.refusals.collecting():
        if job.plan.until == "stopped":
            check_lists_once(job.queries, alone=ending_alone(job.queries))
    for query in job.queries:
        with job.refusals.collecting():
            check_sources(query)
            check_sink_of_ends(query)
    queries = tuple(
        bind(query, directory, sources_end(directory, query.name), job.declare)
        for query in job.queries
    )
    return dataclasses.replace(job, queries=queries)


def _check_same_queries(job: LoadedJob, stored: RunRecord | None) -> None:
    before = stored.query_ids if stored is not None else None
    now = {query.name for query in job.queries}
    if before is not None and set(before) != now:
        raise ConfigError(
            f"run {job.context.run_id!r} was begun in BATCH with the queries "
            f"{', '.join(sorted(before))}, and the job now has {', '.join(sorted(now))}; they are "
            "committed together, so put them back, or use another run id"
        )


def _find_resumed(from_savepoint: str | None, directory: JobDirectory) -> str | None:
    if from_savepoint is not None:
        return f"the savepoint {from_savepoint}"
    for name in directory.query_names():
        logs = CheckpointLogs(directory.checkpoint(name))
        if logs.exists():
            return f"the checkpoint {logs.url}"
    return None
