"""The beginning of a job: what its directory says, read once, and the decision; pure.

A driver decides twice: early, to refuse before anything is written, and under the lease, where the
decision counts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.errors.fixes import RESTORE_ELSEWHERE, of_caller
from airflow_provider.runtime.savepoints.restores import Restores, open_restore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow_provider.runtime.jobdir.journal import OperationRecord
    from airflow_provider.runtime.jobdir.layout import JobDirectory


@dataclasses.dataclass(frozen=True)
class PastBeginnings:
    """With what a job was set before.

    Attributes:
        last: the newest restore; None for none.
        starts: the restores that are no rewinds, the newest first; only where a savepoint is asked
            for.
        begun: a query that has a checkpoint; None for none; only there, too.
    """

    url: str
    last: OperationRecord | None
    starts: Sequence[OperationRecord]
    begun: str | None

    @classmethod
    def read(cls, directory: JobDirectory, asked: Asked) -> PastBeginnings:
        restores = Restores(directory)
        if asked.savepoint is None:
            return cls(directory.url, restores.last(), (), None)
        begun = (
            name
            for name in directory.query_names()
            if CheckpointLogs(directory.checkpoint(name)).exists()
        )
        return cls(directory.url, restores.last(), [*restores.starts()], next(begun, None))


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a start asks for.

    Attributes:
        savepoint: where to begin; None for the job's own state.
        partitions: how many the state is spread over; None for as many as it has.
        allows_resets: whether a query that does not fit is reset while its output stays.
    """

    savepoint: str | None
    partitions: int | None = None
    allows_resets: bool = False


@dataclasses.dataclass(frozen=True)
class GoOn:
    """From the state in the job's own directory."""


@dataclasses.dataclass(frozen=True)
class EndReset:
    """From that state, when a reset of queries that was cut short has ended."""

    operation: OperationRecord


@dataclasses.dataclass(frozen=True)
class FromSavepoint:
    """From the savepoint that is asked for."""


Beginning = GoOn | EndReset | FromSavepoint


def decide_beginning(past: PastBeginnings, asked: Asked) -> Beginning:
    """Return where a job begins.

    Raises:
        ConfigError: it has begun otherwise than from the savepoint.
        CheckpointError: it is being set to something else.
    """
    if asked.savepoint is not None and not _has_begun(past, asked):
        return FromSavepoint()
    _check_open(past, asked)
    last = past.last
    return EndReset(last) if last is not None and last.is_open else GoOn()


def _check_open(past: PastBeginnings, asked: Asked) -> None:
    last = past.last
    if last is not None and last.is_open and not (last.plan.keep_outputs and asked.allows_resets):
        raise open_restore(past.url, last)


def _has_begun(past: PastBeginnings, asked: Asked) -> bool:
    start = next(iter(past.starts), None)
    if start is None or not _is_of(start, asked) or past.last != start:
        _check_open(past, asked)  # what somebody else has begun, and was cut short
    own = next((each for each in past.starts if _is_of(each, asked)), None)
    if own is not None:
        is_begun = not own.is_open or own != past.last  # another restore has taken its place
        if is_begun and asked.partitions not in {None, own.plan.partitions}:
            raise ConfigError(
                f"{past.url}: the job has begun from {asked.savepoint} already, with "
                f"partitions={own.plan.partitions}, and {asked.partitions} are requested now; "
                f"use the same number, or {RESTORE_ELSEWHERE}"
            )
        return is_begun
    if start is not None:
        left_out = of_caller("--from-savepoint", "the operator's from_savepoint")
        raise ConfigError(
            f"{past.url}: the job was set to {start.plan.savepoint} before, not to "
            f"{asked.savepoint}; leave out {left_out} to continue, or {RESTORE_ELSEWHERE}"
        )
    if past.begun is not None:
        raise ConfigError(
            f"{past.url}: the job has begun already (query {past.begun!r} has a checkpoint), so it "
            "cannot begin from a savepoint; set it back with 'spark-stream savepoint restore', or "
            f"{RESTORE_ELSEWHERE}"
        )
    return False


def _is_of(start: OperationRecord, asked: Asked) -> bool:
    # By its address: a savepoint from which the job has begun may be gone.
    return start.plan.savepoint == asked.savepoint
