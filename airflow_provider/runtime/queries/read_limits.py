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

from airflow_provider.runtime.queries.plan import items, rows_of, source_of, source_scans
from airflow_provider.runtime.queries.rate_control import Limit, Load

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return what the sources of a query may read.

    Args:
        execution: the JVM's ``MicroBatchExecution``, once it has planned a batch.
        sources: in the order of Spark's offsets.

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
    """Return the sources that Spark asks once, at the start, how far they reach.

    Under ``availableNow`` those are the ones that do not support it; all of them where that is not
    known.

    Args:
        execution: the JVM's ``MicroBatchExecution``; may have ended.
        jvm: the JVM.
        sources: in the order of Spark's offsets.
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
    """Let the next batch read *limits*; the batch in flight is as it was planned.

    Raises:
        Py4JError: Spark would not have it; nothing was changed.
    """
    kept = execution.uniqueSources()
    for source in paced:
        kept = kept.updated(source.stream, _spark_limit(jvm, source, limits[source.name]))
    getattr(execution, "uniqueSources_$eq")(kept)


def measure_loads(execution: Any, paced: tuple[PacedSource, ...]) -> dict[str, Load]:
    """Return what the batch that has just run has read, by source; others share one entry.

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
