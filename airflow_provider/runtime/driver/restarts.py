"""Restarts of failed queries in an attempt: another start after a delay, or the attempt's end."""

from __future__ import annotations

import dataclasses
import logging
import random
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.driver.lifecycle.events import (
    Failed,
    JobPhase,
    QueryFailed,
    QueryPhase,
)
from airflow_provider.runtime.failures.restart_strategy import (
    Edge,
    RestartState,
    default_restart,
    queries_to_restart,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.lifecycle.machine import Lifecycle
    from airflow_provider.runtime.driver.prepare import LoadedJob
    from airflow_provider.runtime.errors.explanation import Failure
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.streaming import RunningQuery

log = logging.getLogger(__name__)

# While the job halts, the caller of the stop gets the failure; later nothing runs that could fail.
_RESTARTING: Final = frozenset({JobPhase.READING, JobPhase.DRAINING})
_AT_WORK: Final = frozenset({QueryPhase.CATCHING_UP, QueryPhase.READING, QueryPhase.DRAINING})


class Restarter:
    """Decides about each failure of a query, and keeps its counts in the attempt's record.

    An attempt after a killed one continues with its counts. After one that has ended they start
    from zero, because a caller has decided to start the run again.

    Args:
        spec: the strategy, or None for the run's default, and the failover.
        job: what the job's function has declared.
        run: the folder of the attempts.
        attempt: this attempt.
        clock: time.
        dice: the source of jitter.
    """

    def __init__(
        self,
        spec: RunSpec,
        job: LoadedJob,
        run: RunDirectory,
        attempt: AttemptRecord,
        clock: Clock,
        *,
        dice: random.Random | None = None,
    ) -> None:
        self._strategy = spec.restart_strategy or default_restart(job.plan.until)
        self._failover = spec.failover
        self._queries = job.queries
        self._run = run
        self._clock = clock
        self._dice = dice or random.SystemRandom()
        self._begun = clock.monotonic()
        self._due = self._begun
        self._worked_before_s, self._state = _remembered(run, attempt)
        self.attempt = attempt
        """The attempt's record, with all restarts so far."""

    def after(self, failure: Failure, life: Lifecycle) -> QueryFailed | Failed:
        """Return the event that a failure of a query causes.

        Crash safety: the restart is recorded before it is promised. If it cannot be recorded, as on
        a full disk, only a killed driver forgets it.
        """
        query = failure.query
        if query is None or not failure.restartable or not _may_restart(life, query):
            return Failed(failure)
        decision = self._strategy.decide(self._state, self._worked_s(), dice=self._dice)
        self._state = decision.state
        if decision.delay_s is None:
            why = f" ({decision.reason})" if decision.reason else ""
            return Failed(dataclasses.replace(failure, reason=f"{failure.reason}{why}"))
        self._due = self._clock.monotonic() + decision.delay_s
        self._put(failure)
        restart = self._to_restart(query, life)
        log.warning(
            "run=%s %s: restart %d in %.1f s of %s",
            self._run.run_id,
            failure.describe(),
            decision.state.restarts,
            decision.delay_s,
            ", ".join(restart),
        )
        return QueryFailed(query, restart)

    def _to_restart(self, query: str, life: Lifecycle) -> tuple[str, ...]:
        drained = [name for name, phase in life.queries.items() if phase is QueryPhase.DRAINED]
        edges = edges_of(self._queries, life.upstream)
        return queries_to_restart(
            tuple(life.queries), edges, query, failover=self._failover, finished=drained
        )

    def is_due(self, queries: Iterable[RunningQuery | BatchQuery]) -> bool:
        """Whether *queries*, which do not run, may start again; False if there are none.

        The delay is over, and Spark runs no more of their tasks, whose output could be taken for
        the next run's of the same batch.
        """
        waiting = list(queries)
        is_over = bool(waiting) and self._clock.monotonic() >= self._due
        return is_over and not any(query.has_tasks() for query in waiting)

    def _worked_s(self) -> float:
        return self._worked_before_s + self._clock.monotonic() - self._begun

    def _put(self, failure: Failure) -> None:
        restarts = {
            "count": self._state.restarts,
            "strategy": self._strategy.to_text(),
            "worked_s": self._worked_s(),
            "state": self._state.to_dict(),
            "failure": failure.to_dict(),
        }
        self.attempt = dataclasses.replace(self.attempt, restarts=restarts)
        try:
            self._run.put_attempt(self.attempt)
        except OSError as error:
            log.warning("run=%s a restart could not be recorded: %s", self._run.run_id, error)


def _may_restart(life: Lifecycle, query: str) -> bool:
    return life.phase in _RESTARTING and life.queries[query] in _AT_WORK


def edges_of(
    queries: Iterable[QueryDefinition], upstream: Mapping[str, Collection[str]]
) -> list[Edge]:
    """Return the pairs of queries of which one reads the other one's output.

    Spark's own sinks show rows before the batch has committed; the others do not.
    """
    native = {query.name for query in queries if query.native is not None}
    return [
        Edge(writer, reader, committed=writer not in native)
        for reader, writers in upstream.items()
        for writer in writers
    ]


def _remembered(run: RunDirectory, attempt: AttemptRecord) -> tuple[float, RestartState]:
    """Return how long drivers have worked before, and the last one's counts."""
    before = [each for each in run.attempts() if each.attempt < attempt.attempt]
    if not before or before[-1].ended is not None or not before[-1].restarts:
        return 0.0, RestartState()
    restarts = before[-1].restarts
    worked_s, state = float(restarts["worked_s"]), RestartState.from_dict(restarts["state"])
    # The restart that was pending is this attempt's own start.
    return worked_s, dataclasses.replace(state, restart_at_s=worked_s)
