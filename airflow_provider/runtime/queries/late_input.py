"""Late input of a running query: its rows are counted, limited, or there is none.

Spark drops late rows of an aggregation after it has combined those of one group, and counts what it
then drops. So when a batch has dropped something, the input of its partial aggregation is
read once more and counted row by row: that costs batches with late rows a second reading, and no
other one anything.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.api.sinks import VisibleSink
from airflow_provider.runtime.errors import CheckpointError, LateRowsError
from airflow_provider.runtime.jobdir.late_rows import LateCount, add_late, add_rows
from airflow_provider.runtime.jobdir.run_options import WAIT
from airflow_provider.runtime.queries.plan import executed, operator_id
from airflow_provider.runtime.spark.versions import class_named, engine_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from airflow_provider.runtime.jobdir.epoch_documents import EpochRecord
    from airflow_provider.runtime.jobdir.late_rows import CountInput, CountLate, LateRows
    from airflow_provider.runtime.jobdir.run_options import LateLimit
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.sinks.committer import EpochCommitter

log = logging.getLogger(__name__)

_DROPPED: Final = "numRowsDroppedByWatermark"
_WATERMARK: Final = "EventTimeWatermarkExec"
_STATE_WRITER: Final = "StateStoreWriter"
_EXPAND: Final = "ExpandExec"
_FILTER: Final = "FilterExec"
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


class LatePolicy:
    """Handles the late rows of one query.

    Args:
        query: the query.
        late: ``count``, ``fail`` or ``wait``.
        limit: how many it may drop; None for any number.
    """

    def __init__(self, query: QueryDefinition, late: str, limit: LateLimit | None) -> None:
        self._query = query
        self._late = late
        self._limit = limit

    @property
    def waits(self) -> bool:
        """Whether the watermark waits for the end of the data."""
        return self._late == WAIT

    def check(self, record: EpochRecord) -> None:
        """Refuse an epoch that is staged and not recorded yet, if too many rows came late.

        Raises:
            LateRowsError: the message has their number, and the way out.
            CheckpointError: their number is not known.
        """
        self._check_totals(record.epoch, record.late_rows, record.rows_read)

    @contextlib.contextmanager
    def checked_first(
        self,
        epochs: EpochCommitter,
        df: DataFrame,
        epoch: int,
        count_input: CountInput,
        count_late: CountLate,
    ) -> Iterator[tuple[DataFrame, CountInput, CountLate]]:
        """Yield the output of a batch, checked if one of its sinks shows rows before the commit.

        Such a sink is ``for_each_batch``. The batch then runs before its function is called, and
        the output is cached until the function has read it.

        Args:
            epochs: the query's, with the counts up to the epoch before.
            df: the batch's output.
            epoch: the batch.
            count_input: returns the input rows of a batch that has run.
            count_late: returns the rows that it has dropped as late.

        Raises:
            LateRowsError, CheckpointError: as :meth:`check`; no sink has got the rows.
        """
        is_shown = any(isinstance(sink, VisibleSink) for sink in self._query.sinks)
        if self._limit is None or not is_shown:
            yield df, count_input, count_late
            return
        rows = df.persist()
        try:
            rows.count()
            read, late = count_input(), count_late()
            so_far = add_late(epochs.late_rows(), late), add_rows(epochs.rows_read(), read)
            self._check_totals(epoch, *so_far)
            yield rows, lambda: read, lambda: late
        finally:
            rows.unpersist()

    def _check_totals(self, epoch: int, late: LateRows | None, read: int | None) -> None:
        if self._limit is None:
            return
        if late is None:
            msg = (
                f"query {self._query.name!r}: this Spark does not tell how many rows come late; "
                "run with late='count'"
            )
            raise CheckpointError(msg)
        if not self._limit.is_crossed(sum(late.values()), read):
            return
        names = self._query.operators
        raise LateRowsError(
            self._query.name,
            epoch,
            {_name_of(names, operator): rows for operator, rows in late.items() if rows},
            read=read,
            limit=None if self.waits else str(self._limit),
        )

    def batch_ran(self, execution: Any | None) -> None:
        """Keep the watermark where it is, if it waits for the end of the data.

        Spark takes the event times of a batch from its plan after the callback, and finds none.

        Args:
            execution: the JVM's ``StreamExecution``, in the callback of a batch that has run.

        Raises:
            CheckpointError: the watermark cannot be kept; Spark must not commit the batch.
        """
        if not self.waits:
            return
        if execution is None:
            msg = f"query {self._query.name!r}: Spark does not tell which batch it runs"
            raise CheckpointError(msg)
        for node in executed(execution.lastExecution().executedPlan()):
            if _kind(node) == _WATERMARK:
                node.eventTimeStats().reset()


def _name_of(names: tuple[str, ...], operator: str) -> str:
    place = int(operator)
    return names[place] if place < len(names) else operator


def count_late_rows(execution: Any, jvm: Any) -> LateCount | None:
    """Count the rows that each stateful operator has dropped as late in the finished batch.

    Returns:
        None where the plan cannot be read (another version of Spark).
    """
    from py4j.protocol import Py4JError

    rows: dict[str, int] = {}
    is_minimum = False
    try:
        for node in executed(execution.lastExecution().executedPlan()):
            if not node.metrics().contains(_DROPPED):
                continue
            operator, dropped = str(operator_id(node)), int(node.metrics().apply(_DROPPED).value())
            counted, is_least = dropped, False
            if dropped and _kind(node) in _OF_GROUPS:
                counted, is_least = _count_again(node, dropped, jvm)
            is_minimum = is_minimum or is_least
            rows[operator] = rows.get(operator, 0) + counted
    except Py4JError as error:
        log.warning("late rows of this batch are not known: %s", error)
        return None
    return LateCount(rows, is_minimum)


def _count_again(node: Any, groups: int, jvm: Any) -> tuple[int, bool]:
    """Count the late rows at the input of an aggregation, which is computed once more.

    A row that is late for several windows counts once.

    Returns:
        The rows, and whether there may be more of them.
    """
    from py4j.protocol import Py4JError

    partial = _partial_aggregation(node)
    if partial is None:
        return groups, True
    above, expand = _sliding(partial)
    windows = int(expand.projections().size()) if expand is not None else 1
    least = -(-groups // windows)  # of so many groups one row may be in each
    try:
        late = node.watermarkExpressionForLateEvents()
        if not late.isDefined() or _has_state(partial.child(), jvm):
            return least, True
        counts = [
            int(_late_rows_of(partial, rows, late.get(), jvm).execute().count())
            for rows in _inputs(partial, above, expand, jvm)
        ]
    except Py4JError as error:
        log.warning("late rows are counted by their groups: %s", error)
        return least, True
    # With a filter above, not every row is in each of the windows, and none of them has all rows.
    is_least = expand is not None and any(_kind(each) == _FILTER for each in above)
    return max(1, *counts), is_least


def _partial_aggregation(node: Any) -> Any | None:
    found = None
    while node.children().size() == 1:
        node = node.children().apply(0)
        if _kind(node).endswith("AggregateExec"):
            found = node
    return found


def _has_state(plan: Any, jvm: Any) -> bool:
    """Whether a plan reads state, which must not happen a second time."""
    writer = jvm.java.lang.Class.forName(engine_class(jvm, _STATE_WRITER))
    return any(writer.isInstance(node) for node in executed(plan))


def _late_rows_of(partial: Any, rows: Any, late: Any, jvm: Any) -> Any:
    """Return the plan of the rows whose group is late.

    *rows* is the input of *partial*, in nodes of its own: those of the batch keep their metrics.
    *late* is Spark's own condition for a late group.
    """
    keys = class_named(jvm, f"{_PLAIN}.ProjectExec")(partial.groupingExpressions(), rows)
    return class_named(jvm, f"{_PLAIN}.FilterExec")(late, keys)


def _sliding(partial: Any) -> tuple[list[Any], Any | None]:
    """Find the ``Expand`` node that assigns rows to sliding windows, and the nodes above it."""
    above, node = [], partial.child()
    while _kind(node) != _EXPAND:
        above.append(node)
        if node.children().size() != 1:
            return above, None
        node = node.children().apply(0)
    return above, node


def _inputs(partial: Any, above: list[Any], expand: Any | None, jvm: Any) -> Iterator[Any]:
    """Yield the input of an aggregation; for sliding windows once per window of a row.

    The first of a row's windows is late if any is, so the highest of these counts is that of rows.
    """
    if expand is None:
        yield partial.child().clone()
        return
    others = [expand.productElement(place) for place in range(1, expand.productArity())]
    for place in range(expand.projections().size()):
        one = expand.projections().slice(place, place + 1)
        arguments = jvm.java.util.ArrayList([one, *others]).toArray()
        plan = expand.makeCopy(arguments).withNewChildren(
            jvm.PythonUtils.toSeq([expand.child().clone()])
        )
        for each in reversed(above):
            plan = each.withNewChildren(jvm.PythonUtils.toSeq([plan]))
        yield plan


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
