"""Eviction of a join's rows, left out of batches that need none.

At the end of a batch, a join of streams reads all rows of its state, and removes those that the
watermark has passed. No output depends on it for an inner or a left semi join, which write a row
only with its match. Two batches do without:

- a drain batch, because nothing reads a drained state. There it took half of the time;
- a batch before the first watermark, which has passed no row. There it took a tenth.

Spark has no setting for it, so the predicates of the planned join are cleared before its tasks are
submitted. Where Spark or Java do not allow that, the join evicts its rows.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from airflow_provider.runtime.checkpoint.drain_step import is_of_drain
from airflow_provider.runtime.queries.plan import stateful_nodes

log = logging.getLogger(__name__)

_JOIN: Final = "StreamingSymmetricHashJoinExec"
_PREDICATES: Final = "stateWatermarkPredicates"
_WITHOUT_UNMATCHED: Final = frozenset({"Inner", "LeftSemi"})


def skip_eviction(jvm: Any, execution: Any) -> int:
    """Let the joins of a planned batch keep their rows if no output depends on their eviction.

    Args:
        jvm: the JVM of Spark's driver.
        execution: the batch's ``IncrementalExecution``, of which no task is submitted yet.

    Returns:
        The number of joins that keep their rows.
    """
    from py4j.protocol import Py4JError

    try:
        watermark_ms = int(execution.offsetSeqMetadata().batchWatermarkMs())
        if watermark_ms and not is_of_drain(watermark_ms):
            return 0
        nodes = stateful_nodes(execution.executedPlan()) or ()
        return sum(_clear(jvm, node) for node in nodes if _writes_matches_alone(node))
    except Py4JError as error:
        log.debug("the joins evict their rows, as Spark plans it: %s", error)
        return 0


def _writes_matches_alone(node: Any) -> bool:
    is_join = str(node.getClass().getSimpleName()) == _JOIN
    return is_join and str(node.joinType()) in _WITHOUT_UNMATCHED


def _clear(jvm: Any, join: Any) -> bool:
    nothing = jvm.scala.Option.empty()
    predicates = join.stateWatermarkPredicates()
    if predicates.left().isEmpty() and predicates.right().isEmpty():
        return False
    field = join.getClass().getDeclaredField(_PREDICATES)
    field.setAccessible(True)
    field.set(join, predicates.copy(nothing, nothing))
    return True
