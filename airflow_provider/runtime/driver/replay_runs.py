"""Replay of a run in the middle: it and the runs built on it are executed again, in order."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import UnknownJobError
from airflow_provider.runtime.jobdir.later_runs import runs_since
from airflow_provider.runtime.jobdir.layout import open_job_directory
from airflow_provider.runtime.jobdir.runs import request_of
from airflow_provider.runtime.jobdir.submissions import RunOwnerRecord
from airflow_provider.runtime.savepoints.restores import replayed_by
from airflow_provider.runtime.spark.session import using_spark

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.driver.attempt import OnProgress
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.run_records import FinalCheckpoint
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.spark.session import SparkStarter

_REPLAY: Final = re.compile(r"(?P<first>.+)\.r(?P<number>[2-9]|[1-9][0-9]+)")


@dataclasses.dataclass(frozen=True)
class PlannedReplay:
    """A run, and the run that replays it."""

    run_id: str
    replay_id: str


def plan_replays(directory: JobDirectory, run_id: str) -> list[PlannedReplay]:
    """Return the runs to execute again, oldest first; all of them have been begun before.

    If the run was replayed already, they are those that were undone with it: an interrupted replay
    is completed, and a complete one stays as it is.

    Raises:
        UnknownJobError: there is no such run.
    """
    first = _replay_id(directory, run_id)
    is_begun = directory.run(run_id).rewound() is not None
    planned = [PlannedReplay(run_id, first)]
    for other in runs_since(directory, run_id):
        rewound = directory.run(other).rewound()
        is_undone = rewound is not None and rewound.by == replayed_by(first, run_id)
        if is_undone or (rewound is None and not is_begun):
            planned.append(PlannedReplay(other, _replay_id(directory, other)))
    return planned


def replay_runs(
    job_dir: str,
    run_id: str,
    *,
    entry: str | None = None,
    conf: Mapping[str, str] | None = None,
    spark: SparkSession | SparkStarter | None = None,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
    on_spark_started: Callable[[], None] | None = None,
) -> Iterator[FinalCheckpoint]:
    """Undo a run and those that have built on it, and execute all of them again, oldest first.

    Each one has the options, parameters and interval that it had. The task of an Airflow run that
    began one is about its replay from then on.

    Args:
        job_dir: the job's directory.
        run_id: the run.
        entry: where the job's function is now; None for where each run found it.
        conf: Spark configuration.
        spark: as for :func:`.run_job`.
        stop: set by the caller to cancel the attempt.
        on_progress: called about once a second.
        on_spark_started: called when the JVM runs.

    Yields:
        The final checkpoint of each run, as soon as it has committed.

    Raises:
        RevertError: a run cannot be rewound; nothing was removed.

    Crash safety: the same call continues; it executes none twice.
    """
    directory = open_job_directory(job_dir)
    planned = plan_replays(directory, run_id)
    with using_spark(spark, f"spark-stream replay {directory.url}", None, conf) as session:
        if on_spark_started is not None:
            on_spark_started()
        for each in planned:
            spec = _request(directory, each, with_later=each.run_id == run_id)
            _hand_over(directory, each)
            yield run_job(
                dataclasses.replace(spec, conf=dict(conf or {}), entry=entry or spec.entry),
                spark=session,
                stop=stop,
                on_progress=on_progress,
            )


def _request(directory: JobDirectory, planned: PlannedReplay, *, with_later: bool) -> RunSpec:
    run = directory.run(planned.run_id)
    record = run.record()
    if record is None:
        raise UnknownJobError(
            f"{directory.url}: no run {planned.run_id!r}, so there is nothing to replay"
        )
    spec = request_of(record, run.last_attempt(), directory.url)
    return dataclasses.replace(
        spec, run_id=planned.replay_id, replays=planned.run_id, with_later=with_later
    )


def _replay_id(directory: JobDirectory, run_id: str) -> str:
    owner = RunOwnerRecord.read(directory.run(run_id).storage, RunOwnerRecord.NAME)
    if owner is not None and owner.next_run_id is not None:
        return owner.next_run_id
    before = _REPLAY.fullmatch(run_id)
    if before is None:
        return f"{run_id}.r2"
    return f"{before['first']}.r{int(before['number']) + 1}"


def _hand_over(directory: JobDirectory, planned: PlannedReplay) -> None:
    """Let the task that has begun a run be about its replay. Idempotent."""
    run, replay = directory.run(planned.run_id), directory.run(planned.replay_id)
    owner = RunOwnerRecord.read(run.storage, RunOwnerRecord.NAME)
    if owner is None:
        return
    name = RunOwnerRecord.NAME
    dataclasses.replace(owner, next_run_id=None).put_if_absent(replay.storage, name)
    dataclasses.replace(owner, next_run_id=planned.replay_id).put(run.storage, name)
