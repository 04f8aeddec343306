"""The stateful operators of a query, from the plan that Spark makes of it without starting it."""

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
from airflow_provider.runtime.queries.eviction import stuck_sides
from airflow_provider.runtime.queries.plan import (
    ADAPTIVE,
    STATE_WRITER,
    column_ids,
    items,
    named_leaves,
    operator_id,
    source_names,
)
from airflow_provider.runtime.spark.versions import (
    class_named,
    condition_of,
    engine_class,
    engine_object,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame


log = logging.getLogger(__name__)

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
        self._writer = jvm.java.lang.Class.forName(engine_class(jvm, STATE_WRITER))
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
