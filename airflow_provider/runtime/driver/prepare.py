"""Validates options, environment and job definition before anything is written."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.base.extensions import PROGRAMS, load_known
from airflow_provider.runtime.driver.execution_mode import (
    ExecutionPlan,
    resolve_plan,
)
from airflow_provider.runtime.driver.job_checks import (
    check_kept_secret,
    check_names_and_places,
    check_outputs,
    declares_only,
)
from airflow_provider.runtime.entry_point import (
    check_entry_file,
    is_entry_file,
    is_program,
    load_before_spark,
    load_entry,
)
from airflow_provider.runtime.errors import (
    AbsentInputError,
    ConfigError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import definition_of, line_of
from airflow_provider.runtime.errors.ways_out import words
from airflow_provider.runtime.failures.classify import classify, refusal_of
from airflow_provider.runtime.jobdir.foreign_files import neighbour_lines
from airflow_provider.runtime.jobdir.identity import check_not_emptied
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import wait_for_free_lease
from airflow_provider.runtime.jobdir.lease_records import lease_path
from airflow_provider.runtime.jobdir.preconditions import check_preconditions, rewound_error
from airflow_provider.runtime.jobdir.resolve_run import (
    check_same_as_ended,
    resolve_run_id,
    with_stored_options,
)
from airflow_provider.runtime.jobdir.run_options import RETRY
from airflow_provider.runtime.jobdir.run_records import BATCH
from airflow_provider.runtime.jobdir.verify_final import verify_final
from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.queries.query import upstream_of
from airflow_provider.runtime.savepoints.catalog import open_savepoint
from airflow_provider.runtime.savepoints.rewind import Rewind, check_start
from airflow_provider.runtime.spark.installation import is_submitted
from airflow_provider.runtime.spark.secrecy import keep_secrets
from airflow_provider.runtime.spark.session import check_reaches, job_session
from airflow_provider.runtime.spark.settings import check_master_and_heap, check_names
from airflow_provider.runtime.spark.versions import explain_missing
from airflow_provider.runtime.storage.open import check_place, local_path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.initial_state import StartingPoint
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import Lease, LeaseObserver
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint, RunRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import Declare, QueryDefinition
    from airflow_provider.runtime.queries.source import SourceBinding

log = logging.getLogger(__name__)

_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


@dataclasses.dataclass(frozen=True)
class RequestedRun:
    """The run that a request means, as its job directory has it.

    Attributes:
        spec: the request, with the moment of the run that it resumes.
        stored: the run's record; None before its first attempt.
        final: its final checkpoint, verified; None if the run has none yet.
    """

    spec: RunSpec
    directory: JobDirectory
    run_id: str
    stored: RunRecord | None
    final: FinalCheckpoint | None


def find_requested_run(spec: RunSpec, clock: Clock) -> RequestedRun:
    """Find the run that a request means; of one that has ended, refuse what differs from it.

    Raises:
        ConfigError: the job directory cannot be used, the run was rewound, or it has ended and was
            begun with something else.
        CheckpointError: it has ended, and its final checkpoint is not correct.
    """
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
    return RequestedRun(spec, directory, run_id, stored, final)


def check_before_spark(
    spec: RunSpec, directory: JobDirectory, run_id: str, clock: Clock
) -> LeaseObserver:
    """Refuse all that can be refused without the seconds that a JVM takes to start.

    Returns:
        What has watched the lease meanwhile.

    Raises:
        ConfigError: the request cannot be met.
        LeaseHeldError: another driver is running the job.
        RevertError: the run to be replayed cannot be rewound.
        UnknownJobError: there is no savepoint where the job is to begin from one.
    """
    if is_program(spec.entry):
        load_known(PROGRAMS, "check")(spec)
    if spec.replays is not None:
        check_start(directory, spec.replays)
    if spec.from_savepoint is not None and directory.run(run_id).last_attempt() is None:
        open_savepoint(spec.from_savepoint)
    check_preconditions(directory, run_id, driver_id=spec.driver_id, replays=spec.replays)
    check_kept_secret(spec)
    if not is_submitted():
        check_master_and_heap(spec.master, spec.conf, words()["CONF"])
    for line in (*neighbour_lines(directory), *check_names(spec.conf, words()["CONF"])):
        log.warning("%s", line)
    observer = check_before_cleanup(spec, directory, clock)  # waits, so behind what is quick
    if not is_program(spec.entry):
        load_before_spark(spec.entry)
    return observer


def check_before_cleanup(spec: RunSpec, directory: JobDirectory, clock: Clock) -> LeaseObserver:
    """As :func:`check_before_spark`, for a job that may have been drained."""
    check_entry_file(spec.entry)
    check_place(directory.url)
    return wait_for_free_lease(directory.storage, clock)


@dataclasses.dataclass(frozen=True)
class LoadedJob:
    """The declarations of the job's function, and the mode in which they run.

    Attributes:
        queries: as they will run, in the job's order.
        reason: why AUTOMATIC has not chosen its preferred mode; empty for no reason.
        declare: calls the function again, with sources bound.
    """

    name: str
    spark: SparkSession
    context: JobContext
    plan: ExecutionPlan
    queries: tuple[QueryDefinition, ...]
    declare: Declare
    reason: str = ""

    @functools.cached_property
    def upstream(self) -> Mapping[str, tuple[str, ...]]:
        """For each query that reads other queries' output: those queries."""
        return upstream_of(self.queries)


