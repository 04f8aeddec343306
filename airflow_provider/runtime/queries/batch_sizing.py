"""Batch sizing: how large the next batch may be so that it takes about a target time."""

from __future__ import annotations

import dataclasses
import enum
import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.jobdir.query_reports import BatchSizing, SourceLimit
from airflow_provider.runtime.queries.plan import items, rows_of, source_of, source_scans
from airflow_provider.runtime.sources.planned import keeps_its_end

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider.runtime.base.clock import Clock
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sources.declared import SourceDefinition


THRESHOLD: Final = 0.25  # Flink's: a limit this near to the right one is left as it is
SAMPLES: Final = 20  # Flink's, too; older batches tell of another load
NEAR: Final = "within 25 % of the target"
GROWTH: Final = 8.0  # per batch: what few rows took tells little of what many will take
BINDING: Final = 0.5  # files are not divided, so a batch that fills its limit may lie below it
OVERSHOOT: Final = 1.5  # a batch so far beyond its limit was not held by it
IGNORED: Final = 2  # batches in a row beyond their limit: the source does not keep to it
_RISK: Final = 2.0  # times the target that a larger batch may take at worst, were no time fixed
_SHORTEST_S: Final = 1e-3  # a batch, however coarse the clock; rates are divided by it
_SURPRISE: Final = 1.5  # a batch that takes so many times what was expected: the load has changed
_PROBE: Final = 2.0  # times the size, where nothing smaller has had an effect
_SPREAD: Final = 2.0  # sizes nearer to each other cannot tell what of their time is fixed
_FADE_FIXED: Final = 0.8  # weight of a batch's size in the fixed time, per batch that follows
_FADE_RATE: Final = 0.5  # the same in the time per row, which changes sooner


class BatchSizingDecision(str, enum.Enum):
    """The change of the limits after a batch."""

    UNCHANGED = "unchanged"
    GROW = "grows"
    SHRINK = "shrinks"


@dataclasses.dataclass(frozen=True)
class Step:
    """The size of the next batch in relation to the last one."""

    decision: BatchSizingDecision
    factor: float
    reason: str


