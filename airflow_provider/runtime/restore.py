"""Setting a job to a savepoint, from outside: a new job directory, or the job's own."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from typing import TYPE_CHECKING

from airflow_provider.runtime.asking import Ask
from airflow_provider.runtime.clock import Clock, SystemClock, to_iso
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.jobdir import JobRecord, RewoundRecord
from airflow_provider.runtime.lease import TAKEABLE, LeaseObserver, acquire_lease, held_error
from airflow_provider.runtime.preparing import declare_in, last_run, open_job_directory
from airflow_provider.runtime.process import identify_this
from airflow_provider.runtime.savepoint import (
    CLAIM_MODES,
    MANIFEST,
    Restores,
    begin_restore,
    check_restorable,
    collect_garbage,
    dispose,
    finish_restore,
    match_queries,
    open_savepoint,
)
from airflow_provider.runtime.session import jvm_pid, start_spark
from airflow_provider.runtime.sinks import take_back_after
from airflow_provider.runtime.storage import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir import JobDirectory
    from airflow_provider.runtime.queries import QueryDefinition
    from airflow_provider.runtime.savepoint import RestoreRecord, Savepoint
    from airflow_provider.runtime.sinks.protocol import Fence


def restore_job(
    job_dir: str,
    savepoint_url: str,
    *,
    take_back: bool = False,
    entry: str | None = None,
    conf: Mapping[str, str] | None = None,
    claim_mode: str = "no_claim",
    skip_in_flight: bool = False,
    spark: SparkSession | None = None,
    clock: Clock | None = None,
) -> RestoreRecord:
    """Set a job to a savepoint; no query is started.

    Args:
        job_dir: a directory that holds no job yet, or the job's own.
        savepoint_url: the savepoint.
        take_back: first remove from the job's sinks what it has written after the savepoint; the
            job's function is called for that, as its last run called it.
        entry: where that function lies now; None for where the last run found it.
        conf: Spark configuration, for *take_back*.
        claim_mode: ``no_claim`` leaves the savepoint alone; ``claim`` lets it go over to the job:
            when the restore is done, the savepoint is disposed of.
        skip_in_flight: never run the batch in flight of an unaligned savepoint: its rows are lost.
        spark: a session whose JVM is used and left running; None to start Spark if it is needed.
        clock: time; None for the machine's.

    Returns:
        What was restored.

    Raises:
        UnknownJobError: no such savepoint, or no run whose function *take_back* could call.
        ConfigError: it is not this job's, or the job has written after it and *take_back* is False.
        JobDrainedError, CheckpointError: the savepoint cannot be restored.
        LeaseHeldError: a driver is running the job.

    Crash safety: no driver runs the job before a call like this one has completed it.
    """
    clock = clock or SystemClock()
    if claim_mode not in CLAIM_MODES:
        msg = f"claim mode {claim_mode!r}: use one of {', '.join(CLAIM_MODES)}"
        raise ConfigError(msg)
    directory = open_job_directory(job_dir)
    before = _claimed_before(directory, savepoint_url)
    if before is not None:
        collect_garbage(open_storage(savepoint_url).url.rpartition("/")[0], clock=clock)
        return before
    savepoint = open_savepoint(savepoint_url)
    check_restorable(savepoint)
    names = _names(directory, savepoint)
    observer = LeaseObserver(directory.storage, clock)
    held, liveness = observer.settle()
    if held is not None and liveness not in TAKEABLE:
        raise held_error(directory.storage, held)
    with _declared(directory, entry, conf, spark) if take_back else _nothing() as declared:
        lease = acquire_lease(
            directory.storage,
            run_id=f"restore-{savepoint.folder}",
            driver_id=f"restore-{uuid.uuid4().hex}",
            owner=identify_this(*declared.pids),
            clock=clock,
            observer=observer,
        )
        try:
            after = {q.name: _batch_of(savepoint, names.get(q.name, "")) for q in declared.queries}
            _take_back(directory, declared.queries, after, lease, clock)
            record = begin_restore(
                directory,
                savepoint,
                names=names,
                claim_mode=claim_mode,
                skip_in_flight=skip_in_flight,
                clock=clock,
            )
            _put_job(directory, savepoint, clock)
            _mark_rewound(directory, record, clock)
            record = finish_restore(directory, record, lease, clock)
        finally:
            lease.release()
    if claim_mode == "claim":
        dispose(savepoint.url, clock=clock)
    return record


def _claimed_before(directory: JobDirectory, savepoint_url: str) -> RestoreRecord | None:
    """Return the restore that has claimed the savepoint, when its disposal was cut short."""
    last, place = Restores(directory).last(), open_storage(savepoint_url)
    if last is None or last.done is None or last.claim_mode != "claim":
        return None
    return last if last.savepoint == place.url and not place.exists(MANIFEST) else None


@dataclasses.dataclass(frozen=True)
class _Declared:
    """What a job's function has declared, and the processes that this took."""

    queries: Sequence[QueryDefinition] = ()
    pids: Sequence[int] = ()


