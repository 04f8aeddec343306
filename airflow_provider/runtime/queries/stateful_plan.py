"""Plan of a query that is not started: its stateful operators, as Spark will number them."""

from __future__ import annotations

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
)
from airflow_provider.runtime.checkpoint.operators import type_text
from airflow_provider.runtime.checkpoint.topology import OperatorShape, StateColumn
from airflow_provider.runtime.queries.plan import (
    ADAPTIVE,
    column_ids,
    items,
    named_leaves,
    operator_id,
)
from airflow_provider.runtime.spark.versions import class_named, condition_of, engine_class

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_STATE_WRITER: Final = "StateStoreWriter"
_REUSED: Final = "ReusedExchangeExec"
_STREAM: Final = "StreamingRelationExec"
_BUG: Final = "INTERNAL_ERROR"


class PlannedOperator(NamedTuple):
    """A stateful operator of a query that is not started.

    Attributes:
        key_types: the types of its state's key; None if unknown.
        columns: the columns of its state's values; None if unknown.
    """

    shape: OperatorShape
    key_types: tuple[str, ...] | None
    columns: tuple[StateColumn, ...] | None


def shapes_of(planned: Sequence[PlannedOperator]) -> tuple[OperatorShape, ...]:
    """Return the shapes of operators, by id."""
    return tuple(sorted(each.shape for each in planned))


def plan_operators(
    df: DataFrame, output_mode: str, names: Sequence[str]
) -> tuple[PlannedOperator, ...] | None:
    """Return the stateful operators of *df* as a query, without starting it; lower ones first.

    Spark plans it as it does to explain it: as a batch that is not the first, which writes nothing.

    Args:
        df: the query.
        output_mode: its output mode.
        names: the job's names for its sources, one for each that :func:`.source_names` finds.

    Returns:
        None where that is impossible (another version of Spark); Spark itself compares them with
        the checkpoint's when the query starts.

    Raises:
        PySparkException: Spark cannot plan the query.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        execution = _plan_batch(df, output_mode)
    except (Py4JError, PySparkException) as error:
        _say_unknown(error)
        return None
    try:
        plan = execution.executedPlan()
    except PySparkException as error:
        if not (condition_of(error) or "").startswith(_BUG):  # of Spark, in looking
            raise
        _say_unknown(error)
        return None
    except Py4JError as error:
        _say_unknown(error)
        return None
    try:
        writer = _state_writer(df)
        leaves = zip(named_leaves(df), names, strict=True)
        columns = {column: name for (leaf, _), name in leaves for column in column_ids(leaf)}
        walk = _PhysicalWalk(writer, columns)
        walk.sources_under(plan)
        return tuple(walk.found)
    except (Py4JError, PySparkException) as error:
        _say_unknown(error)
        return None


def _say_unknown(error: Exception) -> None:
    log.warning("stateful operators are not known before the query starts: %s", error)


class PlacedOperator(NamedTuple):
    """A stateful operator in the plan of a query.

    Attributes:
        kind: Spark's name of it, such as ``stateStoreSave``.
        setting: what decides which rows it keeps: the name of a join's type, such as ``LeftOuter``,
            or what fires its timers or timeouts, such as ``EventTime``; else the query's output
            mode.
        below: the ids of the stateful operators whose rows reach it.
    """

    kind: str
    setting: str
    below: frozenset[int]


def placed_operators(df: DataFrame, output_mode: str) -> dict[int, PlacedOperator]:
    """Return the stateful operators of *df* as a query, by id.

    Empty where Spark does not plan the query without starting it (another version of Spark).
    """
    from py4j.protocol import Py4JError

    try:
        plan = _plan_batch(df, output_mode).executedPlan()
        writer = _state_writer(df)
        return {operator_id(n): _placed(n, writer, output_mode) for n in _nodes(plan, writer)}
    except Py4JError as error:
        log.warning("it is not known what stateful operators keep rows for: %s", error)
        return {}


def _placed(node: Any, writer: Any, output_mode: str) -> PlacedOperator:
    kind = str(node.shortName())
    setting = kind_named(kind).setting
    below = frozenset(operator_id(n) for each in _under(node) for n in _nodes(each, writer))
    return PlacedOperator(
        kind, str(getattr(node, setting.value)()) if setting else output_mode, below
    )


def _state_writer(df: DataFrame) -> Any:
    jvm: Any = df.sparkSession._jvm
    return jvm.java.lang.Class.forName(engine_class(jvm, _STATE_WRITER))


def _nodes(plan: Any, kind: Any) -> Iterator[Any]:
    if kind.isInstance(plan):
        yield plan
    for child in _under(plan):
        yield from _nodes(child, kind)


def _under(node: Any) -> Iterator[Any]:
    """Yield the nodes under one of a physical plan, including those behind wrappers."""
    kind = node.getClass().getSimpleName()
    if kind == ADAPTIVE:
        yield node.inputPlan()
    elif kind == _REUSED:
        yield node.child()
    else:
        yield from items(node.children())


def _count_streams(node: Any) -> int:
    is_stream = node.getClass().getSimpleName() == _STREAM
    return int(is_stream) + sum(map(_count_streams, _under(node)))


def _plan_batch(df: DataFrame, output_mode: str) -> Any:
    """Return the JVM's ``IncrementalExecution`` of *df*.

    Its parameters differ between Spark's versions, so each is given by type, or by default.
    """
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
        "WatermarkPropagator": lambda: _singleton(jvm, "WatermarkPropagator").noop(),
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
    metadata = _singleton(jvm, "OffsetSeqMetadata")
    return metadata.apply(0, 0, getattr(metadata, "apply$default$3")())


def _singleton(jvm: Any, name: str) -> Any:
    found = jvm.java.lang.Class.forName(f"{engine_class(jvm, name)}$")
    return found.getField("MODULE$").get(None)


class _PhysicalWalk:
    """A walk through a physical plan.

    Args:
        writer: the class of nodes that write state.
        names: the source that gives each column, by the column's id.
    """

    def __init__(self, writer: Any, names: Mapping[int, str]) -> None:
        self.found: list[PlannedOperator] = []
        self._writer = writer
        self._names = names

    def sources_under(self, plan: Any) -> dict[str | None, None]:
        """Return the sources under a node, None for an unknown one; note nodes that write state."""
        kind = plan.getClass().getSimpleName()
        if kind in {_STREAM, _REUSED}:
            # A reused exchange reads its own sources, and not those of the exchange under it.
            named = {self._names.get(each): None for each in column_ids(plan)}
            named.pop(None, None)
            reads = 1 if kind == _STREAM else _count_streams(plan)
            return named if len(named) == reads else {None: None}
        under: dict[str | None, None] = {}
        for child in _under(plan):
            under |= self.sources_under(child)
        if self._writer.isInstance(plan):
            number, known = operator_id(plan), None not in under
            sources = tuple(under) if known else None
            operator = str(plan.shortName())
            is_join = kind_named(operator).setting is Setting.JOIN_TYPE
            keys = _join_keys(plan) if is_join else None
            shape = OperatorShape(number, operator, sources, keys=keys)
            self.found.append(PlannedOperator(shape, *_state_of(plan, operator)))
        return under


def _state_of(
    node: Any, kind: str
) -> tuple[tuple[str, ...] | None, tuple[StateColumn, ...] | None]:
    """Return the types of the key and the stored columns; None where unknown."""
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
    """Return a column's name; None for a computed one, whose values may differ."""
    is_column = expression.getClass().getSimpleName() == "AttributeReference"
    return str(expression.name()) if is_column else None
