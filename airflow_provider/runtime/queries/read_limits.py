"""Read limits: what the sources of a running query may read in a batch, set through Py4J.

Spark asks a source once for its limit and hands it back at every batch. Where it keeps the limits
(``StreamExecution.uniqueSources``) is not part of Spark's interface, but can be set between any two
batches: it is read once, when a batch is planned.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.queries.batch_sizing import (
    BatchLimits,
    BatchSizeController,
    Limit,
    Load,
    next_pace,
)
from airflow_provider.runtime.queries.plan import items, rows_of, source_of, source_scans

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.source import SourceDefinition

log = logging.getLogger(__name__)

_LIMITS: Final = {  # Spark's limit: our unit, its reader and the name of its factory
    "ReadMaxRows": ("rows", "maxRows"),
    "ReadMaxBytes": ("bytes", "maxBytes"),
    "ReadMaxFiles": ("files", "maxFiles"),
}
_FACTORIES: Final = dict(_LIMITS.values())
# A source written in Python takes no other limit than its own kind, a piece of JSON.
_PYTHON_LIMIT: Final = "PythonStreamingSourceReadLimit"
_PYTHON_TYPE: Final = "ReadMaxRows"
_PYTHON_FIELD: Final = "max_rows"
_ABLE: Final = "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow"
_MOST_FILES: Final = 2**31 - 1  # the only one of Spark's limits that is an int


@dataclasses.dataclass(frozen=True)
class PacedSource:
    """A source of a running query whose limit can be set.

    Attributes:
        stream: the JVM's object that reads it.
        default: its own limit, as Spark got it from the source.
    """

    name: str
    stream: Any
    default: Any


@dataclasses.dataclass(frozen=True)
class FoundLimits:
    """The limits of one start of a query.

    Attributes:
        limits: by source, as they are.
        left: by source, why its limit cannot be set.
    """

    paced: tuple[PacedSource, ...]
    limits: Mapping[str, Limit]
    left: Mapping[str, str]


def find_limits(execution: Any, sources: tuple[SourceDefinition, ...]) -> FoundLimits:
    """Return the limits of a query's sources, once Spark has planned a batch.

    Raises:
        Py4JError: another version of Spark, which keeps its limits elsewhere.
    """
    # Under ``availableNow`` Spark wraps a source that cannot stop at the offset that was there at
    # the start: it reads all there is in one batch, whatever its limit, and is not found here.
    kept = execution.uniqueSources()
    streams = list(items(execution.sources().distinct()))
    if len(streams) != len(sources):
        return FoundLimits((), {}, {source.name: "looks like others" for source in sources})
    paced, limits, left = [], {}, {}
    for stream, source in zip(streams, sources, strict=True):
        default = kept.get(stream)
        limit = _limit_of(default.get()) if default.isDefined() else None
        if not source.adaptive_batches:
            left[source.name] = "switched off for this source"
        elif not source.is_known:
            left[source.name] = "the job opened it without ctx.read"
        elif limit is None:
            left[source.name] = "it has no limit that can be set"
        else:
            ceiling = None if source.has_first_limit else limit.amount
            paced.append(PacedSource(source.name, stream, default.get()))
            limits[source.name] = dataclasses.replace(limit, ceiling=ceiling)
    return FoundLimits(tuple(paced), limits, left)


def single_admission(execution: Any, jvm: Any, sources: tuple[SourceDefinition, ...]) -> set[str]:
    """Return the sources whose end Spark asks for once, at the start.

    Under ``availableNow`` those are the ones that do not support it; all of them where that is
    unknown. The execution may have ended.
    """
    from py4j.protocol import Py4JError

    try:
        able = jvm.java.lang.Class.forName(_ABLE)
        pairs = zip(items(execution.sources()), sources, strict=True)
        return {source.name for stream, source in pairs if not able.isInstance(stream)}
    except (Py4JError, ValueError) as error:
        log.debug("it is not known which sources support availableNow: %s", error)
        return {source.name for source in sources}


def set_limits(
    execution: Any, jvm: Any, paced: tuple[PacedSource, ...], limits: Mapping[str, Limit]
) -> None:
    """Let the next batch read *limits*; the batch in flight keeps its plan.

    Raises:
        Py4JError: Spark refused; nothing was changed.
    """
    kept = execution.uniqueSources()
    for source in paced:
        kept = kept.updated(source.stream, _spark_limit(jvm, source, limits[source.name]))
    getattr(execution, "uniqueSources_$eq")(kept)


def measure_loads(execution: Any, paced: tuple[PacedSource, ...]) -> dict[str, Load]:
    """Return what the finished batch has read, by source; the other sources share one entry.

    Raises:
        Py4JError: the plan cannot be read.
    """
    loads: dict[str, Load] = {}
    streams = [(source.stream, source.name) for source in paced]
    names = {source.name for source in paced}
    for scan in source_scans(execution.lastExecution().executedPlan()):
        found = source_of(scan, streams)
        name = found if found in names else ""
        load = Load(rows_of(scan), _metric(scan, "filesSize"), _metric(scan, "numFiles"))
        loads[name] = loads[name] + load if name in loads else load
    return loads


def _limit_of(limit: Any) -> Limit | None:
    kind = limit.getClass().getSimpleName()
    if kind == _PYTHON_LIMIT:
        document = json.loads(limit.json())  # noqa: TID251 - Spark's own
        is_known = document.get("_type") == _PYTHON_TYPE and _PYTHON_FIELD in document
        return Limit(int(document[_PYTHON_FIELD]), "rows") if is_known else None
    known = _LIMITS.get(kind)
    if known is None:
        return None
    unit, reader = known
    return Limit(int(getattr(limit, reader)()), unit)


def _spark_limit(jvm: Any, source: PacedSource, limit: Limit) -> Any:
    if source.default.getClass().getSimpleName() == _PYTHON_LIMIT:
        document = {"_type": _PYTHON_TYPE, _PYTHON_FIELD: limit.amount}
        return source.default.copy(json.dumps(document))
    factory = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
    amount = min(limit.amount, _MOST_FILES) if limit.unit == "files" else limit.amount
    return getattr(factory, _FACTORIES[limit.unit])(amount)


def _metric(scan: Any, name: str) -> int | None:
    metrics = scan.metrics()
    return int(metrics.apply(name).value()) if metrics.contains(name) else None


LEFT: Final = "left alone"


class BatchSizer:
    """Measures each batch of a query at its end and sets the limits of the next one.

    It never fails a batch: where it cannot measure or set, the query runs with its own limits.

    Thread safety: :meth:`batch_ran` runs in Spark's callback thread; :meth:`describe` reads a value
    that is replaced in one step.
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
        """Drop the streams of an earlier start of the query; what was learnt stays."""
        self._found = None

    def batch_begins(self) -> float:
        """Return the current time, for :meth:`batch_ran`."""
        return self._clock.monotonic()

    def batch_ran(
        self, begun: float, execution: Any, jvm: Any, progress: Mapping[str, Any] | None
    ) -> None:
        """Choose the limits of the next batch, and set them.

        Args:
            begun: when this batch began, on the monotonic clock.
            execution: the JVM's ``MicroBatchExecution``.
            jvm: Py4J's view of the JVM.
            progress: Spark's last progress, of an earlier batch.
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
        """Return its part of ``progress.json``."""
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
        """Stop sizing sources that read more than their limit."""
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


def batch_sizer_for(query: QueryDefinition, target_s: float, clock: Clock) -> BatchSizer | None:
    """Return the query's batch sizer; None without a target time (0)."""
    return BatchSizer(query, target_s, clock) if target_s else None
