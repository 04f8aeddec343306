"""Query plans of Spark, read through Py4J: what they read, do and count."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.operator_kinds import Setting, kind_of_node
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.queries.source import SOURCE_OPTION
from airflow_provider.runtime.spark.defaults import CHOSEN_PROVIDER, PROVIDER
from airflow_provider.runtime.spark.versions import file_entry, reads_stream, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_FILES: Final = "HadoopFsRelation"
ADAPTIVE: Final = "AdaptiveSparkPlanExec"
_FILE_SCAN: Final = "FileSourceScanExec"
_STREAM_SCAN: Final = "MicroBatchScanExec"
_BATCH_SCAN: Final = "BatchScanExec"
_PYTHON_TASKS: Final = frozenset({"PythonInputPartition", "PythonStreamingInputPartition"})
_WATERMARK: Final = "EventTimeWatermark"


def source_names(df: DataFrame) -> list[str | None]:
    """Return the names of the sources in *df*'s plan, None for a stream without a name.

    A table without a name is not a source of the job's. There is one name for each line in Spark's
    offset log, in the same order: Spark writes a line for each place where the plan reads a stream,
    also when it reads the same one in several.
    """
    return [name for _, name in named_leaves(df)]


def named_leaves(df: DataFrame) -> Iterator[tuple[Any, str | None]]:
    """Yield the leaves of the analyzed plan that read a source, with its name."""
    for leaf in items(df._jdf.queryExecution().analyzed().collectLeaves()):
        options = _stream_options(leaf)
        name = option_of(options or _table_options(leaf), SOURCE_OPTION)
        if options is not None or name is not None:
            yield leaf, name


def operator_id(node: Any) -> int:
    """Return the number of a stateful operator, by its node in a physical plan."""
    return int(node.getStateInfo().operatorId())


def asked_state_provider(df: DataFrame) -> str | None:
    """Return the state store provider that the user has configured; None without one.

    The driver's own choice does not count: a savepoint with another provider keeps its own.
    """
    conf = df.sparkSession._jsparkSession.sessionState().conf()
    asked = str(conf.getConfString(PROVIDER)) if conf.contains(PROVIDER) else None
    return None if asked == str(conf.getConfString(CHOSEN_PROVIDER, "")) else asked


def sources_under_a_watermark(df: DataFrame) -> set[str]:
    """Return the sources whose rows pass a watermark in *df*'s plan, wherever it was set."""
    return set(_under_a_watermark(df._jdf.queryExecution().analyzed(), is_under=False))


def watermark_delays(df: DataFrame) -> list[str]:
    """Return the delays of the watermarks in *df*'s plan, in the order of its nodes."""
    found, nodes = [], [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        if node.getClass().getSimpleName() == _WATERMARK:
            found.append(str(node.delay().toString()))
        nodes += reversed(list(items(node.children())))
    return found


def _under_a_watermark(node: Any, *, is_under: bool) -> Iterator[str]:
    options = _stream_options(node)
    if options is not None and is_under and (name := option_of(options, SOURCE_OPTION)):
        yield name
    is_watermark = node.getClass().getSimpleName() == _WATERMARK
    for child in items(node.children()):
        yield from _under_a_watermark(child, is_under=is_under or is_watermark)


def operations(df: DataFrame) -> tuple[str, ...]:
    """Return Spark's names of the operations in *df*'s plan, each once, sorted.

    A transformWithState has its time mode after a colon: ``TransformWithState:EventTime``. The
    timeout of groups with state is a name of its own: ``ProcessingTimeTimeout``.
    """
    found: set[str] = set()
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        kind = str(node.getClass().getSimpleName())
        stateful = kind_of_node(kind)
        setting = stateful.setting if stateful else None
        if setting is Setting.TIME_MODE:
            kind = f"{kind}:{node.timeMode()}"
        elif setting is Setting.TIMEOUT:
            found.add(str(node.timeout()))
        found.add(kind)
        nodes += items(node.children())
    return tuple(sorted(found))


def check_supported(df: DataFrame, output_mode: str) -> Exception | None:
    """Return Spark's reason to refuse *df*, a stream or not; None when there is none.

    For a stream, Spark itself refuses only after it has written a checkpoint.
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
        return error
    except Py4JError as error:  # another version of Spark; it will say so itself
        log.debug("Spark's check for unsupported operations is not there: %s", error)
    return None


def is_streaming(df: Any) -> bool:
    """Whether *df* is a streaming DataFrame."""
    return bool(getattr(df, "isStreaming", False))


def executed(plan: Any) -> Iterator[Any]:
    """Yield the nodes of an executed plan."""
    yield plan
    kind = plan.getClass().getSimpleName()
    if kind == ADAPTIVE:
        yield from executed(plan.executedPlan())
    elif kind.endswith("QueryStageExec"):
        yield from executed(plan.plan())
    else:
        for child in items(plan.children()):
            yield from executed(child)


def missing_files(stream_execution: Any) -> list[str]:
    """Return the files that the current batch was planned with and Spark has not found.

    Spark's file source silently ignores files that are missing when a batch runs (SPARK-17599 made
    the listing forgiving), so the batch would commit without their rows.
    """
    missing: list[str] = []
    for leaf in leaves(stream_execution.lastExecution().executedPlan()):
        if leaf.getClass().getSimpleName() != _FILE_SCAN or not reads_stream(leaf):
            continue
        location = leaf.relation().location()
        planned, found = location.rootPaths(), location.allFiles()
        if planned.size() > found.size():
            there = {str(file.getPath().toString()) for file in items(found)}
            paths = (str(path.toString()) for path in items(planned))
            missing += [path for path in paths if path not in there]
    return missing


def planned_tasks(plan: Any) -> Iterator[bytes]:
    """Yield the pickled plan of each task of the sources written in Python."""
    for leaf in leaves(plan):
        if leaf.getClass().getSimpleName() not in {_STREAM_SCAN, _BATCH_SCAN}:
            continue
        for task in items(leaf.inputPartitions()):
            if task.getClass().getSimpleName() not in _PYTHON_TASKS:
                break  # the tasks of a source are all of one kind
            yield bytes(task.pickedPartition())


def read_store(rows: Any) -> tuple[int, str]:
    """Return the stateful operator and the store of a frame from Spark's state reader."""
    options = _table_options(next(items(rows.queryExecution().analyzed().collectLeaves())))
    return int(str(option_of(options, "operatorId"))), str(option_of(options, "storeName"))


