"""Fits the batches of one running query to a target time, as they end."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.rate_control import (
    BatchLimits,
    BatchSizeController,
    next_pace,
)
from airflow_provider.runtime.queries.read_limits import (
    FoundLimits,
    find_limits,
    measure_loads,
    set_limits,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.clock import Clock
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.rate_control import Limit

log = logging.getLogger(__name__)

LEFT: Final = "left alone"


class RateLimiter:
    """Measures each batch of a query at its end and sets what the next one may read.

    It never fails a batch: where Spark does not let it look or set, the query runs as it is.

    Thread safety: :meth:`batch_ran` runs in Spark's callback thread; what :meth:`describe` reads is
    replaced at once.

    Args:
        query: the query.
        target_s: how long a batch should take.
        clock: measures.
    """

    def __init__(self, query: QueryDefinition, target_s: float, clock: Clock) -> None:
        self._query = query.name
        self._target_s = target_s
        self._sources = query.sources
        self._clock = clock
        self._controller = BatchSizeController(target_s)
        self._found: FoundLimits | None = None
        self._limits: Mapping[str, Limit] = {}
        self._around_s = 0.0  # what Spark adds to the callback: offsets, planning, commit
        self._said = self._say("starts", "no batch has ended yet", None)
        if query.native is not None:
            self._said = self._say(LEFT, "Spark's own sinks do not tell when a batch ends", None)

    def starts(self) -> None:
        """Forget the streams of an earlier start of the query, and keep what was learnt."""
        self._found = None

    def batch_begins(self) -> float:
        """Return the moment, for :meth:`batch_ran`."""
        return self._clock.monotonic()

    def batch_ran(
        self, begun: float, execution: Any, jvm: Any, progress: Mapping[str, Any] | None
    ) -> None:
        """Decide on the limits of the next batch, and set them.

        Args:
            begun: when this one began.
            execution: the JVM's ``MicroBatchExecution``.
            jvm: Py4J's view of the JVM.
            progress: Spark's last progress, that of an earlier batch.
        """
        from py4j.protocol import Py4JError

        self._learn_around(progress)
        seconds = self._clock.monotonic() - begun + self._around_s
        try:
            if self._found is None:
                self._found = find_limits(execution, self._sources)
                self._limits = self._found.limits
            if self._found.paced:
                self._pace(seconds, self._found, execution, jvm)
            else:
                self._said = self._say(LEFT, "no source of it can be paced", seconds)
        except Py4JError as error:
            why = "this version of Spark does not allow it"
            self._found = FoundLimits((), {}, {source.name: why for source in self._sources})
            self._limits = {}
            self._said = self._say(LEFT, why, seconds)
            log.warning("query=%s has no adaptive batches: %s", self._query, error)

    def describe(self) -> dict[str, Any]:
        """Return what ``progress.json`` says of it."""
        return self._said

    def _pace(self, seconds: float, found: FoundLimits, execution: Any, jvm: Any) -> None:
        loads = measure_loads(execution, found.paced)
        pace = next_pace(self._controller, self._limits, loads, seconds)
        obeying = tuple(source for source in found.paced if not pace.limits[source.name].is_ignored)
        if len(obeying) < len(found.paced):
            self._leave(found, obeying, pace)
        if any(pace.limits[s.name].amount != self._limits[s.name].amount for s in obeying):
            set_limits(execution, jvm, obeying, pace.limits)
            log.info("query=%s %s: %s", self._query, pace.decision.value, pace.reason)
        self._limits = {source.name: pace.limits[source.name] for source in obeying}
        self._said = self._say(pace.decision.value, pace.reason, seconds)

    def _leave(self, found: FoundLimits, obeying: tuple[Any, ...], pace: BatchLimits) -> None:
        """Give up sources that read more than they may."""
        kept = {source.name for source in obeying}
        why = "it reads more than its limit, or does not report in its unit what it reads"
        deaf = {source.name: why for source in found.paced if source.name not in kept}
        log.warning("query=%s %s (%s)", self._query, deaf, pace.limits)
        self._found = dataclasses.replace(found, paced=obeying, left={**found.left, **deaf})

    def _learn_around(self, progress: Mapping[str, Any] | None) -> None:
        spent = (progress or {}).get("durationMs", {})
        if "addBatch" in spent and "triggerExecution" in spent:
            self._around_s = max(spent["triggerExecution"] - spent["addBatch"], 0) / 1000

    def _say(self, decision: str, reason: str, seconds: float | None) -> dict[str, Any]:
        return {
            "target_s": self._target_s,
            "last_batch_s": None if seconds is None else round(seconds, 3),
            "fixed_s": round(self._controller.fixed_s, 3),
            "decision": decision,
            "reason": reason,
            "sources": {
                name: {"limit": limit.amount, "unit": limit.unit, "ceiling": limit.ceiling}
                for name, limit in self._limits.items()
            },
            "left": dict(self._found.left) if self._found is not None else {},
        }


def rate_limiter_for(query: QueryDefinition, target_s: float, clock: Clock) -> RateLimiter | None:
    """Return what paces the query; None when its batches may take as long as they do (0)."""
    return RateLimiter(query, target_s, clock) if target_s else None
