"""The rows in a stream's state after each batch, by what its operators say that they have changed.

To count its rows, Spark's RocksDB looks for a row before it writes it (``trackTotalNumberOfRows``),
which takes up to half of the time of a query with much state. What operators report tells the same:

- an inner join of streams, or a deduplication, adds a row with each update;
- an aggregation adds a group with each update for which its restore has found none;
- all of them report what they remove.

A start does without those lookups if its operators are of these kinds, and the rows before it are
known: the query has no batch yet, or the record of its last epoch has them. Any other start lets
Spark count. A stage that ran twice counts twice, so this is a figure for people: whatever decides
by the rows in state reads the state.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.runtime.checkpoint.operator_kinds import AGGREGATION, DEDUPE, JOIN
from airflow_provider.runtime.queries.plan import UPDATED_ROWS, operator_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_provider.runtime.queries.planned_operators import PlannedOperator

log = logging.getLogger(__name__)

TRACKED: Final = "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows"
_INNER: Final = "Inner"  # an outer join does not count the rows that it writes without a match
_RESTORE: Final = "StateStoreRestoreExec"
_WRITTEN: Final = "numOutputRows"
_REMOVED: Final = "numRemovedStateRows"
_TOTAL: Final = "numTotalStateRows"
_KEPT_BATCHES: Final = 128  # more than Spark keeps reports of

RowsInState = dict[str, int]
"""Rows by the id of the stateful operator."""


def follows_from_changes(operator: PlannedOperator) -> bool:
    """Whether the rows in an operator's state follow from the changes that it reports."""
    kind = operator.shape.kind
    if kind == AGGREGATION:
        return bool(operator.key_types)  # one without keys updates its only row in each batch
    return kind == DEDUPE or (kind == JOIN and operator.setting == _INNER)


class _Way(enum.Enum):
    """How the rows in state are counted."""

    NONE = "the query has no state"
    LOOKUPS = "Spark looks up what it writes"
    CHANGES = "from the rows before and what operators report"
    UNKNOWN = "not at all: the user wants no lookups, and changes do not tell"


class StateRows:
    """Counts the rows in the state of one query, over all its starts.

    Thread safety: :meth:`ran` is called in Spark's callback thread, between two starts.
    """

    def __init__(self) -> None:
        self._after: dict[int, RowsInState | None] = {}
        self._way = _Way.NONE

    def starts(
        self,
        committed: int,
        recorded: Mapping[str, int] | None,
        planned: Sequence[PlannedOperator] | None,
        *,
        asked: bool | None = None,
    ) -> bool:
        """Begin after a committed batch; return whether Spark looks rows up to count them.

        Args:
            committed: the last batch of the checkpoint; -1 without one.
            recorded: the rows after it, as its epoch's record has them; None when not known.
            planned: the operators; None when not known.
            asked: what the user's settings say of the lookups; None for nothing.
        """
        known: Mapping[str, int] | None = {} if committed < 0 else self._after.get(committed)
        known = recorded if known is None else known
        self._after = {} if known is None else {committed: dict(known)}
        are_such = planned is not None and all(map(follows_from_changes, planned))
        if planned is not None and not planned:
            self._way = _Way.NONE
        elif are_such and known is not None and not asked:
            self._way = _Way.CHANGES
        else:
            self._way = _Way.UNKNOWN if asked is False else _Way.LOOKUPS
        return self._way is _Way.LOOKUPS

    @property
    def spark_counts(self) -> bool:
        """Whether Spark's own reports have the rows in state."""
        return self._way in {_Way.NONE, _Way.LOOKUPS}

    def ran(self, batch: int, nodes: Sequence[Any] | None) -> RowsInState | None:
        """Count after a batch, by the stateful nodes of its plan; None when that is not known."""
        from py4j.protocol import Py4JError

        if self._way in {_Way.NONE, _Way.UNKNOWN}:
            return None
        by_changes = self._way is _Way.CHANGES
        before = self._after.get(batch - 1) if by_changes else None
        found = None
        if nodes is not None and (before is not None or not by_changes):
            try:
                found = _rows_after(nodes, before)
            except Py4JError as error:
                log.debug("the rows in state after batch %d are not known: %s", batch, error)
        self._after[batch] = found
        self._after.pop(batch - _KEPT_BATCHES, None)
        return found

    def in_report(self, progress: dict[str, Any]) -> dict[str, Any]:
        """Put the counted rows into Spark's report of a batch, which then has None for unknown."""
        operators = progress.get("stateOperators")
        if self.spark_counts or not operators:
            return progress
        batch = min(progress["batchId"], max(self._after, default=-1))
        rows = self._after.get(batch) or {}
        counted = [
            {**each, "numRowsTotal": rows.get(str(number))} for number, each in enumerate(operators)
        ]
        return {**progress, "stateOperators": counted}


def _rows_after(nodes: Sequence[Any], before: RowsInState | None) -> RowsInState | None:
    found: RowsInState = {}
    for node in nodes:
        metrics = node.metrics()
        if not metrics.contains(UPDATED_ROWS):
            continue
        operator = str(operator_id(node))
        if before is None:
            found[operator] = _value(metrics, _TOTAL)
            continue
        added = _value(metrics, UPDATED_ROWS) - _found_before(node)
        found[operator] = before.get(operator, 0) + added - _value(metrics, _REMOVED)
        if found[operator] < 0:
            return None
    return found or None


def _found_before(node: Any) -> int:
    """Return for how many updates of an aggregation there was a row; 0 for other operators."""
    if str(node.shortName()) != AGGREGATION:
        return 0
    restore = node
    while restore.getClass().getSimpleName() != _RESTORE:
        restore = restore.children().apply(0)
    below = restore.children().apply(0)
    while not below.metrics().contains(_WRITTEN):
        below = below.children().apply(0)
    return _value(restore.metrics(), _WRITTEN) - _value(below.metrics(), _WRITTEN)


def _value(metrics: Any, name: str) -> int:
    return int(metrics.apply(name).value())
