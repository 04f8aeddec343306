"""Reading Spark's query plans through Py4J; the only module that touches plan nodes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from airflow_provider.runtime.sources import SOURCE_OPTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)


def source_names(df: DataFrame) -> list[str | None]:
    """Return the names of the streams in *df*'s plan, None for one without a name.

    The order is that of the plan's leaves, which is the order of the lines in Spark's offset log. A
    stream that is used twice as it is has one line; Spark's analyzer gives the second use in a
    self-join a relation, and so a line, of its own.
    """
    found: list[tuple[Any, str | None]] = []
    for leaf in items(df._jdf.queryExecution().analyzed().collectLeaves()):
        options = _stream_options(leaf)
        if options is None or any(leaf.equals(other) for other, _ in found):
            continue
        found.append((leaf, _option(options, SOURCE_OPTION)))
    return [name for _, name in found]


def check_supported(df: DataFrame, output_mode: str) -> str | None:
    """Return why Spark would refuse to start *df* as a stream; None when it would not.

    Spark itself says so only after it has written a checkpoint.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException

    jvm = df.sparkSession._jvm
    sql = jvm.org.apache.spark.sql  # type: ignore[union-attr]
    checker = sql.catalyst.analysis.UnsupportedOperationChecker
    mode = getattr(sql.streaming.OutputMode, output_mode.capitalize())()
    try:
        checker.checkForStreaming(df._jdf.queryExecution().analyzed(), mode)
    except AnalysisException as error:
        return next(line for line in str(error).splitlines() if line.strip())
    except Py4JError as error:  # another version of Spark; it will say so itself
        log.debug("Spark's check for unsupported operations is not there: %s", error)
    return None


def is_streaming(df: Any) -> bool:
    """Tell whether *df* is a streaming DataFrame."""
    return bool(getattr(df, "isStreaming", False))


def count_input_rows(stream_execution: Any) -> int | None:
    """Count the rows that the batch just run has read from named sources.

    Spark reports them only after the batch has committed, and asynchronously; the scans' own
    metrics are final as soon as the batch's job has ended, so that the count can be stored together
    with the epoch.

    Args:
        stream_execution: the JVM's ``StreamExecution``.

    Returns:
        The rows; None where the plan cannot be read (another version of Spark).
    """
    from py4j.protocol import Py4JError

    try:
        plan = stream_execution.lastExecution().executedPlan()
        return sum(rows_of(leaf) for leaf in stream_scans(plan))
    except Py4JError as error:
        log.warning("input rows of this batch are not known: %s", error)
        return None


def items(java_sequence: Any) -> Iterator[Any]:
    """Yield what a Scala sequence holds."""
    for position in range(java_sequence.size()):
        yield java_sequence.apply(position)


def _stream_options(leaf: Any) -> Any | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelation":
        return leaf.dataSource().options()
    if kind == "StreamingRelationV2":
        return leaf.extraOptions()
    return None


def _option(options: Any, key: str) -> str | None:
    """Look *key* up in a Scala or Java map; options keep or lose their case by their source."""
    for candidate in (key, key.lower()):
        value = options.get(candidate)
        if hasattr(value, "isDefined"):
            value = value.get() if value.isDefined() else None
        if value is not None:
            return str(value)
    return None


def stream_scans(plan: Any) -> Iterator[Any]:
    """Yield the leaves of an executed plan that read a stream.

    Adaptive execution hides them in its stages.
    """
    for leaf in items(plan.collectLeaves()):
        kind = leaf.getClass().getSimpleName()
        if kind == "AdaptiveSparkPlanExec":
            yield from stream_scans(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from stream_scans(leaf.plan())
        elif kind == "MicroBatchScanExec" or (
            kind == "FileSourceScanExec" and _option(leaf.relation().options(), SOURCE_OPTION)
        ):
            yield leaf


def rows_of(leaf: Any) -> int:
    """Return how many rows a scan has read."""
    metrics = leaf.metrics()
    return int(metrics.apply("numOutputRows").value()) if metrics.contains("numOutputRows") else 0
