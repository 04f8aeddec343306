"""Query plans of Spark, read through Py4J: what they read, do and count."""

from __future__ import annotations

import collections.abc
import json
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from airflow_provider.runtime.checkpoint.operator_kinds import (
    AGGREGATION,
    JOIN,
    LIMIT,
    SESSIONS,
    Setting,
    StateLayout,
    kind_named,
    kind_of_node,
)
from airflow_provider.runtime.checkpoint.operators import type_text
from airflow_provider.runtime.checkpoint.topology import OperatorShape, StateColumn
from airflow_provider.runtime.jobdir.end_of_input import is_marker
from airflow_provider.runtime.queries.eviction import stuck_sides
from airflow_provider.runtime.queries.source import SOURCE_OPTION
from airflow_provider.runtime.spark.defaults import CHOSEN_PROVIDER, PROVIDER
from airflow_provider.runtime.spark.versions import (
    class_named,
    condition_of,
    engine_class,
    engine_object,
    file_entry,
    stream_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)

_FILES: Final = "HadoopFsRelation"
ADAPTIVE: Final = "AdaptiveSparkPlanExec"
FILE_SCAN: Final = "FileSourceScanExec"
FILE_SOURCE: Final = "FileStreamSource"
LISTED: Final = "allFilesForTriggerAvailableNow"
"""The field of a file source with the files that it has listed for a run that ends."""
STREAM_SCAN: Final = "MicroBatchScanExec"
_BATCH_SCAN: Final = "BatchScanExec"
_PYTHON_TASKS: Final = frozenset({"PythonInputPartition", "PythonStreamingInputPartition"})
_WATERMARK: Final = "EventTimeWatermark"


def source_names(df: DataFrame) -> list[str | None]:
    """Return the names of the sources in *df*'s plan, None for a stream without a name.

    There is one for each line in Spark's offset log, in the same order: Spark writes a line for
    each location where the plan reads a stream, also when it reads the same one in several.
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


def has_state(plan: Any, jvm: Any) -> bool:
    """Whether an executed plan reads state, which must not happen a second time."""
    writer = jvm.java.lang.Class.forName(engine_class(jvm, _STATE_WRITER))
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


def source_scans(plan: Any) -> Iterator[Any]:
    """Yield the leaves that read a source of the job."""
    for leaf in leaves(plan):
        kind = leaf.getClass().getSimpleName()
        if kind == STREAM_SCAN:
            yield leaf
        elif kind == FILE_SCAN:
            name = option_of(leaf.relation().options(), SOURCE_OPTION)
            if name is not None and not is_marker(name):
                yield leaf


def source_of(leaf: Any, sources: Iterable[tuple[Any, str]]) -> str | None:
    """Return the name of the source, one of *sources*, that a leaf of an executed plan reads."""
    stream = stream_of(leaf)
    if stream is not None:
        return next((name for each, name in sources if each.equals(stream)), None)
    is_file_scan = leaf.getClass().getSimpleName() == FILE_SCAN
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
    """Yield path and modification time in milliseconds of each file of a listing, in one call."""
    return map(file_entry, filter(None, str(listed.mkString("\n")).split("\n")))


_STATE_WRITER: Final = "StateStoreWriter"
_REUSED: Final = "ReusedExchangeExec"
_STREAM: Final = "StreamingRelationExec"
_BUG: Final = "INTERNAL_ERROR"


class PlannedOperator(NamedTuple):
    """A stateful operator of a query that is not started; None where types are unknown.

    *setting* decides which rows it keeps: a join's type, what fires its timers, or the output mode;
    *below* has the operators whose rows reach it; *stuck* says which rows it never writes, and why.
    """

    shape: OperatorShape
    setting: str
    below: frozenset[int]
    key_types: tuple[str, ...] | None
    columns: tuple[StateColumn, ...] | None
    stuck: tuple[str, ...] = ()


def shapes_of(planned: Sequence[PlannedOperator]) -> tuple[OperatorShape, ...]:
    """Return the shapes of operators, by id."""
    return tuple(sorted(each.shape for each in planned))


def plan_operators(
    df: DataFrame, output_mode: str, names: Sequence[str]
) -> tuple[PlannedOperator, ...] | None:
    """Return the stateful operators of *df* as a query, without starting it; lower ones first."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    is_planning = False
    try:
        execution = _plan_batch(df, output_mode)
        is_planning = True
        plan = execution.executedPlan()
        is_planning = False
        leaves = zip(named_leaves(df), names, strict=True)
        columns = {column: name for (leaf, _), name in leaves for column in column_ids(leaf)}
        walk = _PhysicalWalk(df.sparkSession._jvm, columns, output_mode)
        walk.visit(plan)
        return tuple(walk.found)
    except (Py4JError, PySparkException) as error:
        is_bug = isinstance(error, Py4JError) or (condition_of(error) or "").startswith(_BUG)
        if is_planning and not is_bug:  # the job's mistake, not one in looking
            raise
        log.warning("stateful operators are not known before the query starts: %s", error)
        return None


def has_operators(df: DataFrame, output_mode: str) -> bool:
    """Whether *df* has a stateful operator when it is run as a stream."""
    names = [name or str(position) for position, name in enumerate(source_names(df))]
    return bool(plan_operators(df, output_mode, names))


def _under(node: Any) -> Iterator[Any]:
    kind = node.getClass().getSimpleName()
    if kind == ADAPTIVE:
        yield node.inputPlan()
    elif kind == _REUSED:
        yield node.child()
    else:
        yield from items(node.children())


