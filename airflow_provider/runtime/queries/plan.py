"""Query plans of Spark, read through Py4J: what they read, do and count."""

from __future__ import annotations

import collections.abc
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sources import SOURCE_OPTION
from airflow_provider.runtime.checkpoint.operator_kinds import (
    Setting,
    kind_of_node,
)
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.spark.defaults import CHOSEN_PROVIDER, PROVIDER
from airflow_provider.runtime.spark.versions import (
    engine_class,
    reads_stream,
    stream_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)

_FILES: Final = "HadoopFsRelation"
ADAPTIVE: Final = "AdaptiveSparkPlanExec"
FILE_SCAN: Final = "FileSourceScanExec"
STREAM_SCAN: Final = "MicroBatchScanExec"
_BATCH_SCAN: Final = "BatchScanExec"
_PYTHON_TASKS: Final = frozenset({"PythonInputPartition", "PythonStreamingInputPartition"})
_WATERMARK: Final = "EventTimeWatermark"
STATE_WRITER: Final = "StateStoreWriter"
"""What each stateful operator of a physical plan is."""
UPDATED_ROWS: Final = "numUpdatedStateRows"
DROPPED_ROWS: Final = "numRowsDroppedByWatermark"


def source_names(df: DataFrame) -> list[str | None]:
    """Return the names of the sources in *df*'s plan, None for a stream without a name.

    There is one for each line in Spark's offset log, in the same order: Spark writes a line for
    each location where the plan reads a stream, also when it reads the same one in several.
    """
    return [name for _, name in named_leaves(df)]


def named_leaves(df: DataFrame) -> Iterator[tuple[Any, str | None]]:
    """Yield the leaves of the analyzed plan that read a source, with its name."""
    tag = source_tag(df.sparkSession._jvm)
    for leaf in items(df._jdf.queryExecution().analyzed().collectLeaves()):
        options = _stream_options(leaf)
        name = option_of(options or _table_options(leaf), SOURCE_OPTION)
        if options is None and name is None:
            name = _tagged(leaf, tag)
        if options is not None or name is not None:
            yield leaf, name


def name_leaves(df: DataFrame, source: str) -> None:
    """Name those leaves of a static *df* that keep no options of their reader, such as Delta's.

    Spark copies a tag with each change of the plan.
    """
    tag = source_tag(df.sparkSession._jvm)
    for leaf in items(df._jdf.queryExecution().analyzed().collectLeaves()):
        if option_of(_table_options(leaf), SOURCE_OPTION) is None:
            leaf.setTagValue(tag, source)


def source_tag(jvm: Any) -> Any:
    """Return the tag with which :func:`name_leaves` names a leaf."""
    return jvm.org.apache.spark.sql.catalyst.trees.TreeNodeTag(SOURCE_OPTION)


def _tagged(leaf: Any, tag: Any) -> str | None:
    found = leaf.getTagValue(tag)
    return str(found.get()) if found.isDefined() else None


def operator_id(node: Any) -> int:
    """Return the number of a stateful operator, by its node in a physical plan."""
    return int(node.getStateInfo().operatorId())


def asked_state_provider(df: DataFrame) -> str | None:
    """Return the state store provider that the user has configured; None without one."""
    conf = df.sparkSession._jsparkSession.sessionState().conf()
    asked = str(conf.getConfString(PROVIDER)) if conf.contains(PROVIDER) else None
    return None if asked == str(conf.getConfString(CHOSEN_PROVIDER, "")) else asked


def sources_under_a_watermark(df: DataFrame) -> set[str]:
    """Return the sources whose rows pass a watermark in *df*'s plan, wherever it was set."""
    return set(_under_a_watermark(df._jdf.queryExecution().analyzed(), is_under=False))


def watermark_delays(df: DataFrame) -> list[str]:
    """Return the delays of the watermarks in *df*'s plan, in the order of its nodes."""
    return [str(node.delay().toString()) for kind, node in analyzed(df) if kind == _WATERMARK]


def analyzed(df: DataFrame) -> Iterator[tuple[str, Any]]:
    """Yield the kind of each node of *df*'s analyzed plan, and the node; upper ones first."""
    nodes = [df._jdf.queryExecution().analyzed()]
    while nodes:
        node = nodes.pop()
        yield str(node.getClass().getSimpleName()), node
        nodes += reversed(list(items(node.children())))


def analyzed_json(df: DataFrame) -> list[dict[str, Any]]:
    """Return the nodes of *df*'s analyzed plan as Spark writes them, upper ones first."""
    found: list[dict[str, Any]] = json.loads(df._jdf.queryExecution().analyzed().toJSON())  # noqa: TID251 - Spark's own
    return found


def _under_a_watermark(node: Any, *, is_under: bool) -> Iterator[str]:
    options = _stream_options(node)
    if options is not None and is_under and (name := option_of(options, SOURCE_OPTION)):
        yield name
    is_under = is_under or node.getClass().getSimpleName() == _WATERMARK
    for child in items(node.children()):
        yield from _under_a_watermark(child, is_under=is_under)