def column_ids(node: Any) -> list[int]:
    """Return the ids of a node's columns, which logical and physical leaves share."""
    return [int(column.exprId().id()) for column in items(node.output())]


def items(java_sequence: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
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


def option_of(options: Any, key: str) -> str | None:
    """Return *key* of a Scala or Java map of options, whose case depends on the source."""
    if options is None:
        return None
    for candidate in (key, key.lower()):
        value = options.get(candidate)
        if hasattr(value, "isDefined"):
            value = value.get() if value.isDefined() else None
        if value is not None:
            return str(value)
    return None


def leaves(plan: Any) -> Iterator[Any]:
    """Yield the leaves of an executed plan; adaptive execution hides them in its stages."""
    for leaf in items(plan.collectLeaves()):
        kind = leaf.getClass().getSimpleName()
        if kind == ADAPTIVE:
            yield from leaves(leaf.executedPlan())
        elif kind.endswith("QueryStageExec"):
            yield from leaves(leaf.plan())
        else:
            yield leaf


def source_scans(plan: Any) -> Iterator[Any]:
    """Yield the leaves that read a source of the job."""
    for leaf in leaves(plan):
        kind = leaf.getClass().getSimpleName()
        if kind == _STREAM_SCAN:
            yield leaf
        elif kind == _FILE_SCAN:
            name = option_of(leaf.relation().options(), SOURCE_OPTION)
            if name is not None and not is_marker(name):
                yield leaf


def source_of(leaf: Any, sources: Iterable[tuple[Any, str]]) -> str | None:
    """Return the name of the source, one of *sources*, that a leaf of an executed plan reads."""
    stream = stream_of(leaf)
    if stream is not None:
        return next((name for each, name in sources if each.equals(stream)), None)
    is_file_scan = leaf.getClass().getSimpleName() == _FILE_SCAN
    return option_of(leaf.relation().options(), SOURCE_OPTION) if is_file_scan else None


def rows_of(leaf: Any) -> int:
    """Return the rows that a scan has read."""
    metrics = leaf.metrics()
    return int(metrics.apply("numOutputRows").value()) if metrics.contains("numOutputRows") else 0


def private_field(instance: Any, name: str) -> Any:
    """Return a readable private field of a JVM object."""
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field


def private_value(instance: Any, name: str) -> Any:
    """Return the value of a private field of a JVM object."""
    return private_field(instance, name).get(instance)


def listed_files(listed: Any) -> Iterator[tuple[str, int]]:
    """Yield path and modification time in milliseconds of each file of a listing, in one call.

    Raises:
        ValueError: an entry has another form (another version of Spark).
    """
    return map(file_entry, filter(None, str(listed.mkString("\n")).split("\n")))
