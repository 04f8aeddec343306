"""Flush of a drained query: the rows of its state that still wait for a watermark.

Not all that a drain leaves does: an aggregation in update mode has written what it keeps, and what
drops duplicates wrote each row when it came. What waits is read from the plan, and how many rows of
it are left from what Spark has reported with the drain's batch, or from its own state readers.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.checkpoint.drain_step import (
    DrainStep,
    next_drain_step,
    next_watermark,
)
from airflow_provider.runtime.checkpoint.operator_kinds import Setting, kind_named
from airflow_provider.runtime.clock import millis_to_iso
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.queries.state_metrics import (
    count_state,
    read_state_operators,
    reported_state,
)
from airflow_provider.runtime.queries.stateful_plan import operator_settings
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from airflow_provider.runtime.queries.batch import BatchQuery
    from airflow_provider.runtime.queries.query import QueryDefinition
    from airflow_provider.runtime.queries.state_metrics import OperatorRows
    from airflow_provider.runtime.queries.streaming import RunningQuery
    from airflow_provider.runtime.storage.base import Storage

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Unflushed:
    """What a stateful operator still keeps, although a drain has passed it.

    Attributes:
        rows: how many; None where they cannot be counted.
        what: what they are.
        way_out: what the job may lack for a watermark to flush them; empty for nothing known.
    """

    id: int
    kind: str
    rows: int | None
    what: str
    way_out: str = ""

    def describe(self) -> str:
        """Return it in words."""
        rows = "an unknown number of" if self.rows is None else str(self.rows)
        return f"stateful operator {self.id} ({self.kind}) keeps {rows} {self.what}"


def next_step_of(query: RunningQuery | BatchQuery, checkpoint: Storage) -> DrainStep:
    """Return what a query that does not run needs next to be drained.

    It is not DONE while rows wait for a watermark: then the next drain batch has a later one.

    Args:
        query: the query.
        checkpoint: where Spark keeps its checkpoint.

    Raises:
        CheckpointError: rows wait for a later watermark than any that Spark can count with.
    """
    position = query.logs.position()
    step = next_drain_step(position, stateful=query.logs.is_stateful())
    if step is not DrainStep.DONE or position.watermark_ms is None:
        return step
    left = unflushed(query, spark_url(checkpoint.url))
    if not left:
        return step
    passed, described = millis_to_iso(position.watermark_ms), "; ".join(e.describe() for e in left)
    if next_watermark(position.watermark_ms) is not None:
        log.info("query=%s is drained up to %s: %s", query.name, passed, described)
        return DrainStep.PLAN
    if all(each.rows is None for each in left):
        log.warning("query=%s is drained as far as is known: %s", query.name, described)
        return step
    way_out = ". ".join(dict.fromkeys(e.way_out for e in left if e.way_out))
    msg = (
        f"query {query.name!r}: rows are left that no watermark flushes. The drain has passed "
        f"{passed}, the last moment that Spark counts with, and {described}. They have a later "
        "event time or none, or are kept again whenever a timer fires. "
        f"{way_out or 'Leave such rows out'} and run the job again, or run it in "
        "mode BATCH"
    )
    raise CheckpointError(msg)


def unflushed(query: RunningQuery | BatchQuery, checkpoint: str) -> list[Unflushed]:
    """Return what the drain of a query that has ended has left unwritten; empty when all is.

    Args:
        query: does not run.
        checkpoint: where Spark keeps its checkpoint, as Spark names it.
    """
    definition = query.definition
    spark = definition.df.sparkSession
    batch = query.logs.position().last_commit
    operators = reported_state(query.last_progress(), batch) or read_state_operators(
        spark, checkpoint, definition.topology.operators
    )
    if not any(_may_wait(operator, definition) for operator in operators):
        return []
    settings = operator_settings(definition.df, definition.output_mode)
    found = []
    for operator in operators:
        kind = kind_named(operator.kind)
        setting = settings.get(operator.id) if kind.setting else definition.output_mode
        for part in kind.waiting.get(setting or "", ()):
            rows = operator.state_rows
            if part.options is not None and (rows != 0 or kind.setting is Setting.TIME_MODE):
                options = {"operatorId": str(operator.id), **part.options}
                rows = count_state(spark, checkpoint, options, where=part.where)
            if rows != 0:
                found.append(Unflushed(operator.id, operator.kind, rows, part.what, part.way_out))
    return found


def _may_wait(operator: OperatorRows, definition: QueryDefinition) -> bool:
    has_timers = any(each.endswith(":EventTime") for each in definition.operations)
    return operator.state_rows != 0 or has_timers  # which Spark does not count
