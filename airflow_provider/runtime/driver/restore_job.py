"""Commands on a job that no driver runs: restore, rewind and cleanup. No query is started."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock, to_iso, utc_text
from airflow_provider.runtime.base.host import identify_this
from airflow_provider.runtime.base.names import derive_run_id
from airflow_provider.runtime.driver.compatibility import match_queries
from airflow_provider.runtime.driver.job_checks import writer_of
from airflow_provider.runtime.driver.load_job import (
    check_before_cleanup,
    declared_queries,
    load_job_in,
)
from airflow_provider.runtime.errors import ConfigError, RevertError, refusing
from airflow_provider.runtime.jobdir.end_of_input import drain_intent, draining_run
from airflow_provider.runtime.jobdir.identity import add_predecessors, begin_identity
from airflow_provider.runtime.jobdir.later_runs import runs_since
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import Lease, acquire_lease, wait_for_free_lease
from airflow_provider.runtime.jobdir.pinned_settings import pin_settings, read_pins
from airflow_provider.runtime.jobdir.run_commit import commit_log_of
from airflow_provider.runtime.jobdir.run_records import BATCH, JobRecord
from airflow_provider.runtime.jobdir.run_spec import RunSpec, check_partitions
from airflow_provider.runtime.jobdir.runs import last_run
from airflow_provider.runtime.jobdir.upgrade_record import describe_version, upgrade_over
from airflow_provider.runtime.queries.input_folders import spark_listing
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.savepoints.catalog import (
    check_repartitionable,
    check_restorable,
    open_savepoint,
)
from airflow_provider.runtime.savepoints.needed_input import InputCheck
from airflow_provider.runtime.savepoints.record import MANIFEST
from airflow_provider.runtime.savepoints.restore import CLAIM_MODES, Restore, RestoreSettings
from airflow_provider.runtime.savepoints.restore_log import (
    Restores,
    check_no_open_restore,
    check_same_history,
    relocate,
)
from airflow_provider.runtime.savepoints.retention import (
    collect_leftover,
    dispose,
    pinned_savepoint,
)
from airflow_provider.runtime.savepoints.rewind import Rewind, check_all, check_start
from airflow_provider.runtime.sinks.committer import EpochCommitter
from airflow_provider.runtime.sinks.revert import Output, Written, output_of
from airflow_provider.runtime.spark.session import jvm_pid, using_spark
from airflow_provider.runtime.storage.input_folders import names_in_folder
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease import LeaseObserver
    from airflow_provider.runtime.jobdir.run_records import RunRecord
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.savepoints.catalog import Savepoint


def restore_job(
    job_dir: str,
    savepoint_url: str,
    *,
    revert: bool = False,
    entry: str | None = None,
    conf: Mapping[str, str] | None = None,
    claim_mode: str = "no_claim",
    skip_in_flight: bool = False,
    partitions: int | None = None,
    accepts_loss: bool = False,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> OperationRecord:
    """Set a job to a savepoint; no query is started.

    Args:
        job_dir: a directory that holds no job yet, or the job's own.
        savepoint_url: the savepoint.
        revert: first remove from the job's sinks what it has written after the savepoint; the
            job's function is called for that, as its last run called it.
        entry: where that function is now; None for where the last run found it.
        conf: Spark configuration, for *revert* and *partitions*.
        claim_mode: ``no_claim``, or ``claim`` to dispose of the savepoint when the restore is done.
        skip_in_flight: never run the batch in flight of an unaligned savepoint: its rows are lost.
        partitions: the number over which Spark spreads the state; None to keep it.
        accepts_loss: go back although input that would be read again is gone: its rows are lost.
        spark: a session whose JVM is used and left running; None to start Spark if it is needed.
        clock: time; None for the machine's.

    Raises:
        ConfigError: the savepoint is not this job's, its state cannot be repartitioned, or the job
            has written after it and *revert* is False.
        LostInputError: input that would be read again is gone.
        JobDrainedError, CheckpointError: the savepoint cannot be restored.
        LeaseHeldError: a driver is running the job.

    Crash safety: no driver runs the job before a call like this one has completed it.
    """
    clock = clock or SystemClock()
    _check_claim_mode(claim_mode)
    check_partitions(partitions)
    with refusing(job_dir, "read"):
        _check_active(directory := open_job_directory(job_dir))
    if (before := _claimed_before(directory, savepoint_url)) is not None:
        collect_leftover(savepoint_url, clock=clock)
        return before
    savepoint = open_savepoint(savepoint_url)
    check_restorable(savepoint)
    names = _names(directory, savepoint)  # now, before Spark starts, and under the lease
    if partitions is not None:
        check_repartitionable(savepoint, names.values(), skip_in_flight=skip_in_flight)
    is_spark_needed = revert or partitions is not None
    if not is_spark_needed:  # but to list input that this process does not reach
        check = _input(None, accepts_loss=accepts_loss).check
        is_spark_needed = bool(check(directory, savepoint, names, skips_in_flight=skip_in_flight))
    observer = wait_for_free_lease(directory.storage, clock)
    using = using_spark(spark, f"spark-stream restore {directory.url}", None, conf)
    with (
        pinned_savepoint(savepoint_url, clock, directory.url) as savepoint,
        using if is_spark_needed else contextlib.nullcontext() as session,
    ):
        queries = _declare(directory, entry, conf, session) if revert and session else ()
        spread = spark_repartition(session) if partitions is not None and session else None
        with _leased(directory, f"restore-{savepoint.folder}", session, observer, clock) as lease:
            settings = RestoreSettings(
                savepoint,
                names := _names(directory, savepoint),
                claim_mode=claim_mode,
                skip_in_flight=skip_in_flight,
                partitions=partitions,
                rewinds=_rewound_by(directory, savepoint, names),
                supersedes=True,
            )
            restore = Restore(
                directory, lease, clock, queries, _input(session, accepts_loss=accepts_loss)
            )
            begun = restore.begin(settings)
            _put_job(directory, savepoint, lease, clock)
            done = restore.finish(begun, savepoint, spread)
    if claim_mode == "claim":
        dispose(savepoint.url, clock=clock)
    return done


def rewind_job(
    job_dir: str,
    run_id: str,
    *,
    with_later: bool = False,
    entry: str | None = None,
    conf: Mapping[str, str] | None = None,
    accepts_loss: bool = False,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> list[RewoundRun]:
    """Rewind a run: its rows are reverted, the job is as it was before it; no query is started.

    Args:
        job_dir: the job's directory.
        run_id: the run.
        with_later: rewind the runs that have built on it, too, the newest first.
        entry: where the job's function is now; None for where the last run found it.
        conf: Spark configuration.
        accepts_loss: rewind although input that would be read again is gone: its rows are lost.
        spark: a session whose JVM is used and left running; None to start Spark.
        clock: time; None for the machine's.

    Returns:
        The rewound runs in order.

    Raises:
        RevertError: a run cannot be rewound, or a restore has rewound a part of it.
        LostInputError: input that would be read again is gone.
        LeaseHeldError: a driver is running the job.

    Crash safety: no driver runs the job before a call like this one has completed it.
    """
    clock = clock or SystemClock()
    directory = open_job_directory(job_dir)
    _check_active(directory, run_id)
    later = runs_since(directory, run_id)
    _check_whole(directory, run_id)
    if not with_later:
        check_start(directory, run_id)
    observer = wait_for_free_lease(directory.storage, clock)
    with using_spark(spark, f"spark-stream rewind {directory.url}", None, conf) as session:
        queries = _declare(directory, entry, conf, session)
        name = f"rewind-{run_id}"
        with _leased(directory, name, session, observer, clock, rewinds=run_id) as lease:
            listing = _input(session, accepts_loss=accepts_loss)
            rewinds = [
                Rewind(directory, each, queries, lease, clock, input=listing)
                for each in _to_rewind(directory, run_id, later, with_later=with_later)
            ]
            if len(rewinds) > 1:
                check_all(rewinds)
            rewound = [_rewind_one(directory, each.run_id, each) for each in rewinds]
    return rewound if with_later else rewound[-1:]


def _input(session: SparkSession | None, *, accepts_loss: bool) -> InputCheck:
    listing = spark_listing(session) if session is not None else names_in_folder
    return InputCheck(listing, accepts_loss)


@dataclasses.dataclass(frozen=True)
class RewoundRun:
    """The result of rewinding a run."""

    run_id: str
    reverted: Written
    before: Written
    standing: Written
    by: str | None = None

    def __str__(self) -> str:
        said = [f"{self.reverted} reverted"] if self.reverted.epochs else []
        by = f" by {self.by}" if self.by is not None else ""
        said += [f"{self.before} had been reverted before{by}"] if self.before.epochs else []
        if self.standing.epochs:
            return f"run {self.run_id}: rewound in part: {'; '.join(said)}; {self.standing} stay"
        if not said:
            return (
                f"run {self.run_id}: nothing to revert, it has written nothing; it does not count"
            )
        return f"run {self.run_id}: rewound: {'; '.join(said)}"


def _rewind_one(directory: JobDirectory, run_id: str, rewind: Rewind) -> RewoundRun:
    rewound, before = directory.run(run_id).rewound(), _output_of(directory, run_id)
    rewind.rewind()
    after = _output_of(directory, run_id)
    reverted = before.standing - after.standing
    by = rewound.by if rewound is not None else None
    return RewoundRun(run_id, reverted, before.reverted, after.standing, by)


def describe_restored(job_dir: str, operation: OperationRecord) -> Iterator[str]:
    """Yield a line for each run that a restore has rewound."""
    directory = open_job_directory(job_dir)
    for run_id in operation.rewinds:
        output = _output_of(directory, run_id)
        stay = f"; {output.standing} stay, from before it" if output.standing.epochs else ""
        what = f"rewound by restore {operation.number}: {output.reverted} reverted"
        yield f"run {run_id}: {what}{stay}"


def _output_of(directory: JobDirectory, run_id: str) -> Output:
    return output_of(map(directory.committables, directory.query_names()), run_id)


def _check_whole(directory: JobDirectory, run_id: str) -> None:
    last = Restores(directory).last()
    if last is not None and last.is_open and run_id in last.rewinds:
        return
    rewound, output = directory.run(run_id).rewound(), _output_of(directory, run_id)
    if rewound is not None and output.standing.epochs:
        raise RevertError(
            f"{directory.url}: run {run_id!r} is rewound in part, and nothing was done now: the "
            f"job was set to {rewound.savepoint} by {rewound.by} at "
            f"{utc_text(rewound.at)}, in the middle of the run. "
            f"{output.reverted} were reverted; {output.standing} stay, because the job goes "
            "on from there. To revert them, too, set the job to a savepoint from before the run: "
            "spark-stream savepoint restore URL JOB_DIR --revert"
        )


def _to_rewind(
    directory: JobDirectory, run_id: str, later: Sequence[str], *, with_later: bool
) -> list[str]:
    # Those that were rewound before are checked, too: one of them may have been interrupted.
    rewound = [run for run in reversed(later) if with_later or directory.run(run).rewound()]
    return [*rewound, run_id]


def _check_claim_mode(claim_mode: str) -> None:
    if claim_mode not in CLAIM_MODES:
        raise ConfigError(f"claim mode {claim_mode!r}: use one of {', '.join(CLAIM_MODES)}")


@contextlib.contextmanager
def _leased(
    directory: JobDirectory,
    what: str,
    session: SparkSession | None,
    observer: LeaseObserver,
    clock: Clock,
    *,
    rewinds: str | None = None,
) -> Iterator[Fence]:
    with refusing(directory.url, "written"):
        begin_identity(directory.storage, clock)
        lease = acquire_lease(
            directory.storage,
            run_id=derive_run_id(what),  # the folder may have been renamed, the run's id be long
            driver_id=f"{what.partition('-')[0]}-{uuid.uuid4().hex}",
            owner=identify_this(*([jvm_pid(session)] if session else [])),
            clock=clock,
            observer=observer,
        )
    with lease:
        _check_active(directory, rewinds)
        relocate(directory, lease, clock)
        yield lease


def _check_active(directory: JobDirectory, rewinds: str | None = None) -> None:
    """Refuse to set back a version on trial, or one from whose rows another continues."""
    upgrade = upgrade_over(directory, rewinds)
    if upgrade is not None:
        raise ConfigError(describe_version(*upgrade))


def _claimed_before(directory: JobDirectory, savepoint_url: str) -> OperationRecord | None:
    last, location = Restores(directory).last(), open_storage(savepoint_url)
    if last is None or last.is_open or last.plan.claim_mode != "claim":
        return None
    return last if last.plan.savepoint == location.url and not location.exists(MANIFEST) else None


def _last_request(
    directory: JobDirectory, entry: str | None, conf: Mapping[str, str] | None
) -> tuple[RunRecord, RunSpec]:
    last = last_run(directory)
    spec = RunSpec(
        job_dir=directory.url,
        entry=entry or last.entry,
        run_id=last.run_id,
        params=last.params,
        secret_params=last.secret_params,
        conf=conf or {},
    )
    return last, spec


def _declare(
    directory: JobDirectory,
    entry: str | None,
    conf: Mapping[str, str] | None,
    spark: SparkSession,
) -> Sequence[QueryDefinition]:
    last, spec = _last_request(directory, entry, conf)
    return declared_queries(last.mode, spec, last.run_id, spark)


def _batch_of(savepoint: Savepoint, name: str) -> int:
    saved = savepoint.record.queries.get(name)
    return saved.epoch if saved is not None else -1


def _names(directory: JobDirectory, savepoint: Savepoint) -> dict[str, str]:
    """Return for each query the savepoint's that it continues from; refuse another history."""
    job, there = directory.job(), directory.query_names()
    theirs, saved = savepoint.record.job, savepoint.record.queries
    if job is not None and theirs is not None and job.name != theirs:
        raise ConfigError(
            f"{directory.url} holds the job {job.name!r}, and the savepoint {savepoint.url} is of "
            f"{theirs!r}; restore it into a job directory of its own"
        )
    is_named = theirs is not None or not there
    declared = [*there, *(name for name in saved if is_named and name not in there)]
    names = match_queries(savepoint, declared, allow_non_restored=is_named)
    check_same_history(directory, savepoint, names)
    return names


def _put_job(directory: JobDirectory, savepoint: Savepoint, lease: Fence, clock: Clock) -> None:
    record = savepoint.record
    add_predecessors(directory.storage, record.lineage, savepoint.url, clock)
    pin_settings(
        directory.storage,
        read_pins(directory.storage),
        record.settings,
        lease,
        clock,
        run_id=record.run_id,
        savepoint=savepoint.url,
    )
    if record.job is not None:
        created = to_iso(clock.now())
        directory.put_job(JobRecord(name=record.job, created=created))


def _rewound_by(
    directory: JobDirectory, savepoint: Savepoint, names: Mapping[str, str]
) -> list[str]:
    rewound = []
    for run_id in directory.run_ids():
        final = directory.run(run_id).final()
        if final is None or any(
            query.last_batch > _batch_of(savepoint, names.get(name, ""))
            for name, query in final.queries.items()
        ):
            rewound.append(run_id)
    return rewound


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
    last, spec = _last_request(directory, entry, conf)
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
