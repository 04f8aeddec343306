"""Preconditions of a start: the relevant facts of a job directory, and pure checks of them.

A driver checks them before Spark starts, and again under the lease, since another driver may have
run meanwhile.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.errors import (
    CheckpointError,
    ConfigError,
    JobDrainedError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.fixes import FROM_SCRATCH, set_option
from airflow_provider.runtime.jobdir.end_of_input import check_drains_intended, draining_run
from airflow_provider.runtime.jobdir.requests import has_agreed_to_leave
from airflow_provider.runtime.jobdir.run_commit import committed_batch_run
from airflow_provider.runtime.jobdir.upgrade_record import describe_version, upgrade_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider.runtime.jobdir.layout import JobDirectory, RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord, RewoundRecord


@dataclasses.dataclass(frozen=True)
class Situation:
    """The facts of the job directory on which the start of a run depends.

    Attributes:
        replays: a run that is rewound first, and its drain with it; None for none.
        driver_id: the submission that starts; None for a user's command.
        has_left: whether it has answered a request that it ends.
        drained_by: the run that has drained the job, or has begun to; None for none.
        has_drain_ended: whether that run has its final checkpoint.
        unintended_drain: the drain that no run has recorded; None for none, or when the queries are
            restored first.
        replaced: why an upgrade forbids a start of this version; None if none does.
    """

    url: str
    run_id: str
    replays: str | None
    rewound: RewoundRecord | None
    driver_id: str | None
    attempts: Sequence[AttemptRecord]
    has_left: bool
    drained_by: str | None
    has_drain_ended: bool
    unintended_drain: CheckpointError | None
    replaced: str | None = None

    @classmethod
    def read(
        cls, directory: JobDirectory, run_id: str, driver_id: str | None, replays: str | None
    ) -> Situation:
        run = directory.run(run_id)
        upgrade = upgrade_over(directory, run_id)
        drained_by = draining_run(directory) or committed_batch_run(directory)
        return cls(
            url=directory.url,
            run_id=run_id,
            replays=replays,
            rewound=run.rewound(),
            driver_id=driver_id,
            attempts=_attempts_of(driver_id, run),
            has_left=driver_id is not None and has_agreed_to_leave(directory.storage, driver_id),
            drained_by=drained_by,
            has_drain_ended=drained_by is not None
            and directory.run(drained_by).final() is not None,
            unintended_drain=_unintended_drain(directory) if replays is None else None,
            replaced=describe_version(*upgrade) if upgrade is not None else None,
        )


def run_is_not_rewound(now: Situation) -> ConfigError | None:
    """The job did not go back before the run."""
    return rewound_error(now.url, now.run_id, now.rewound)


def driver_is_new(now: Situation) -> ConfigError | None:
    """The driver has not ended before: a cluster may start an ended driver again.

    A driver that was killed without a recorded end continues.
    """
    if now.driver_id is None:
        return None
    ended = next((each for each in now.attempts if each.outcome is not None), None)
    if ended is None and not now.has_left:
        return None
    how = f"attempt {ended.attempt}, {ended.outcome}" if ended is not None else "it was cancelled"
    msg = (
        f"{now.url}: driver {now.driver_id} of run {now.run_id!r} has ended before ({how}), "
        "and was started again by its cluster; to resume the run, submit another driver. Let "
        "clusters start a driver once (spark.yarn.maxAppAttempts=1, no retries of the application)"
    )
    return ConfigError(msg)


def drains_are_recorded(now: Situation) -> CheckpointError | None:
    """No query is at a drain that no run of the job has recorded."""
    return now.unintended_drain


def job_is_not_drained(now: Situation) -> JobDrainedError | None:
    """No other run has drained the job, or has begun to."""
    if now.drained_by is None or now.drained_by in {now.run_id, now.replays}:
        return None
    state = "was drained by" if now.has_drain_ended else "is being drained by"
    finish = f"finish that one with {set_option('run_id', now.drained_by)}, or "
    fix = "" if now.has_drain_ended else finish
    msg = (
        f"{now.url}: the job {state} run {now.drained_by!r}. Its windows are flushed and their "
        f"state is gone, so continuing would repeat them; {fix}{FROM_SCRATCH}"
    )
    return JobDrainedError(msg)


def job_is_not_replaced(now: Situation) -> ConfigError | None:
    """No other version is taking, or has taken, the place of this one."""
    return None if now.replaced is None else ConfigError(now.replaced)


PRECONDITIONS: Final[tuple[Callable[[Situation], SparkStreamError | None], ...]] = (
    run_is_not_rewound,
    driver_is_new,
    drains_are_recorded,
    job_is_not_drained,
    job_is_not_replaced,
)
"""The conditions of a start, in the order in which problems are reported."""


def check_preconditions(
    directory: JobDirectory,
    run_id: str,
    *,
    driver_id: str | None = None,
    replays: str | None = None,
) -> None:
    """Refuse a start that the job directory forbids; nothing is written.

    Raises:
        ConfigError: the run no longer counts, or the driver has ended before.
        CheckpointError: something else has drained it, and no run has recorded that.
    """
    now = Situation.read(directory, run_id, driver_id, replays)
    for precondition in PRECONDITIONS:
        if (error := precondition(now)) is not None:
            raise error


def rewound_error(url: str, run_id: str, rewound: RewoundRecord | None) -> ConfigError | None:
    """Return the refusal of a run that the job went back before; None when it did not."""
    if rewound is None:
        return None
    msg = (
        f"{url}: run {run_id!r} no longer counts: the job was set to "
        f"{rewound.savepoint or 'before it'} at {rewound.at}; use another run id"
    )
    return ConfigError(msg)


def _attempts_of(driver_id: str | None, run: RunDirectory) -> Sequence[AttemptRecord]:
    if driver_id is None:
        return ()
    return [each for each in run.attempts() if each.driver_id == driver_id]


def _unintended_drain(directory: JobDirectory) -> CheckpointError | None:
    try:
        check_drains_intended(directory)
    except CheckpointError as error:
        return error
    return None