def check_begin(
    spec: RunSpec, directory: JobDirectory, job: LoadedJob, start: StartingPoint, clock: Clock
) -> None:
    """Refuse a state that the loaded job cannot begin from; nothing is written.

    Raises:
        ConfigError, RevertError: see :meth:`StartingPoint.check` and :meth:`Rewind.check`.
        ConfigError: the job directory lacks a part, or an output is another one's.
    """
    check_not_emptied(directory.storage)
    check_outputs(spec, directory, job.queries)
    if spec.replays is None:
        start.check()
        return
    rewind = Rewind(directory, spec.replays, job.queries, OpenFence(), clock)
    start.check_rewound(rewind.check())


def check_under_lease(
    spec: RunSpec,
    directory: JobDirectory,
    run_id: str,
    job: LoadedJob,
    *,
    lease: Lease,
    clock: Clock,
) -> None:
    """Evaluate the preconditions again under the lease, and rewind the run that is replayed.

    Raises:
        ConfigError, JobDrainedError, CheckpointError: see :func:`check_preconditions`.
        ConfigError: Spark does not find the lease where it will write its checkpoint.
        RevertError: the run that is replayed cannot be rewound.
    """
    check_reaches(job.spark, directory.url, lease_path(lease.token))
    driver_id = spec.driver_id
    check_preconditions(directory, run_id, driver_id=driver_id, replays=spec.replays)
    if spec.replays is not None:
        by = f"run {run_id}, which replays it"
        Rewind(directory, spec.replays, job.queries, lease, clock, by).rewind()
        check_preconditions(directory, run_id, driver_id=driver_id)


