"""Bootstrap of a job's first state: its queries read history, then its sources are reset.

The job's function is called with the parameters of the history, so that ``ctx.read`` reads other
locations. That runs in a job directory of its own inside the live job's, without a drain and,
unless it is requested, without output. Then the sources lose their offsets, and a savepoint is
taken.

=====================================  =============================================================
a crash                                the same command
=====================================  =============================================================
while history is read                  resumes the run
with the run's final checkpoint put    takes the offsets away
while offsets are taken away           takes them all away: no driver starts these queries
while the savepoint is taken           takes it: without ``savepoint.json`` there is none
with the savepoint put                 finds it, and removes the scratch directory
=====================================  =============================================================
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.base.clock import Clock, SystemClock
from airflow_provider.runtime.checkpoint.offsets import can_reset, reset_positions
from airflow_provider.runtime.checkpoint.topology import mismatches
from airflow_provider.runtime.control.bootstrap_request import (
    LABEL,
    ORIGIN,
    RUN_ID,
    BootstrapSpec,
    check_has_rows,
    check_not_begun,
    check_same,
    find_made,
    remove_scratch,
    scratch_of,
)
from airflow_provider.runtime.driver.load_job import check_before_cleanup, declared_queries
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.errors.fixes import keep_position, set_option
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.jobdir.identity import begin_identity
from airflow_provider.runtime.jobdir.layout import JobDirectory, open_job_directory
from airflow_provider.runtime.jobdir.query_records import kept_topology
from airflow_provider.runtime.jobdir.run_records import STREAMING
from airflow_provider.runtime.jobdir.run_spec import RunSpec
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.spark.session import using_spark

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Savepoint
    from airflow_provider.runtime.sources.declared import SourceDefinition
    from airflow_provider.runtime.sources.locations import ReadLocation


log = logging.getLogger(__name__)


def bootstrap_job(
    spec: BootstrapSpec,
    *,
    spark: SparkSession | None = None,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    on_spark_started: Callable[[], None] | None = None,
    clock: Clock | None = None,
) -> Savepoint:
    """Make a job's first state from history, and take a savepoint of it; see :func:`.run_job`.

    The live job begins from it with ``run JOB_DIR --from-savepoint``. A request that was completed
    before returns its savepoint immediately.

    Raises:
        ConfigError: the job has begun, the request cannot be met, history and the live job do not
            fit each other, or history has no row for a query.
        CheckpointError: it has none, and other queries have written their output.
        LeaseHeldError: a driver is running the live job, or this bootstrap.
        RunFailedError, RunCancelledError: reading ended early; the same request resumes.

    Crash safety: the same request completes it from any point. Until ``savepoint.json`` is put
    there is no savepoint; the live job's own documents are never touched.
    """
    clock = clock or SystemClock()
    directory = open_job_directory(spec.job_dir)
    scratch = scratch_of(directory, spec.target)
    done = find_made(spec.target, spec.digest)
    if done is None:
        check_not_begun(directory, clock)
        check_same(scratch, spec)
        seam = _read_history(
            spec,
            directory,
            scratch,
            spark=spark,
            clock=clock,
            observers={
                "stop": stop,
                "on_progress": on_progress,
                "on_spark_started": on_spark_started,
            },
        )
        check_has_rows(scratch, seam.history, output=spec.output)
        _leave_offsets(scratch, seam)
        done = _take(scratch, spec, seam, clock)
    remove_scratch(scratch)
    return done


def _read_history(
    spec: BootstrapSpec,
    directory: JobDirectory,
    scratch: JobDirectory,
    *,
    spark: SparkSession | None,
    clock: Clock,
    observers: Mapping[str, Any],
) -> Seam:
    run = _spec_of(spec, scratch)
    check_before_cleanup(run, scratch, clock)
    app_name = f"spark-stream bootstrap {spec.job_dir}"
    with using_spark(spark, app_name, spec.master, spec.conf) as session:
        history = declared_queries(STREAMING, run, RUN_ID, session)
        seam = plan_seam(history, spec.kept, output=spec.output)
        if spec.live_params is not None:
            live = dataclasses.replace(
                run, job_dir=directory.url, params=spec.live_params, bootstrap=None
            )
            check_seam(history, declared_queries(STREAMING, live, RUN_ID, session), seam)
        with refusing(scratch.url, "written"):
            begin_identity(scratch.storage, clock, bootstrap=spec.purpose)
        failpoints.hit("bootstrap.recorded")
        run_job(run, spark=session, clock=clock, **observers)
    failpoints.hit("bootstrap.read")
    return seam


def _spec_of(spec: BootstrapSpec, scratch: JobDirectory) -> RunSpec:
    return RunSpec(
        job_dir=scratch.url,
        entry=spec.entry,
        run_id=RUN_ID,
        params=spec.params,
        secret_params=spec.secret_params,
        mode="streaming",
        until="available",
        at_end="suspend",
        interval=spec.interval,
        master=spec.master,
        conf=spec.conf,
        target_batch_s=0.0,  # as few batches as the job itself allows
        bootstrap=spec.output,
        driver_id=spec.driver_id,
    )


def _leave_offsets(scratch: JobDirectory, seam: Seam) -> None:
    """Reset the sources, but those that continue where history ended. Idempotent."""
    for name in seam.history:
        topology = kept_topology(scratch, name)
        names = topology.sources if topology is not None else ()
        reset_positions(scratch.checkpoint(name), seam.locations_to_reset(names), names)
        failpoints.hit("bootstrap.reset_one")


def _take(scratch: JobDirectory, spec: BootstrapSpec, seam: Seam, clock: Clock) -> Savepoint:
    source = job_source(scratch.url, clock)
    queries = tuple(
        dataclasses.replace(
            query,
            history=tuple(location.to_dict() for location in seam.history[query.name]),
            is_as_run=False,
        )
        for query in source.queries
    )
    return take_savepoint(
        dataclasses.replace(source, queries=queries),
        spec.target,
        origin=ORIGIN,
        labels={LABEL: spec.digest},
        clock=clock,
    )


@dataclasses.dataclass(frozen=True)
class Seam:
    """The positions of the sources after the bootstrap.

    Attributes:
        stays: the names of the sources whose offsets stay.
        history: per query, in the order of the job, what its other sources have read.
    """

    stays: frozenset[str]
    history: Mapping[str, tuple[ReadLocation, ...]]

    def locations_to_reset(self, names: Iterable[str | None]) -> list[int]:
        """Return the positions in Spark's offset log of the sources that are reset."""
        return [position for position, name in enumerate(names) if name not in self.stays]


