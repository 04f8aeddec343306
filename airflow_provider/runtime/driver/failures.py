"""Failures of an attempt: its error log, and the restarts of queries."""

from __future__ import annotations

import dataclasses
import logging
import os
import random
import tempfile
import traceback
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.driver.lifecycle.events import (
    Failed,
    JobPhase,
    QueryFailed,
    QueryPhase,
)
from airflow_provider.runtime.errors import RunFailedError, SparkStreamError
from airflow_provider.runtime.errors.explanation import safe_text
from airflow_provider.runtime.failures.classify import classify, is_raised_in_worker
from airflow_provider.runtime.failures.messages import IN_A_BATCH, UNREAD_BATCH
from airflow_provider.runtime.failures.restart_strategy import (
    Edge,
    RestartState,
    default_restart,
    queries_to_restart,
)
from airflow_provider.runtime.failures.rules import DISK, JVM_GONE
from airflow_provider.runtime.queries.python_functions import locations_of_functions
from airflow_provider.runtime.sinks.spark_sink import ForEachBatchSink
from airflow_provider.runtime.storage.mounts import full_disk
from airflow_provider.runtime.storage.open import local_path_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.driver.lifecycle import Lifecycle
    from airflow_provider.runtime.driver.load_job import LoadedJob
    from airflow_provider.runtime.errors.explanation import Failure
    from airflow_provider.runtime.failures.classify import FailureOverrides
    from airflow_provider.runtime.jobdir.layout import RunDirectory
    from airflow_provider.runtime.jobdir.run_records import AttemptRecord
    from airflow_provider.runtime.jobdir.run_spec import RunSpec
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.running import Query, Stream


log = logging.getLogger(__name__)

# While the job halts, the caller of the stop gets the failure; later nothing runs that could fail.
_RESTARTING: Final = frozenset({JobPhase.READING, JobPhase.DRAINING})
_AT_WORK: Final = frozenset({QueryPhase.CATCHING_UP, QueryPhase.READING, QueryPhase.DRAINING})


class Restarter:
    """Decides about each failure of a query, and keeps its counts in the attempt's record.

    An attempt after a killed one continues with its counts. After one that has ended they start
    from zero, because a caller has decided to start the run again. ``dice`` gives the jitter.
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

    def is_due(self, queries: Iterable[Stream]) -> bool:
        """Whether *queries*, which do not run, may start again; False if there are none."""
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
    """Return the pairs of queries of which one reads the other one's output."""
    native = {query.name for query in queries if query.native is not None}
    return [
        Edge(writer, reader, committed=writer not in native)
        for reader, writers in upstream.items()
        for writer in writers
    ]


def _remembered(run: RunDirectory, attempt: AttemptRecord) -> tuple[float, RestartState]:
    before = [each for each in run.attempts() if each.attempt < attempt.attempt]
    if not before or before[-1].ended is not None or not before[-1].restarts:
        return 0.0, RestartState()
    restarts = before[-1].restarts
    worked_s, state = float(restarts["worked_s"]), RestartState.from_dict(restarts["state"])
    # The restart that was pending is this attempt's own start.
    return worked_s, dataclasses.replace(state, restart_at_s=worked_s)


class ErrorLog:
    """Turns each error of a driver into a failure, and keeps the newest one whole."""

    def __init__(self, run: Storage, driver_id: str, overrides: FailureOverrides) -> None:
        self._run = run
        self._path = f"logs/{driver_id}.error.log"
        self._overrides = overrides

    def failure_of(
        self,
        error: BaseException,
        query: Query | None = None,
        *,
        at_work: Iterable[Query] = (),
    ) -> Failure:
        """Return the failure for *error*, which may have ended *query* and one of its batches.

        Crash safety: the file is written whole, before the failure is recorded.
        """
        if isinstance(error, RunFailedError):
            return error.failure
        failure = classify(error, marks=self._overrides)
        if query is None and failure.rule == JVM_GONE.what:
            query = next((each for each in at_work if _open_batch(each) is not None), None)
        if query is not None:
            failure = dataclasses.replace(failure, query=query.name, batch=_open_batch(query))
            failure = dataclasses.replace(
                failure,
                source=_source_of(failure, query),
                location=failure.location or _location_in(query, error, failure),
                remedy=IN_A_BATCH.get(failure.condition, failure.remedy),
            )
        failure = self._with_disk(failure)
        return dataclasses.replace(failure, details=self.keep(error) or "")

    def _with_disk(self, failure: Failure) -> Failure:
        if failure.rule != DISK or "/" in failure.reason:
            return failure
        scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        locations = [local_path_of(self._run.url), *scratch, tempfile.gettempdir()]
        full = full_disk(filter(None, locations))
        if full is None:
            return failure
        return dataclasses.replace(failure, reason=f"{full}: {failure.reason}")

    def keep(self, error: BaseException) -> str | None:
        text = safe_text("".join(traceback.format_exception(error)))
        try:
            self._run.put(self._path, text.encode(errors="backslashreplace"))
        except (OSError, SparkStreamError):  # the storage may be what has failed
            log.info("%s/%s cannot be put", self._run.url, self._path, exc_info=error)
            return None
        return f"{self._run.url}/{self._path}"


def _open_batch(query: Query) -> int | None:
    try:
        return query.logs.position().open_batch
    except Exception:  # noqa: BLE001 - the storage may be what has failed
        return None


def _source_of(failure: Failure, query: Query) -> str | None:
    sources = [each for each in query.definition.sources if each.path and failure.input_file]
    found = (s.name for s in sources if failure.input_file.startswith(str(s.path)))
    return failure.source or next(found, None)


def _location_in(query: Query, error: BaseException, failure: Failure) -> str:
    """Return the functions of a query that may have failed, if Spark names no line of the job."""
    if failure.condition == UNREAD_BATCH:
        sinks = [each for each in query.definition.sinks if isinstance(each, ForEachBatchSink)]
        return ", ".join(filter(None, (sink.line for sink in sinks)))
    try:
        return locations_of_functions(query.definition.df) if is_raised_in_worker(error) else ""
    except Exception:  # noqa: BLE001 - the JVM may be what has failed
        return ""
