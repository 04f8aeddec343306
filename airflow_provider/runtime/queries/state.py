"""How many rows a checkpoint's stateful operators hold, read with Spark's own state readers."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Row, SparkSession

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StateOperator:
    """A stateful operator of a query.

    Attributes:
        kind: Spark's name of it, such as ``stateStoreSave``.
        state_rows: rows in all its stores, None when they could not be read.
    """

    id: int
    kind: str
    state_rows: int | None


def reported_state(progress: Mapping[str, Any] | None, batch: int) -> list[StateOperator]:
    """Return the operators as Spark has reported them with a batch; empty when it has not.

    Args:
        progress: the query's last progress.
        batch: the batch that is wanted.
    """
    if not progress or progress["batchId"] != batch:
        return []
    return [
        StateOperator(index, operator["operatorName"], operator["numRowsTotal"])
        for index, operator in enumerate(progress["stateOperators"])
    ]


def read_state_operators(spark: SparkSession, checkpoint: str) -> list[StateOperator]:
    """Read the operators of the last committed batch, in plan order."""
    rows = spark.read.format("state-metadata").load(checkpoint).collect()
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["operatorId"], []).append(row)
    return [
        StateOperator(
            id=operator,
            kind=stores[0]["operatorName"],
            state_rows=_sum(
                _count(spark, checkpoint, operator, s["stateStoreName"]) for s in stores
            ),
        )
        for operator, stores in sorted(found.items())
    ]


def _count(spark: SparkSession, checkpoint: str, operator: int, store: str) -> int | None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    reader = spark.read.format("statestore").option("operatorId", operator)
    # Every column family as raw bytes: the same call then serves windows, joins and timers.
    reader = reader.option("storeName", store).option("internalOnlyReadAllColumnFamilies", "true")
    try:
        return reader.load(checkpoint).count()
    except (PySparkException, Py4JJavaError) as error:
        log.warning("state of operator %s, store %s is not readable: %s", operator, store, error)
        return None


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