@contextlib.contextmanager
def _nothing() -> Iterator[_Declared]:
    yield _Declared()


@contextlib.contextmanager
def _declared(
    directory: JobDirectory,
    entry: str | None,
    conf: Mapping[str, str] | None,
    spark: SparkSession | None,
) -> Iterator[_Declared]:
    """Call the job's function as its last run called it, to learn its sinks."""
    last = last_run(directory)
    ask = Ask(
        job_dir=directory.url,
        entry=entry or last.entry,
        run_id=last.run_id,
        params=last.params,
        conf=conf or {},
    )
    owned = spark is None
    spark = spark or start_spark(f"spark-stream restore {directory.url}", ask.master, ask.conf)
    try:
        yield _Declared(declare_in(last.mode, ask, last.run_id, spark).queries, (jvm_pid(spark),))
    finally:
        if owned:
            spark.stop()


def _take_back(
    directory: JobDirectory,
    queries: Sequence[QueryDefinition],
    after: Mapping[str, int],
    fence: Fence,
    clock: Clock,
) -> None:
    """Remove from the queries' sinks what was written after these batches."""
    for query in queries:
        for work in take_back_after(
            query.name,
            storage=directory.committables(query.name),
            sinks=[*query.sinks, *([query.native] if query.native else [])],
            epoch=after[query.name],
            fence=fence,
            clock=clock,
        ):
            work.take_back()


def _batch_of(savepoint: Savepoint, name: str) -> int:
    saved = savepoint.record.queries.get(name)
    return saved.batch if saved is not None else -1


def _names(directory: JobDirectory, savepoint: Savepoint) -> dict[str, str]:
    """Return for each query of the job the savepoint's that it goes on with."""
    job, there = directory.job(), directory.query_names()
    theirs = savepoint.record.job
    if job is not None and theirs is not None and job.name != theirs:
        msg = (
            f"{directory.url} holds the job {job.name!r}, and the savepoint {savepoint.url} is of "
            f"{theirs!r}; restore it into a job directory of its own"
        )
        raise ConfigError(msg)
    if not there:
        return {name: name for name in savepoint.record.queries}
    declared = [*there, *(name for name in savepoint.record.queries if name not in there)]
    if theirs is None:
        return match_queries(savepoint, there)
    return match_queries(savepoint, declared, allow_non_restored=True)


def _put_job(directory: JobDirectory, savepoint: Savepoint, clock: Clock) -> None:
    if savepoint.record.job is not None:
        created = to_iso(clock.now())
        directory.put_job(JobRecord(name=savepoint.record.job, created=created))


def _mark_rewound(directory: JobDirectory, record: RestoreRecord, clock: Clock) -> None:
    """Record of the runs that wrote after the savepoint that they no longer count. Idempotent."""
    for run_id in directory.run_ids():
        run = directory.run(run_id)
        final = run.final()
        if final is not None and all(
            (query["batch_id"] if query["batch_id"] is not None else -1)
            <= record.queries.get(name, {"batch": -1})["batch"]
            for name, query in final.queries.items()
        ):
            continue
        run.put_rewound(
            RewoundRecord(run_id=run_id, savepoint=record.savepoint, at=to_iso(clock.now()))
        )
