"""Rewind of runs of a job that no driver runs; no query is started."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import Clock, SystemClock, utc_text
from airflow_provider.runtime.driver.idle_job import (
    check_not_replaced,
    declare_again,
    input_check,
    leased_job,
)
from airflow_provider.runtime.errors import RevertError
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.lease import wait_for_free_lease
from airflow_provider.runtime.savepoints.restores import Restores
from airflow_provider.runtime.savepoints.rewind import (
    Rewind,
    check_rewinds,
    check_start,
    runs_to_rewind,
)
from airflow_provider.runtime.sinks.revert import Output, Written, output_of
from airflow_provider.runtime.spark.session import using_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory


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
    _check_early(directory, run_id, with_later=with_later)
    observer = wait_for_free_lease(directory.storage, clock)
    with using_spark(spark, f"spark-stream rewind {directory.url}", None, conf) as session:
        queries = declare_again(directory, entry, conf, session)
        name = f"rewind-{run_id}"
        with leased_job(directory, name, session, observer, clock, rewinds=run_id) as lease:
            listing = input_check(session, accepts_loss=accepts_loss)
            rewinds = [
                Rewind(directory, each, queries, lease, clock, input=listing)
                for each in runs_to_rewind(directory, run_id, with_later=with_later)
            ]
            if len(rewinds) > 1:
                check_rewinds(rewinds)
            rewound = [_rewind_one(directory, rewind) for rewind in rewinds]
    return rewound if with_later else rewound[-1:]


def _check_early(directory: JobDirectory, run_id: str, *, with_later: bool) -> None:
    """Refuse before Spark starts what is refused under the lease, too."""
    check_not_replaced(directory, run_id)
    _check_whole(directory, run_id)
    for each in runs_to_rewind(directory, run_id, with_later=with_later):
        check_start(directory, each, with_later=with_later)


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


def _rewind_one(directory: JobDirectory, rewind: Rewind) -> RewoundRun:
    run_id = rewind.run_id
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