class BatchSizeController:
    """Learns what a query's batches cost and sizes the next one."""

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=SAMPLES)
        self._fixed_s = 0.0
        self._per_unit_s = 0.0
        self._is_warm = False
        self._outgrown = 0.0  # the size that a batch was last said to be too small at

    @property
    def fixed_s(self) -> float:
        return self._fixed_s

    def predict(self, size: float) -> float:
        return self._fixed_s + self._per_unit_s * size

    def observe(self, size: float, seconds: float, *, limited: bool) -> Step:
        """Learn from a batch of *size* > 0; if *limited*, its limit kept it from reading more."""
        seconds = max(seconds, _SHORTEST_S)
        too_long = seconds > self._target_s * (1 + THRESHOLD)
        if not limited and not too_long:
            return Step(BatchSizingDecision.UNCHANGED, 1.0, "no more input")
        self._learn(size, seconds)
        factor = (self._aim_s() - self._fixed_s) / self._per_unit_s / size
        if abs(1 / factor - 1) <= THRESHOLD:
            return Step(BatchSizingDecision.UNCHANGED, 1.0, NEAR)
        if factor < 1:
            return Step(BatchSizingDecision.SHRINK, factor, self._why("longer"))
        if not limited:
            return Step(
                BatchSizingDecision.UNCHANGED, 1.0, "one batch was slow, the last ones were not"
            )
        safe = max(_RISK * self._target_s / self.predict(size), 1.0)
        wanted = max(factor, _PROBE) if self._is_stuck(size) else factor
        self._outgrown = size
        return Step(BatchSizingDecision.GROW, min(wanted, GROWTH, safe), self._why("shorter"))

    def _is_stuck(self, size: float) -> bool:
        return size <= self._outgrown and not self._is_spread()

    def _aim_s(self) -> float:
        return max(self._target_s, self._fixed_s + self._target_s / 2)

    def _why(self, how: str) -> str:
        if self._aim_s() > self._target_s:
            return f"out of reach: {self._fixed_s:.1f} s of a batch do not depend on its size"
        return f"batches took {how} than the target"

    def _learn(self, size: float, seconds: float) -> None:
        if len(self._samples) == 1 and not self._is_warm:
            self._is_warm = True
            self._samples.clear()  # the first batch also compiles and starts what the others use
        if len(self._samples) > 1 and self._is_surprised(size, seconds):
            self._samples.clear()
        self._samples.append((size, seconds))
        self._fixed_s = self._fit_fixed()
        weights = _fading(_FADE_RATE, len(self._samples))
        self._per_unit_s = sum(
            weight * (taken - self._fixed_s) / read
            for weight, (read, taken) in zip(weights, self._samples, strict=True)
        )

    def _is_surprised(self, size: float, seconds: float) -> bool:
        expected = self.predict(size)
        return not expected / _SURPRISE <= seconds <= expected * _SURPRISE

    def _is_spread(self) -> bool:
        sizes = [size for size, _ in self._samples]
        return max(sizes) >= _SPREAD * min(sizes)

    def _fit_fixed(self) -> float:
        fastest = min(seconds for _, seconds in self._samples)
        known = min(self._fixed_s, fastest / 2)
        if not self._is_spread():
            return known
        weights = _fading(_FADE_FIXED, len(self._samples))
        points = list(zip(weights, self._samples, strict=True))
        mean_size = sum(weight * size for weight, (size, _) in points)
        mean_s = sum(weight * seconds for weight, (_, seconds) in points)
        spread = sum(weight * (size - mean_size) ** 2 for weight, (size, _) in points)
        slope = sum(w * (size - mean_size) * (s - mean_s) for w, (size, s) in points) / spread
        if slope <= 0:
            return known  # the load is changing: a smaller batch was not the faster one
        return min(max(mean_s - slope * mean_size, 0.0), fastest * 0.9)


def _fading(by: float, count: int) -> list[float]:
    weights = [by ** (count - 1 - position) for position in range(count)]
    return [weight / sum(weights) for weight in weights]


# --- the limits of a query's sources ------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Limit:
    """The most that one source may read in a batch: an amount of ``rows``, ``bytes`` or ``files``.

    *ceiling* is the job's own limit, or None; *ignored* counts batches in a row that exceeded it.
    """

    amount: int
    unit: str
    ceiling: int | None = None
    ignored: int = 0

    @property
    def is_ignored(self) -> bool:
        return self.ignored >= IGNORED


@dataclasses.dataclass(frozen=True)
class Load:
    """The input of a batch from one source; None where unknown."""

    rows: int = 0
    bytes: int | None = None
    files: int | None = None

    def measure(self, unit: str) -> int | None:
        return {"rows": self.rows, "bytes": self.bytes, "files": self.files}[unit]

    def __add__(self, other: Load) -> Load:
        return Load(
            self.rows + other.rows,
            _sum(self.bytes, other.bytes),
            _sum(self.files, other.files),
        )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """The limits for the next batch, and why."""

    decision: BatchSizingDecision
    reason: str
    limits: Mapping[str, Limit]