@dataclasses.dataclass(frozen=True)
class Declaration:
    """How a job's function is called.

    Attributes:
        function: the function; None for the one that the entry names.
        make_context: makes its argument, from the arguments of :class:`JobContext`.
    """

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
    declaration: Declaration = AS_IN_A_RUN,
) -> LoadedJob:
    """Call the job's function once, for a fixed mode; nothing is written.

    Args:
        mode: STREAMING or BATCH.
        spec: the request.
        run_id: the run.
        spark: any session of the application.
        kept: Spark's settings at the beginning of an earlier attempt of the run.
        declaration: how the function is called.

    Raises:
        ConfigError: the function does not exist, failed, or declared what cannot run; or a setting
            of Spark has an invalid value.
    """
    from pyspark.errors import IllegalArgumentException

    is_on_disk = local_path_of(spec.job_dir) is not None
    params = spec.all_params()
    if spec.secret_params:
        keep_secrets(spark)
    try:
        session = job_session(spark, spec.conf, kept, is_batch=mode == BATCH, on_disk=is_on_disk)
    except IllegalArgumentException as error:  # the value of a setting
        raise refusal_of(error) from error
    function = declaration.function or _load(spec)
    # A script runs in a thread of its own, and guards what it does there itself.
    guard = contextlib.nullcontext if is_program(spec.entry) else declares_only
    _send_by_value(function, is_given=declaration.function is not None)

    def declare(bindings: Mapping[str, SourceBinding]) -> JobContext:
        context = declaration.make_context(
            session,
            params=params,
            run_id=run_id,
            mode=mode,
            interval=spec.interval,
            target_batch_s=spec.target_batch_s,
            discards_output=spec.bootstrap == "discard",
            bindings=bindings,
            job_dir=spec.job_dir,
        )
        with held(context), judging_input(spec), guard():
            _call(function, context)
        return context

    context = declare({})
    with held(context):
        check_names_and_places(context.queries)
        plan = _planned(spec, context.queries, mode, definition_of(function))
    return LoadedJob(
        name=getattr(function, "__name__", "job"),
        spark=session,
        context=context,
        plan=plan,
        queries=context.queries,
        declare=lambda bindings: declare(bindings).queries,
    )


def endless_lines(spec: RunSpec, job: LoadedJob) -> list[str]:
    """Return why a run continues until it is stopped, if the user has not asked for that."""
    names = dict.fromkeys(
        source.name for query in job.queries for source in query.sources if not source.bounded
    )
    is_asked = spec.until is not None or is_program(spec.entry)  # which says so by its triggers
    if is_asked or job.plan.until != "stopped" or not names:
        return []
    return [
        f"goes on until it is stopped, since nothing says where {' and '.join(names)} ends; "
        "ctx.read(…, bounded=True) says that the data does"
    ]


def _load(spec: RunSpec) -> Callable[[JobContext], None]:
    return load_known(PROGRAMS, "load")(spec) if is_program(spec.entry) else load_entry(spec.entry)


def declared_queries(
    mode: str, spec: RunSpec, run_id: str, spark: SparkSession
) -> tuple[QueryDefinition, ...]:
    """Return the queries of a job that only reads them, or their sinks; see above.

    Raises:
        ConfigError: the function does not exist, failed, or declared what cannot run.
    """
    job = load_job_in(mode, spec, run_id, spark)
    with job.context.holding:
        return job.queries


def _planned(
    spec: RunSpec, queries: tuple[QueryDefinition, ...], mode: str, place: str
) -> ExecutionPlan:
    """Return how the queries run; blame the function at *place* for what cannot run."""
    try:
        return dataclasses.replace(resolve_plan(spec, queries), mode=mode)
    except ConfigError as error:
        error.at(place)
        raise


@contextlib.contextmanager
def held(context: JobContext) -> Iterator[None]:
    """Release the resources of a declaration if it fails."""
    with contextlib.ExitStack() as stack:
        stack.push(context.holding)
        yield
        stack.pop_all()


@contextlib.contextmanager
def judging_input(spec: RunSpec) -> Iterator[None]:
    """Refuse missing input, for a run that does not wait for its delivery.

    Raises:
        ConfigError: input is missing, and the run has ``missing_input="fail"``.
    """
    try:
        yield
    except AbsentInputError as error:
        if spec.missing_input == RETRY:
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
        raise refusal_of(error, msg, place=definition_of(function)) from error


def _send_by_value(function: Callable[..., None], *, is_given: bool) -> None:
    """Send the job's definitions to Spark's Python workers, which cannot import its file.

    If *is_given*, its entry has not loaded it: its module may be a test's or a notebook's.
    """
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    file = Path(getattr(module, "__file__", None) or "")
    is_ours = is_given and not _INSTALLED.intersection(file.parts)
    if module is not None and (is_ours or is_entry_file(module)):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # Spark's