def _within(node: Any) -> Iterator[Any]:
    yield node
    for child in _under(node):
        yield from _within(child)


def _plan_batch(df: DataFrame, output_mode: str) -> Any:
    """Return the JVM's ``IncrementalExecution``; its parameters differ between Spark's versions."""
    jvm: Any = df.sparkSession._jvm
    query = df._jdf.queryExecution()
    name = engine_class(jvm, "IncrementalExecution")
    parameters = jvm.java.lang.Class.forName(name).getConstructors()[0].getParameterTypes()
    given = {
        "SparkSession": query.sparkSession,
        "LogicalPlan": query.analyzed,
        "OutputMode": getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.title()),
        "String": lambda: "<not started>",
        "UUID": jvm.java.util.UUID.randomUUID,
        "long": lambda: 0,
        "boolean": lambda: False,  # is it the first batch, which writes the operators' metadata?
        "Option": jvm.scala.Option.empty,
        "OffsetSeqMetadataBase": lambda: _no_offsets(jvm),
        "OffsetSeqMetadata": lambda: _no_offsets(jvm),
        "WatermarkPropagator": lambda: engine_object(jvm, "WatermarkPropagator").noop(),
    }
    execution = class_named(jvm, name)
    arguments = []
    for index, parameter in enumerate(parameters, start=1):
        default = f"$lessinit$greater$default${index}"
        make = given.get(parameter.getSimpleName())
        make = make or getattr(execution, default)
        arguments.append(make())
    return execution(*arguments)


def _no_offsets(jvm: Any) -> Any:
    metadata = engine_object(jvm, "OffsetSeqMetadata")
    return metadata.apply(0, 0, getattr(metadata, "apply$default$3")())


class _PhysicalWalk:
    def __init__(self, jvm: Any, names: Mapping[int, str], output_mode: str) -> None:
        self.found: list[PlannedOperator] = []
        self._jvm = jvm
        self._writer = jvm.java.lang.Class.forName(engine_class(jvm, _STATE_WRITER))
        self._names = names
        self._output_mode = output_mode

    def visit(self, plan: Any) -> tuple[dict[str | None, None], frozenset[int]]:
        if plan.getClass().getSimpleName() in {_STREAM, _REUSED}:
            return self._read(plan)
        sources: dict[str | None, None] = {}
        below: frozenset[int] = frozenset()
        by_child = [self.visit(child) for child in _under(plan)]
        for more, operators in by_child:
            sources |= more
            below |= operators
        if not self._writer.isInstance(plan):
            return sources, below
        number, kind = operator_id(plan), str(plan.shortName())
        setting = kind_named(kind).setting
        is_join = setting is Setting.JOIN_TYPE
        shape = OperatorShape(
            number,
            kind,
            None if None in sources else tuple(sources),
            keys=_join_keys(plan) if is_join else None,
        )
        kept = str(getattr(plan, setting.value)()) if setting else self._output_mode
        stuck = stuck_sides(self._jvm, plan, [each for each, _ in by_child]) if is_join else ()
        self.found.append(PlannedOperator(shape, kept, below, *_state_of(plan, kind), stuck))
        return sources, below | {number}

    def _read(self, plan: Any) -> tuple[dict[str | None, None], frozenset[int]]:
        # A reused exchange reads its own sources, and not those of the exchange under it.
        named = {self._names.get(each): None for each in column_ids(plan)}
        named.pop(None, None)
        nodes = list(_within(plan))
        streams = sum(node.getClass().getSimpleName() == _STREAM for node in nodes)
        below = frozenset(operator_id(node) for node in nodes if self._writer.isInstance(node))
        return (named if len(named) == streams else {None: None}), below


def _state_of(
    node: Any, kind: str
) -> tuple[tuple[str, ...] | None, tuple[StateColumn, ...] | None]:
    from py4j.protocol import Py4JError

    try:
        if kind == JOIN:
            sides = _columns(node.left().schema()) + _columns(node.right().schema())
            return _types(node.leftKeys()), sides
        if kind == AGGREGATION:
            kept = node.stateManager().getStateValueSchema()
            return _types(node.keyExpressions()), _columns(kept)
        if kind == SESSIONS:
            return _types(node.keyExpressions()), _columns(node.child().schema())
        layout = kind_named(kind).layout
        if layout is StateLayout.GROUPS:
            kept = node.stateManager().stateSchema()
            return _types(node.groupingAttributes()), _columns(kept)
        if layout is StateLayout.KEYED and kind != LIMIT:
            return _types(node.keyExpressions()), None
    except (Py4JError, TypeError) as error:
        log.debug("the columns that %s keeps are not known: %s", kind, error)
    return None, None


def _types(expressions: Any) -> tuple[str, ...]:
    return tuple(type_text(json.loads(each.dataType().json())) for each in items(expressions))  # noqa: TID251 - Spark's own


def _columns(schema: Any) -> tuple[StateColumn, ...]:
    fields = json.loads(schema.json())["fields"]  # noqa: TID251 - Spark's own
    return tuple(StateColumn(each["name"], type_text(each["type"])) for each in fields)


def _join_keys(plan: Any) -> tuple[tuple[str, ...], ...]:
    sides = zip(items(plan.leftKeys()), items(plan.rightKeys()), strict=True)
    return tuple(
        tuple(dict.fromkeys(name for each in pair if (name := _column_name(each)) is not None))
        for pair in sides
    )


def _column_name(expression: Any) -> str | None:
    is_column = expression.getClass().getSimpleName() == "AttributeReference"
    return str(expression.name()) if is_column else None