def next_pace(
    controller: BatchSizeController,
    limits: Mapping[str, Limit],
    loads: Mapping[str, Load],
    seconds: float,
) -> BatchLimits:
    """Return the limits for the batch after one that has read *loads* in *seconds*."""
    held = {name: _mark(limit, loads.get(name, Load())) for name, limit in limits.items()}
    rows = sum(load.rows for load in loads.values())
    if rows == 0:
        return BatchLimits(BatchSizingDecision.UNCHANGED, "the batch read nothing", held)
    full = {name for name, limit in held.items() if _is_full(limit, loads.get(name, Load()))}
    step = controller.observe(rows, seconds, limited=bool(full))
    if step.decision is BatchSizingDecision.UNCHANGED:
        return BatchLimits(step.decision, step.reason, held)
    if step.decision is BatchSizingDecision.SHRINK and _is_indivisible(held, loads):
        reason = f"a batch is at least one file, and one takes {seconds:.1f} s"
        return BatchLimits(BatchSizingDecision.UNCHANGED, reason, held)
    changed = {
        name: _scale(limit, loads.get(name, Load()), step.factor) for name, limit in held.items()
    }
    least = THRESHOLD if 1 < step.factor < _PROBE else 0.0
    if all(abs(changed[name].amount / now.amount - 1) <= least for name, now in held.items()):
        at_ceiling = any(limit.amount == limit.ceiling for limit in changed.values())
        reason = "at the job's own limit" if at_ceiling else "as near as whole rows and files allow"
        return BatchLimits(BatchSizingDecision.UNCHANGED, reason, held)
    return BatchLimits(step.decision, step.reason, changed)


def _mark(limit: Limit, load: Load) -> Limit:
    size = load.measure(limit.unit)
    if size is None:
        return limit if not load.rows else dataclasses.replace(limit, ignored=IGNORED)
    beyond = size > OVERSHOOT * limit.amount and load.files != 1
    return dataclasses.replace(limit, ignored=limit.ignored + 1 if beyond else 0)


def _is_full(limit: Limit, load: Load) -> bool:
    return (load.measure(limit.unit) or 0) >= BINDING * limit.amount


def _is_indivisible(limits: Mapping[str, Limit], loads: Mapping[str, Load]) -> bool:
    read = [load for name, load in loads.items() if name in limits and load.rows]
    return bool(read) and all(load.files == 1 for load in read)


def _scale(limit: Limit, load: Load, factor: float) -> Limit:
    size = load.measure(limit.unit)
    if not size:
        return limit
    amount = max(round(size * factor), 1)
    if factor > 1:
        amount = max(amount, limit.amount)  # a source that had no more is not held back for it
    if limit.ceiling is not None:
        amount = min(amount, limit.ceiling)
    return dataclasses.replace(limit, amount=amount)


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
_MOST_FILES: Final = 2**31 - 1  # the only one of Spark's limits that is an int


@dataclasses.dataclass(frozen=True)
class SizedSource:
    """A source of a running query; *default* is its own limit, *stream* the JVM's object."""

    name: str
    stream: Any
    default: Any


@dataclasses.dataclass(frozen=True)
class FoundLimits:
    """The limits of one start of a query; *left* says why a source has none that can be set."""

    sized: tuple[SizedSource, ...]
    limits: Mapping[str, Limit]
    left: Mapping[str, str]


def find_limits(execution: Any, sources: tuple[SourceDefinition, ...]) -> FoundLimits:
    """Return the limits of a query's sources, once Spark has planned a batch."""
    # Under ``availableNow`` Spark wraps a source that cannot stop at the offset that was there at
    # the start: it reads all there is in one batch, whatever its limit, and is not found here.
    kept = execution.uniqueSources()
    streams = list(items(execution.sources().distinct()))
    if len(streams) != len(sources):
        return FoundLimits((), {}, {source.name: "looks like others" for source in sources})
    sized, limits, left = [], {}, {}
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
            sized.append(SizedSource(source.name, stream, default.get()))
            limits[source.name] = dataclasses.replace(limit, ceiling=ceiling)
    return FoundLimits(tuple(sized), limits, left)


def single_admission(execution: Any, jvm: Any, sources: tuple[SourceDefinition, ...]) -> set[str]:
    """Return the sources whose end Spark asks for once, at the start."""
    from py4j.protocol import Py4JError

    try:
        pairs = zip(items(execution.sources()), sources, strict=True)
        return {source.name for stream, source in pairs if not keeps_its_end(jvm, stream)}
    except (Py4JError, ValueError) as error:
        log.debug("it is not known which sources support availableNow: %s", error)
        return {source.name for source in sources}


