"""Restore of a savepoint into a job that no driver runs; no query is started."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock, to_iso
from airflow_provider.runtime.driver.compatibility import match_queries
from airflow_provider.runtime.driver.idle_job import (
    check_not_replaced,
    declare_again,
    input_check,
    leased_job,
)
from airflow_provider.runtime.errors import ConfigError, refusing
from airflow_provider.runtime.jobdir.identity import add_predecessors
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import wait_for_free_lease
from airflow_provider.runtime.jobdir.pinned_settings import pin_settings, read_pins
from airflow_provider.runtime.jobdir.run_records import JobRecord
from airflow_provider.runtime.jobdir.run_spec import check_partitions
from airflow_provider.runtime.queries.spark_state import spark_repartition
from airflow_provider.runtime.savepoints.catalog import (
    check_repartitionable,
    check_restorable,
    open_savepoint,
)
from airflow_provider.runtime.savepoints.history import check_same_history
from airflow_provider.runtime.savepoints.record import MANIFEST
from airflow_provider.runtime.savepoints.restore import Restore
from airflow_provider.runtime.savepoints.restore_plan import CLAIM_MODES, RestoreSettings
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.retention import (
    collect_leftover,
    dispose,
    pinned_savepoint,
)
from airflow_provider.runtime.spark.session import using_spark
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.api.sinks import Fence
    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory
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
        check_not_replaced(directory := open_job_directory(job_dir))
    if (before := _claimed_before(directory, savepoint_url)) is not None:
        collect_leftover(savepoint_url, clock=clock)
        return before
    is_spark_needed = _check_early(
        directory,
        savepoint_url,
        needs_spark=revert or partitions is not None,
        skip_in_flight=skip_in_flight,
        partitions=partitions,
        accepts_loss=accepts_loss,
    )
    observer = wait_for_free_lease(directory.storage, clock)
    using = using_spark(spark, f"spark-stream restore {directory.url}", None, conf)
    with (
        pinned_savepoint(savepoint_url, clock, directory.url) as savepoint,
        using if is_spark_needed else contextlib.nullcontext() as session,
    ):
        queries = declare_again(directory, entry, conf, session) if revert and session else ()
        spread = spark_repartition(session) if partitions is not None and session else None
        with leased_job(
            directory, f"restore-{savepoint.folder}", session, observer, clock
        ) as lease:
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
                directory, lease, clock, queries, input_check(session, accepts_loss=accepts_loss)
            )
            begun = restore.begin(settings)
            _put_job(directory, savepoint, lease, clock)
            done = restore.finish(begun, savepoint, spread)
    if claim_mode == "claim":
        dispose(savepoint.url, clock=clock)
    return done


def _check_early(
    directory: JobDirectory,
    savepoint_url: str,
    *,
    needs_spark: bool,
    skip_in_flight: bool,
    partitions: int | None,
    accepts_loss: bool,
) -> bool:
    """Refuse before Spark starts what is refused under the lease, too; return if Spark is needed.

    It may be needed only to list input that this process does not reach.
    """
    savepoint = open_savepoint(savepoint_url)
    check_restorable(savepoint)
    names = _names(directory, savepoint)
    if partitions is not None:
        check_repartitionable(savepoint, names.values(), skip_in_flight=skip_in_flight)
    if needs_spark:
        return True
    check = input_check(None, accepts_loss=accepts_loss).check
    return bool(check(directory, savepoint, names, skips_in_flight=skip_in_flight))


def _check_claim_mode(claim_mode: str) -> None:
    if claim_mode not in CLAIM_MODES:
        raise ConfigError(f"claim mode {claim_mode!r}: use one of {', '.join(CLAIM_MODES)}")


def _claimed_before(directory: JobDirectory, savepoint_url: str) -> OperationRecord | None:
    last, location = Restores(directory).last(), open_storage(savepoint_url)
    if last is None or last.is_open or last.plan.claim_mode != "claim":
        return None
    return last if last.plan.savepoint == location.url and not location.exists(MANIFEST) else None


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
