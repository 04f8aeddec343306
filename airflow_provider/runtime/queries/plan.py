"""Reading Spark's query plans through Py4J; the only module that touches plan nodes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.sources import SOURCE_OPTION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_FILES: Final = "HadoopFsRelation"
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"
# What reads in a batch job without telling the source's name, or its rows.
_UNCOUNTED: Final = frozenset({"BatchScanExec", "InMemoryTableScanExec", "RowDataSourceScanExec"})


def source_names(df: DataFrame) -> list[str | None]:
    """Return the names of the sources in *df*'s plan, None for a stream without a name.

    A table without a name is not a source of the job's.

    The order is that of the plan's leaves, which is the order of the lines in Spark's offset log. A
    stream that is used twice as it is has one line; Spark's analyzer gives the second use in a
    self-join a relation, and so a line, of its own.
    """
    found: list[tuple[Any, str | None]] = []
    for leaf in _items(df._jdf.queryExecution().analyzed().collectLeaves()):
        options = _stream_options(leaf)
        if options is None:
            options = _table_options(leaf)
            if options is None or _option(options, SOURCE_OPTION) is None:
                continue
        if not any(leaf.equals(other) for other, _ in found):
            found.append((leaf, _option(options, SOURCE_OPTION)))
    return [name for _, name in found]


def operations(df: DataFrame) -> tuple[str, ...]:
    """Return Spark's names of what *df*'s plan does, each once, sorted.

    A transformWithState has its time mode after a colon: ``TransformWithState:EventTime``.
    """
    found: set[str] = set()
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        kind = str(node.getClass().getSimpleName())
        if kind.startswith("TransformWithState"):
            kind = f"{kind}:{node.timeMode()}"
        found.add(kind)
        nodes += _items(node.children())
    return tuple(sorted(found))


def check_supported(df: DataFrame, output_mode: str) -> str | None:
    """Return why Spark would refuse to run *df*, a stream or not; None when it would not.

    Of a stream Spark itself says so only after it has written a checkpoint.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import AnalysisException

    jvm = df.sparkSession._jvm
    sql = jvm.org.apache.spark.sql  # type: ignore[union-attr]
    checker = sql.catalyst.analysis.UnsupportedOperationChecker
    mode = getattr(sql.streaming.OutputMode, output_mode.capitalize())()
    try:
        plan = df._jdf.queryExecution().analyzed()
        if is_streaming(df):
            checker.checkForStreaming(plan, mode)
        else:
            checker.checkForBatch(plan)
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
        return sum(_rows_of(leaf) for leaf in _scans(plan))
    except Py4JError as error:
        log.warning("input rows of this batch are not known: %s", error)
        return None


class BatchExecution:
    """One execution of a static DataFrame whose scans can be asked afterwards.

    Args:
        df: what to execute.
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._execution = df._jdf.queryExecution()

    def rows(self) -> DataFrame:
        """Return the rows as a stream's batch has them, for one action.

        The frame is cut off from its plan and has a session of its own, so that whoever writes it
        can change settings; its scans are those of this execution, whatever is done with it.
        """
        from pyspark.sql import DataFrame, SparkSession

        session = self._df.sparkSession._jsparkSession.cloneSession()
        is_streaming = False
        frame = session.internalCreateDataFrame(
            self._execution.toRdd(), self._df._jdf.schema(), is_streaming
        )
        return DataFrame(frame, SparkSession(self._df.sparkSession.sparkContext, session))

    def count_input_rows(self) -> int | None:
        """Return the rows that named sources have given; None where the plan does not tell."""
        from py4j.protocol import Py4JError

        try:
            plan = self._execution.executedPlan()
            before = plan
            if plan.getClass().getSimpleName() == _ADAPTIVE:
                # Adaptive execution drops a stage that turns out to have no rows, scans and all.
                before = plan.initialPlan()
            if any(leaf.getClass().getSimpleName() in _UNCOUNTED for leaf in _leaves(before)):
                return None
            return max(sum(_rows_of(leaf) for leaf in _scans(each)) for each in (plan, before))
        except Py4JError as error:
            log.warning("input rows of this batch job are not known: %s", error)
            return None


def _items(java_sequence: Any) -> Iterator[Any]:
    for position in range(java_sequence.size()):
        yield java_sequence.apply(position)


def _stream_options(leaf: Any) -> Any | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "StreamingRelation":
        return leaf.dataSource().options()
    if kind == "StreamingRelationV2":
        return leaf.extraOptions()
    return None


def _table_options(leaf: Any) -> Any | None:
    kind = leaf.getClass().getSimpleName()
    if kind == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == _FILES:
        return leaf.relation().options()
    if kind == "DataSourceV2Relation":
        return leaf.options()
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


def _leaves(plan: Any) -> Iterator[Any]:
    """Yield the leaves of an executed plan; adaptive execution hides them in its stages."""
    for leaf in _items(plan.collectLeaves()):
        kind = leaf.getClass().getSimpleName()
        if kind == _ADAPTIVE:
            yield from _leaves(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from _leaves(leaf.plan())
        else:
            yield leaf


def _scans(plan: Any) -> Iterator[Any]:
    """Yield the leaves that read a source of the job's."""
    for leaf in _leaves(plan):
        kind = leaf.getClass().getSimpleName()
        if kind == "MicroBatchScanExec" or (
            kind == "FileSourceScanExec" and _option(leaf.relation().options(), SOURCE_OPTION)
        ):
            yield leaf


def _rows_of(leaf: Any) -> int:
    metrics = leaf.metrics()
    return int(metrics.apply("numOutputRows").value()) if metrics.contains("numOutputRows") else 0