def set_limits(
    execution: Any, jvm: Any, sized: tuple[SizedSource, ...], limits: Mapping[str, Limit]
) -> None:
    """Let the next batch read *limits*; the batch in flight keeps its plan."""
    kept = execution.uniqueSources()
    for source in sized:
        kept = kept.updated(source.stream, _spark_limit(jvm, source, limits[source.name]))
    getattr(execution, "uniqueSources_$eq")(kept)


def measure_loads(execution: Any, sized: tuple[SizedSource, ...]) -> dict[str, Load]:
    """Return what the finished batch has read, by source; the other sources share one entry."""
    loads: dict[str, Load] = {}
    streams = [(source.stream, source.name) for source in sized]
    names = {source.name for source in sized}
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


def _spark_limit(jvm: Any, source: SizedSource, limit: Limit) -> Any:
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
        self._found = None

    def batch_ran(
        self, begun: float, execution: Any, jvm: Any, progress: Mapping[str, Any] | None
    ) -> None:
        from py4j.protocol import Py4JError

        self._learn_around(progress)
        seconds = self._clock.monotonic() - begun + self._around_s
        try:
            if self._found is None:
                self._found = find_limits(execution, self._sources)
                self._limits = self._found.limits
            if self._found.sized:
                self._pace(seconds, self._found, execution, jvm)
            else:
                self._said = self._say(LEFT, "none of its sources limits its batches", seconds)
        except Py4JError as error:
            why = "this version of Spark does not allow it"
            self._found = FoundLimits((), {}, {source.name: why for source in self._sources})
            self._limits = {}
            self._said = self._say(LEFT, why, seconds)
            log.warning("query=%s has no batch sizing: %s", self._query, error)

    def describe(self) -> BatchSizing:
        return self._said

    def _pace(self, seconds: float, found: FoundLimits, execution: Any, jvm: Any) -> None:
        loads = measure_loads(execution, found.sized)
        pace = next_pace(self._controller, self._limits, loads, seconds)
        obeying = tuple(source for source in found.sized if not pace.limits[source.name].is_ignored)
        if len(obeying) < len(found.sized):
            self._leave(found, obeying, pace)
        if any(pace.limits[s.name].amount != self._limits[s.name].amount for s in obeying):
            set_limits(execution, jvm, obeying, pace.limits)
            log.info("query=%s %s: %s", self._query, pace.decision.value, pace.reason)
        self._limits = {source.name: pace.limits[source.name] for source in obeying}
        self._said = self._say(pace.decision.value, pace.reason, seconds)

    def _leave(self, found: FoundLimits, obeying: tuple[Any, ...], pace: BatchLimits) -> None:
        kept = {source.name for source in obeying}
        why = "it reads more than its limit, or does not report in its unit what it reads"
        deaf = {source.name: why for source in found.sized if source.name not in kept}
        log.warning("query=%s %s (%s)", self._query, deaf, pace.limits)
        self._found = dataclasses.replace(found, sized=obeying, left={**found.left, **deaf})

    def _learn_around(self, progress: Mapping[str, Any] | None) -> None:
        spent = (progress or {}).get("durationMs", {})
        if "addBatch" in spent and "triggerExecution" in spent:
            self._around_s = max(spent["triggerExecution"] - spent["addBatch"], 0) / 1000

    def _say(self, decision: str, reason: str, seconds: float | None) -> BatchSizing:
        return BatchSizing(
            target_s=self._target_s,
            last_batch_s=None if seconds is None else round(seconds, 3),
            fixed_s=round(self._controller.fixed_s, 3),
            decision=decision,
            reason=reason,
            sources={
                name: SourceLimit(limit.amount, limit.unit, limit.ceiling)
                for name, limit in self._limits.items()
            },
            left=dict(self._found.left) if self._found is not None else {},
        )
