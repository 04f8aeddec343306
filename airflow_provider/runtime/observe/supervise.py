"""Supervision of an unbounded run for a bounded time: :mod:`.health` judges, this module polls."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.clock import Due
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.jobdir.lease import Liveness
from airflow_provider.runtime.jobdir.requests import is_leaving, is_requested
from airflow_provider.runtime.observe.health import (
    DriverSample,
    Health,
    HealthProblem,
    Limits,
    QuerySample,
)
from airflow_provider.runtime.observe.observer import RunWatcher
from airflow_provider.runtime.observe.state import Assessment, RunState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider.runtime.api.launchers import Handle, LaunchStatus
    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.jobdir.layout import JobDirectory
    from airflow_provider.runtime.jobdir.lease_records import LeaseRecord
    from airflow_provider.runtime.observe.snapshot import RunSnapshot

_POLL_S: Final = 5.0  # each sample lists two folders of each query
_POLLS_PER_LIMIT: Final = 10


@dataclasses.dataclass(frozen=True)
class Supervision:
    """The arguments of a supervisor, which travel as plain JSON values.

    Attributes:
        limits: when the driver is unhealthy.
        ends: when its time is over, by the wall clock, which several processes share. None for
            never.
    """

    limits: Limits
    ends: dt.datetime | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "progress_timeout_s": self.limits.progress_timeout_s,
            "lag": dict(self.limits.lag),
            "lag_time_s": self.limits.lag_time_s,
            "ends": self.ends.isoformat() if self.ends is not None else None,
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Supervision:
        limits = Limits(raw["progress_timeout_s"], raw["lag"], raw["lag_time_s"])
        ends = raw.get("ends")
        return cls(limits, dt.datetime.fromisoformat(ends) if ends is not None else None)

    def poll_every_s(self) -> float:
        limits = self.limits
        allowed = [limits.progress_timeout_s, limits.lag_time_s if limits.lag else None]
        return min([_POLL_S, *(s / _POLLS_PER_LIMIT for s in allowed if s is not None)])


class SupervisingWatcher(RunWatcher):
    """Polls one run; also reports that it is unhealthy, or that its time is over.

    Args:
        supervision: its arguments.
        driver_id: the submission to watch; None for the end of a driver that was requested to end.
        ask: as of :class:`RunWatcher`.
    """

    def __init__(
        self,
        storage: Storage,
        run_id: str,
        clock: Clock,
        supervision: Supervision,
        driver_id: str | None = None,
        *,
        ask: Callable[[Handle], LaunchStatus | None] | None = None,
    ) -> None:
        super().__init__(storage, run_id, clock, driver_id, ask=ask)
        self._supervision = supervision
        self._sample_due = Due(clock, supervision.poll_every_s())
        self._health = Health()

    def assess(self) -> Assessment:
        """Poll once and decide.

        For a live driver: UNHEALTHY when a symptom has lasted too long; DUE when the time is over,
        it is healthy, has reported, and has no open request.
        """
        is_over = self._is_over()
        is_due = self._sample_due()
        if not is_due and not is_over:
            return super().assess()
        snapshot = self.poll()
        assessment = self.assess_snapshot(snapshot)
        if assessment.run_state is not RunState.RUNNING or snapshot.lease is None:
            return assessment
        problem = self._examine(snapshot, snapshot.lease) if is_due else None
        if problem is not None:
            return _unhealthy(problem)
        if is_over and self._may_hand_over(snapshot, snapshot.lease):
            return Assessment(RunState.DUE)
        return assessment

    def _examine(self, snapshot: RunSnapshot, lease: LeaseRecord) -> HealthProblem | None:
        sample = self._sample(snapshot, lease)
        now_s = self._clock.monotonic()
        self._health, problem = self._health.after(sample, self._supervision.limits, now_s)
        return problem

    def _sample(self, snapshot: RunSnapshot, lease: LeaseRecord) -> DriverSample:
        host = lease.owner.host
        if self._driver_id is None and is_leaving(self.requests, lease.driver_id):
            return DriverSample(lease.since, host, is_leaving=True)
        progress = snapshot.driver_progress
        asked = is_requested(self.requests, lease.driver_id)
        if progress is None:
            return DriverSample(lease.since, host, is_asked=asked)
        queries = {
            name: sample_query(self._directory, name, reported.backlog)
            for name, reported in progress.queries.items()
        }
        return DriverSample(lease.since, host, progress.at, queries, asked)

    def _is_over(self) -> bool:
        ends = self._supervision.ends
        return ends is not None and self._clock.now() >= ends

    def _may_hand_over(self, snapshot: RunSnapshot, lease: LeaseRecord) -> bool:
        return (
            snapshot.liveness is Liveness.LIVE
            and snapshot.driver_progress is not None
            and not is_requested(self.requests, lease.driver_id)
        )


def sample_query(
    directory: JobDirectory, query: str, backlog: Mapping[str, int] | None
) -> QuerySample:
    """Return how far a running query's logs reach.

    Commits are listed first, so a batch that ends in between counts as uncommitted.
    """
    logs = CheckpointLogs(directory.checkpoint(query))
    committed = max(logs.batches("commits"), default=-1)
    planned = max(logs.batches("offsets"), default=-1)
    return QuerySample(planned, committed, dict(backlog or {}))


def _unhealthy(problem: HealthProblem) -> Assessment:
    failure = problem.failure()
    return Assessment(RunState.UNHEALTHY, failure.describe(), failure=failure.to_dict())