def operations(df: DataFrame) -> tuple[str, ...]:
    """Return Spark's names of the operations in *df*'s plan, each once, sorted."""
    found: set[str] = set()
    for kind, node in analyzed(df):
        stateful = kind_of_node(kind)
        setting = stateful.setting if stateful else None
        if setting is Setting.TIMEOUT:
            found.add(str(node.timeout()))
        found.add(f"{kind}:{node.timeMode()}" if setting is Setting.TIME_MODE else kind)
    return tuple(sorted(found))


def check_supported(df: DataFrame, output_mode: str) -> Exception | None:
    """Return Spark's reason to refuse *df*, or None."""
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
    inside = _inside(plan)
    for child in items(plan.children()) if inside is None else [inside]:
        yield from executed(child)


def stateful_nodes(plan: Any) -> list[Any] | None:
    """Return the nodes of an executed plan that count rows in state or late rows; None if unknown.

    Each node of a plan costs several calls of the JVM, so whatever needs them shares the list.
    """
    from py4j.protocol import Py4JError

    try:
        return [node for node in executed(plan) if _counts_state(node.metrics())]
    except Py4JError as error:
        log.warning("the stateful operators of this batch are not known: %s", error)
        return None


def _counts_state(metrics: Any) -> bool:
    return bool(metrics.contains(UPDATED_ROWS) or metrics.contains(DROPPED_ROWS))


def has_state(plan: Any, jvm: Any) -> bool:
    """Whether an executed plan reads state, which must not happen a second time."""
    writer = jvm.java.lang.Class.forName(engine_class(jvm, STATE_WRITER))
    return any(writer.isInstance(node) for node in executed(plan))


def planned_tasks(plan: Any) -> Iterator[bytes]:
    """Yield the pickled plan of each task of the sources written in Python."""
    for leaf in leaves(plan):
        if leaf.getClass().getSimpleName() not in {STREAM_SCAN, _BATCH_SCAN}:
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
    if kind == "DataSourceV2ScanRelation":
        return leaf.relation().options()
    return None


def options_of_leaf(leaf: Any) -> dict[str, str]:
    """Return the options with which a leaf of an analyzed plan reads; none if it tells none."""
    options = _stream_options(leaf) or _table_options(leaf)
    if options is None:
        return {}
    if isinstance(options, collections.abc.Mapping):  # Java's; others are Scala's
        return {str(key): str(value) for key, value in options.items()}
    return {str(pair._1()): str(pair._2()) for pair in items(options.toSeq())}


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
        inside = _inside(leaf)
        if inside is None:
            yield leaf
        else:
            yield from leaves(inside)


def _inside(node: Any) -> Any | None:
    kind = node.getClass().getSimpleName()
    if kind == ADAPTIVE:
        return node.executedPlan()
    return node.plan() if kind.endswith("QueryStageExec") else None


def source_scans(plan: Any, tag: Any = None) -> Iterator[Any]:
    """Yield the leaves that read a source of the job; a batch job's may have no name but *tag*."""
    for leaf in leaves(plan):
        kind = leaf.getClass().getSimpleName()
        if kind == STREAM_SCAN:
            yield leaf
        elif kind == FILE_SCAN:
            name = option_of(leaf.relation().options(), SOURCE_OPTION)
            # A connector, such as Delta's, makes its scans without the options of its reader.
            if name is None:
                is_ours = reads_stream(leaf) or (tag is not None and _linked(leaf, tag) is not None)
            else:
                is_ours = not is_marker(name)
            if is_ours:
                yield leaf
        elif is_named_scan(leaf, tag):
            yield leaf


def is_named_scan(leaf: Any, tag: Any) -> bool:
    """Whether a leaf of a batch job's plan reads a source that Spark knows as a table."""
    if tag is None or leaf.getClass().getSimpleName() != _BATCH_SCAN:
        return False
    return _linked(leaf, tag) is not None


def source_of(leaf: Any, sources: Iterable[tuple[Any, str]], tag: Any = None) -> str | None:
    """Return the name of the source, one of *sources*, that a leaf of an executed plan reads."""
    stream = stream_of(leaf)
    if stream is not None:
        return next((name for each, name in sources if each.equals(stream)), None)
    kind = leaf.getClass().getSimpleName()
    if kind not in {FILE_SCAN, _BATCH_SCAN}:
        return None
    name = option_of(leaf.relation().options(), SOURCE_OPTION) if kind == FILE_SCAN else None
    return _linked(leaf, tag) if name is None and tag is not None else name


def _linked(leaf: Any, tag: Any) -> str | None:
    """Return the name of a leaf of an executed plan by that of its logical plan."""
    link = leaf.logicalLink()
    for each in items(link.get().collectLeaves()) if link.isDefined() else ():
        if name := _tagged(each, tag) or option_of(_table_options(each), SOURCE_OPTION):
            return name
    return None


def rows_of(leaf: Any) -> int:
    """Return the rows that a scan has read."""
    metrics = leaf.metrics()
    return int(metrics.apply("numOutputRows").value()) if metrics.contains("numOutputRows") else 0