def plan_seam(queries: Sequence[QueryDefinition], kept: Collection[str], *, output: str) -> Seam:
    """Decide which sources continue where history ended; *kept* names the user's choice.

    Raises:
        ConfigError: *kept* names what the job does not read, or a query would read what another
            one does not write.
    """
    sources = [s for q in queries for s in q.sources if not is_marker(s.name)]
    known = {source.name for source in sources}
    for name in kept:
        if name not in known:
            names = ", ".join(sorted(known))
            raise ConfigError(
                f"keep position of {name!r}: the job has no such source; it has {names}"
            )
    internal = {source.name for source in sources if source.is_internal}
    if internal and output == "discard":
        chained = ", ".join(sorted(repr(name) for name in internal))
        raise ConfigError(
            f"source {chained} reads what another query of the job writes, and nothing is written "
            "when the output is discarded; "
            f"bootstrap with {set_option('output', 'keep')}"
        )
    stays = frozenset({*kept, *internal})
    seam = Seam(stays, {query.name: _history_of(query, stays) for query in queries})
    for query in queries:
        order = [source.name for source in query.sources]
        if not can_reset(order, seam.locations_to_reset(order)):
            raise ConfigError(
                f"query {query.name!r} reads a source at several locations, so Spark's files do "
                "not show which of its sources keep their positions; keep the positions of all of "
                "them, or of none, or give that source a second name where it is read again"
            )
    return seam


def _history_of(query: QueryDefinition, stays: Collection[str]) -> tuple[ReadLocation, ...]:
    read = {s.name: s for s in query.sources if s.name not in stays and _is_comparable(s)}
    return tuple(source.reads for source in read.values())


def _is_comparable(source: SourceDefinition) -> bool:
    return source.is_known and not is_marker(source.name)


def check_seam(
    history: Sequence[QueryDefinition], live: Sequence[QueryDefinition], seam: Seam
) -> None:
    """Refuse history and a live job that do not fit each other, before anything is read."""
    now = {query.name: query for query in live}
    if set(now) != {query.name for query in history}:
        raise ConfigError(
            f"with the parameters of the history the job has the queries "
            f"{', '.join(query.name for query in history)}, and with those of the live job "
            f"{', '.join(now)}; it must declare the same"
        )
    for query in history:
        _check_same_shape(query, now[query.name])
        there = {source.name: source for source in now[query.name].sources}
        for source in query.sources:
            if _is_comparable(source) and not source.is_internal:
                _check_source(source, there[source.name], kept=source.name in seam.stays)


def _check_same_shape(query: QueryDefinition, live: QueryDefinition) -> None:
    # History and live data may be of different kinds: only positions that stay mean the same.
    topology = dataclasses.replace(query.topology, kinds={})
    wrong = mismatches(topology, live.topology, fixed="the live job continues from history")
    if set(query.marked) != set(live.marked):
        wrong.append(
            "the same sources must be bounded, with the same idle_timeout, in both: the markers of "
            f"{_names(query.marked)} in history are those of {_names(live.marked)} in the live job"
        )
    if wrong:
        raise ConfigError(
            f"query {query.name!r} of the live job does not fit history: {'; '.join(wrong)}"
        )


def _check_source(source: SourceDefinition, live: SourceDefinition, *, kept: bool) -> None:
    before, now = source.reads, live.reads
    if kept and before != now:
        raise ConfigError(
            f"source {source.name!r} is to keep its position, and reads {before.where} in history "
            f"and {now.where} in the live job; a position has no meaning in another location"
        )
    if not kept and before.overlaps(now):
        raise ConfigError(
            f"source {source.name!r} of the live job ({now.where}) would read again what history "
            f"reads ({before.where}), so its rows would count twice. Let one of them read another "
            f"location, or keep its position with {keep_position(source.name)}, so that the live "
            "job continues where history ended"
        )


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "no source"
