"""The rows that stateful operators have dropped as late in a batch: how many, and which.

Spark counts what it drops, but of an aggregation only groups of rows. So the input of such an
operator is computed again, with Spark's own condition for a late row, and only in a batch that has
some. Late rows that are quarantined are read in the same way.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.base.names import quoted
from airflow_provider.runtime.jobdir.epoch_documents import LateCount
from airflow_provider.runtime.queries.plan import DROPPED_ROWS, has_state, items, operator_id
from airflow_provider.runtime.queries.taps import quarantine_columns, row_as_json
from airflow_provider.runtime.spark.versions import class_named, engine_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

_EXPAND: Final = "ExpandExec"
_FILTER: Final = "FilterExec"
_JOIN: Final = "StreamingSymmetricHashJoinExec"
_PLAIN: Final = "org.apache.spark.sql.execution"
# They drop what a partial aggregation below them has combined; the others drop rows as they come.
_OF_GROUPS: Final = frozenset(
    {
        "StateStoreSaveExec",
        "StateStoreRestoreExec",
        "SessionWindowStateStoreSaveExec",
        "SessionWindowStateStoreRestoreExec",
    }
)
# They only move rows and change their order.
_PASSING: Final = frozenset(
    {"ShuffleExchangeExec", "SortExec", "InputAdapter", "WholeStageCodegenExec"}
)


@dataclasses.dataclass(frozen=True)
class _Late:
    """A plan of late rows.

    Attributes:
        plan: its first *columns* columns are those of the operator's input.
        time: the position of the event time, or of the window.
        watermark_ms: what the rows have missed.
    """

    plan: Any
    columns: int
    time: int
    watermark_ms: int


class LateRows:
    """The late rows of one finished batch of a query.

    Args:
        nodes: the nodes of its plan that count late rows; None if they are not known.
        jvm: the JVM of Spark's driver.
        quarantines: whether :meth:`quarantined` is asked for the rows.
    """

    def __init__(self, nodes: Sequence[Any] | None, jvm: Any, *, quarantines: bool = False) -> None:
        self._jvm, self._quarantines = jvm, quarantines
        self._found: dict[str, list[_Late]] = {}
        self._nodes = nodes
        self.dropped = 0

    def count(self) -> LateCount | None:
        """Count the rows that each stateful operator has dropped as late."""
        from py4j.protocol import Py4JError

        if self._nodes is None:
            return None
        rows: dict[str, int] = {}
        is_minimum = False
        try:
            for node in self._nodes:
                if not node.metrics().contains(DROPPED_ROWS):
                    continue
                operator = str(operator_id(node))
                dropped = int(node.metrics().apply(DROPPED_ROWS).value())
                counted, is_least = dropped, False
                plans: list[_Late] = []
                if dropped and _kind(node) in _OF_GROUPS:
                    counted, is_least, plans = _count_again(node, dropped, self._jvm)
                elif dropped and self._quarantines:
                    plans = list(_single_rows(node, self._jvm))
                is_minimum = is_minimum or is_least
                rows[operator] = rows.get(operator, 0) + counted
                if counted and self._quarantines:
                    self._keep(node, operator, counted, plans)
        except Py4JError as error:
            log.warning("late rows of this batch are not known: %s", error)
            return None
        quarantined = sum(rows.values()) - self.dropped if self._quarantines else 0
        return LateCount(rows, is_minimum, quarantined, self.dropped)

    def _keep(self, node: Any, operator: str, counted: int, plans: list[_Late]) -> None:
        self._found.setdefault(operator, []).extend(plans)
        found = counted if plans else 0
        if any(has_state(each, self._jvm) for each in items(node.children())):
            found = sum(int(late.plan.execute().count()) for late in plans)  # of a join's one side
        self.dropped += counted - found

    def quarantined(
        self, session: SparkSession, name_of: Callable[[int], str]
    ) -> Iterator[DataFrame]:
        """Yield the rows to quarantine, after :meth:`count`; *name_of* names operators."""
        for operator, plans in self._found.items():
            for late in plans:
                yield _quarantined(late, session, name_of(int(operator)))


def _quarantined(late: _Late, session: SparkSession, operator: str) -> DataFrame:
    from pyspark.sql import DataFrame
    from pyspark.sql import functions as sf

    is_streaming = False
    raw = session._jsparkSession.internalCreateDataFrame(
        late.plan.execute(), late.plan.schema(), is_streaming
    )
    frame = DataFrame(raw, session)
    names: dict[str, str] = {}
    for position, name in enumerate(frame.columns):  # a grouping column may be there twice
        own = name if name.lower() not in names else f"{name} ({position})"
        names[own.lower()] = own
    columns = list(names.values())
    frame = frame.toDF(*columns)
    time = sf.col(quoted(columns[late.time]))
    is_window = frame.schema[late.time].dataType.typeName() == "struct"
    when = (time["end"] if is_window else time).cast("timestamp")
    watermark = sf.timestamp_millis(sf.lit(late.watermark_ms))
    behind = (sf.unix_micros(watermark) - sf.unix_micros(when)) / 1_000_000
    reason = sf.concat(sf.lit("behind the watermark by "), behind.cast("string"), sf.lit(" s"))
    return frame.select(
        *quarantine_columns(
            "late",
            sf.lit(operator),
            reason=reason,
            row=row_as_json(columns[: late.columns]),
            event_time=when,
            watermark=watermark,
        )
    )


def _single_rows(node: Any, jvm: Any) -> Iterator[_Late]:
    """Yield the plans of what an operator drops that drops rows as they come.

    There is none for an input that comes from another operator, which cannot run again.
    """
    is_join = _kind(node) == _JOIN
    for each in items(node.children()):
        if has_state(each, jvm):
            continue
        below = each
        while _kind(below) in _PASSING:
            below = below.children().apply(0)
        if is_join:
            support = engine_object(jvm, "WatermarkSupport")
            column = support.findEventTimeColumn(below.output(), False)  # noqa: FBT003 - Scala's
            condition = support.watermarkExpression(column, node.eventTimeWatermarkForLateEvents())
        else:
            condition = node.watermarkExpressionForLateEvents()
        if condition.isDefined():
            filtered = class_named(jvm, f"{_PLAIN}.FilterExec")(condition.get(), below.clone())
            yield _late_of(node, filtered, condition.get(), int(below.output().size()))


def _late_of(node: Any, plan: Any, condition: Any, columns: int) -> _Late:
    time = int(condition.references().head().exprId().id())
    ids = [int(each.exprId().id()) for each in items(plan.output())]
    watermark_ms = int(node.eventTimeWatermarkForLateEvents().get())
    return _Late(plan, columns, ids.index(time), watermark_ms)


def _count_again(node: Any, groups: int, jvm: Any) -> tuple[int, bool, list[_Late]]:
    """Count the late rows at an aggregation's input, each once; and whether there may be more."""
    from py4j.protocol import Py4JError

    partial = _partial_aggregation(node)
    if partial is None:
        return groups, True, []
    above, expand = _sliding(partial)
    windows = int(expand.projections().size()) if expand is not None else 1
    least = -(-groups // windows)  # of so many groups one row may be in each
    try:
        late = node.watermarkExpressionForLateEvents()
        if not late.isDefined() or has_state(partial.child(), jvm):
            return least, True, []
        plans = [
            _late_rows_of(partial, rows, late.get(), jvm)
            for rows in _inputs(partial, above, expand, jvm)
        ]
        counts = [int(plan.execute().count()) for plan in plans]
    except Py4JError as error:
        log.warning("late rows are counted by their groups: %s", error)
        return least, True, []
    # With a filter above, not every row is in each of the windows, and none of them has all rows.
    is_least = expand is not None and any(_kind(each) == _FILTER for each in above)
    most = max(counts)
    columns = int(partial.child().output().size())
    fullest = _late_of(node, plans[counts.index(most)], late.get(), columns)
    return max(1, most), is_least, [fullest] if most else []


def _partial_aggregation(node: Any) -> Any | None:
    found = None
    while node.children().size() == 1:
        node = node.children().apply(0)
        if _kind(node).endswith("AggregateExec"):
            found = node
    return found


def _late_rows_of(partial: Any, rows: Any, late: Any, jvm: Any) -> Any:
    """Return the plan of the rows whose group is late, with the columns of the group behind.

    *rows* is the input of *partial*, in nodes of its own: those of the batch keep their metrics.
    *late* is Spark's own condition for a late group.
    """
    own = [*items(rows.output())]
    known = {int(each.exprId().id()) for each in own}
    groups = [
        each
        for each in items(partial.groupingExpressions())
        if int(each.exprId().id()) not in known
    ]
    columns = jvm.PythonUtils.toSeq([*own, *groups])
    keys = class_named(jvm, f"{_PLAIN}.ProjectExec")(columns, rows)
    return class_named(jvm, f"{_PLAIN}.FilterExec")(late, keys)


def _sliding(partial: Any) -> tuple[list[Any], Any | None]:
    above, node = [], partial.child()
    while _kind(node) != _EXPAND:
        above.append(node)
        if node.children().size() != 1:
            return above, None
        node = node.children().apply(0)
    return above, node


def _inputs(partial: Any, above: list[Any], expand: Any | None, jvm: Any) -> Iterator[Any]:
    if expand is None:
        yield partial.child().clone()
        return
    others = [expand.productElement(position) for position in range(1, expand.productArity())]
    for position in range(expand.projections().size()):
        one = expand.projections().slice(position, position + 1)
        arguments = jvm.java.util.ArrayList([one, *others]).toArray()
        plan = expand.makeCopy(arguments).withNewChildren(
            jvm.PythonUtils.toSeq([expand.child().clone()])
        )
        for each in reversed(above):
            plan = each.withNewChildren(jvm.PythonUtils.toSeq([plan]))
        yield plan


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
