"""Flush of a drained query: the rows of its state that still wait for a watermark.

The plan says which rows wait: an aggregation in update mode has written what it keeps. A timer
that the user's callback registers while another one fires is a renewal. Renewals would never end,
so the drain ignores them, as Flink does. A new timer is no renewal if a row may have registered
it: in an operator above another one that the drain batch has flushed, and later than the batch's
watermark. The drain waits for such timers only where no operator has renewals, which a further
batch would fire.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.base.clock import millis_to_iso
from airflow_provider.runtime.checkpoint.drain_step import (
    DrainStep,
    is_of_drain,
    next_drain_step,
    next_watermark,
)
from airflow_provider.runtime.checkpoint.operator_kinds import Setting, kind_named
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.queries.batch_reports import reported_state
from airflow_provider.runtime.queries.spark_state import (
    count_state,
    count_timers,
    read_state_operators,
)
from airflow_provider.runtime.storage.open import spark_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.checkpoint.operator_kinds import WaitingRows
    from airflow_provider.runtime.queries.running import Query
    from airflow_provider.runtime.queries.spark_state import OperatorRows, TimersAfter

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Unflushed:
    """The rows that a stateful operator still holds after a drain batch."""

    id: int
    kind: str
    rows: int | None
    what: str
    fix: str = ""
    ignored: int = 0

    def describe(self) -> str:
        rows = "an unknown number of" if self.rows is None else str(self.rows)
        return f"stateful operator {self.id} ({self.kind}) keeps {rows} {self.what}"


def next_step_of(query: Query, checkpoint: Storage) -> DrainStep:
    """Return the next step in draining a query that does not run.

    Raises:
        CheckpointError: rows wait for a later watermark than any that Spark can count with.
    """
    position = query.logs.position()
    step = next_drain_step(position, stateful=query.logs.is_stateful())
    if step is not DrainStep.DONE or position.watermark_ms is None:
        return step
    reader = _DrainReader(query, spark_url(checkpoint.url))
    left = [each for each in reader.left_after(position.last_commit) if each.rows != 0]
    if not left:
        return step
    passed, described = millis_to_iso(position.watermark_ms), "; ".join(e.describe() for e in left)
    if next_watermark(position.watermark_ms) is not None:
        log.info("query=%s is drained up to %s: %s", query.name, passed, described)
        return DrainStep.PLAN
    if all(each.rows is None for each in left):
        log.warning("query=%s is drained as far as is known: %s", query.name, described)
        return step
    fix = ". ".join(dict.fromkeys(e.fix for e in left if e.fix))
    other_mode = ", or run it in mode BATCH" if reader.can_run_in_batch() else ""
    raise CheckpointError(
        f"query {query.name!r}: rows are left that no watermark flushes. The drain has passed "
        f"{passed}, the last moment that Spark counts with, and {described}. They have a later "
        f"event time or none. {fix or 'Leave such rows out'} and run the job again{other_mode}"
    )


def ignored_timers(query: Query, checkpoint: Storage) -> dict[int, int | None]:
    """Return, by operator, the timers that callbacks registered in the drain of a query."""
    position = query.logs.position()
    reader = _DrainReader(query, spark_url(checkpoint.url))
    if not is_of_drain(position.watermark_ms) or not reader.may_have_timers():
        return {}
    left = reader.left_after(position.last_commit)
    return {each.id: None if each.rows is None else each.ignored for each in left}


class _DrainReader:
    def __init__(self, query: Query, checkpoint: str) -> None:
        self._query = query
        self._definition = query.definition
        self._spark = query.definition.df.sparkSession
        self._checkpoint = checkpoint
        self._plan = {each.shape.id: each for each in query.definition.planned or ()}

    def left_after(self, batch: int) -> list[Unflushed]:
        operators = self._operators(batch)
        if not any(self._may_wait(operator) for operator in operators):
            return []
        found: list[Unflushed] = []
        timers: dict[int, TimersAfter] = {}
        for operator in operators:
            for part in self._waiting_parts(operator.id, operator.kind):
                rows = operator.state_rows
                if part.options is not None and (rows != 0 or _has_uncounted_rows(operator.kind)):
                    options = {"operatorId": str(operator.id), **part.options}
                    counted = self._timers(part, batch, options) if part.fires_at else None
                    if counted is not None:
                        timers[operator.id], rows = counted, counted.older
                    elif part.fires_at:
                        rows = None
                    else:
                        options |= {"batchId": str(batch)}
                        rows = count_state(self._spark, self._checkpoint, options, where=part.where)
                if rows != 0 or operator.id in timers:
                    found.append(Unflushed(operator.id, operator.kind, rows, part.what, part.fix))
        return _by_origin(found, timers, fed=self._fed(timers, batch))

    def can_run_in_batch(self) -> bool:
        return not any(
            (reason := kind.in_batch.get(placed.setting) or kind.in_batch.get("")) is not None
            and reason.refuses
            for placed in self._plan.values()
            for kind in [kind_named(placed.shape.kind)]
        )

    def may_have_timers(self) -> bool:
        operators = self._definition.topology.operators
        return operators is None or any(
            part.fires_at for each in operators for part in self._waiting_parts(each.id, each.kind)
        )

    def _operators(self, batch: int) -> list[OperatorRows]:
        """Return the operators with the rows in their state, as Spark has counted or reads them."""
        reading = self._query.reading()
        reported = reported_state(reading, batch) if reading.spark_counts else []
        if reported:
            return reported
        planned = self._definition.topology.operators
        waiting = [e for e in planned or () if self._waiting_parts(e.id, e.kind)]
        if planned is not None and not waiting:
            return []
        only = None if planned is None else {each.id for each in waiting}
        return read_state_operators(self._spark, self._checkpoint, planned, batch=batch, only=only)

    def _may_wait(self, operator: OperatorRows) -> bool:
        # Spark does not count timers among the rows of a state.
        has_timers = any(each.endswith(":EventTime") for each in self._definition.operations)
        return operator.state_rows != 0 or has_timers

    def _timers(
        self, part: WaitingRows, batch: int, options: Mapping[str, str]
    ) -> TimersAfter | None:
        return count_timers(
            self._spark,
            self._checkpoint,
            options,
            part=part,
            batch=batch,
            watermark_ms=self._query.logs.offsets(batch).watermark_ms,
        )

    def _fed(self, timers: Mapping[int, TimersAfter], batch: int) -> frozenset[int]:
        later = (operator for operator, each in timers.items() if each.newer_later)
        return frozenset(operator for operator in later if self._is_fed(operator, batch))

    def _is_fed(self, operator: int, batch: int) -> bool:
        below = self._plan[operator].below
        if not below:
            return False
        if is_of_drain(self._query.logs.offsets(batch - 1).watermark_ms):
            flushed = {each.id for each in self.left_after(batch - 1) if each.rows != 0}
            return not below.isdisjoint(flushed)
        return any(self._waiting_parts(each, self._plan[each].shape.kind) for each in below)

    def _waiting_parts(self, operator: int, name: str) -> Sequence[WaitingRows]:
        kind, placed = kind_named(name), self._plan.get(operator)
        by_default = "" if kind.setting else self._definition.output_mode
        return kind.waiting.get(placed.setting if placed else by_default, ())


def _by_origin(
    found: Sequence[Unflushed], timers: Mapping[int, TimersAfter], *, fed: frozenset[int]
) -> list[Unflushed]:
    has_renewals = any(
        each.newer_due or (each.newer_later and operator not in fed)
        for operator, each in timers.items()
    )
    left = []
    for each in found:
        counted = timers.get(each.id)
        if counted is None or each.rows is None:
            left.append(each)
            continue
        waiting = counted.newer_later if each.id in fed and not has_renewals else 0
        ignored = counted.newer_due + counted.newer_later - waiting
        if each.rows + waiting or ignored:
            left.append(dataclasses.replace(each, rows=each.rows + waiting, ignored=ignored))
    return left


def _has_uncounted_rows(kind: str) -> bool:
    return kind_named(kind).setting is Setting.TIME_MODE
