"""A checkpoint's state as Spark reads and repartitions it: rows by operator, and partitions."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.checkpoint.operator_kinds import StateLayout, kind_named
from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.spark.versions import Ability, as_stored_option, can, check_can

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
    from airflow_provider.runtime.checkpoint.operator_kinds import WaitingRows
    from airflow_provider.runtime.checkpoint.topology import OperatorShape

log = logging.getLogger(__name__)

_BY_TIME: Final = "__event_time"


@dataclasses.dataclass(frozen=True)
class OperatorRows:
    """A stateful operator of a query, and the rows in all its stores; None if unreadable."""

    id: int
    kind: str
    state_rows: int | None


def prepare_state(spark: SparkSession) -> None:
    """Let a session read and rewrite state, even in a JVM in which no stream has run.

    Spark's tasks ask a coordinator for state stores. Spark's manager of streams registers it, and
    before 4.3 nothing else does.
    """
    spark._jsparkSession.sessionState().streamingQueryManager()


def read_state_operators(
    spark: SparkSession,
    checkpoint: str,
    planned: Sequence[OperatorShape] | None = None,
    *,
    batch: int | None = None,
    only: Collection[int] | None = None,
) -> list[OperatorRows]:
    """Read the state of the operators after a batch, by default the last one, in plan order.

    *only* names the operators that are read and returned, by default all.
    """
    if not can(spark, Ability.READ_STATE):
        known = [OperatorRows(shape.id, shape.kind, None) for shape in planned or ()]
        return [each for each in known if only is None or each.id in only]
    prepare_state(spark)
    rows = spark.read.format("state-metadata").load(checkpoint).collect()
    at_batch = {} if batch is None else {"batchId": str(batch)}
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["operatorId"], []).append(row)
    return [
        OperatorRows(
            id=operator,
            kind=stores[0]["operatorName"],
            state_rows=_sum(
                count_state(spark, checkpoint, {"operatorId": str(operator), **reading, **at_batch})
                for reading in _readings(stores)
            ),
        )
        for operator, stores in sorted(found.items())
        if only is None or operator in only
    ]


def _readings(stores: Sequence[Row]) -> Iterator[dict[str, str]]:
    layout = kind_named(stores[0]["operatorName"]).layout
    if layout is StateLayout.SIDES:
        yield from ({"joinSide": side} for side in ("left", "right"))
    elif layout is StateLayout.VARIABLES:
        for variable in json.loads(stores[0]["operatorProperties"])["stateVariables"]:  # noqa: TID251 - Spark's own
            if variable["stateVariableType"] != "TimerState":
                is_list = variable["stateVariableType"] == "ListState"
                # A list counts once, however long it is.
                as_one = {"flattenCollectionTypes": "false"} if is_list else {}
                yield {"stateVarName": variable["stateName"], **as_one}
    else:
        yield from ({"storeName": store["stateStoreName"]} for store in stores)


def count_state(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str], where: str | None = None
) -> int | None:
    """Return the rows of state that *options* and *where* select; None if unreadable."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not can(spark, Ability.READ_STATE):
        return None
    try:
        rows = spark.read.format("statestore").options(**options).load(checkpoint)
        if "joinSide" in options and _BY_TIME in rows.select("key.*").columns:
            rows = _rows_by_time(spark, checkpoint, options)
        return (rows if where is None else rows.where(where)).count()
    except (PySparkException, Py4JJavaError) as error:
        log.warning("state with %s is not readable: %s", dict(options), error)
        return None


@dataclasses.dataclass(frozen=True)
class TimersAfter:
    """The timers of an operator after a batch: those from before, and new ones by its watermark."""

    older: int
    newer_later: int
    newer_due: int


def count_timers(
    spark: SparkSession,
    checkpoint: str,
    options: Mapping[str, str],
    *,
    part: WaitingRows,
    batch: int,
    watermark_ms: int,
) -> TimersAfter | None:
    """Return the timers, or timeouts, of an operator after a batch; None if unreadable."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if not can(spark, Ability.READ_STATE):
        return None

    def after(number: int) -> DataFrame:
        reader = spark.read.format("statestore").options(**options, batchId=str(number))
        rows = reader.load(checkpoint).where(part.where or "true")
        return rows.selectExpr("key", f"{part.fires_at} AS fires_at")

    try:
        now = after(batch)
        newer = now.subtract(after(batch - 1)).where("fires_at IS NOT NULL")
        found = newer.groupBy((newer["fires_at"] > watermark_ms).alias("is_later")).count()
        counts = {row["is_later"]: row["count"] for row in found.collect()}
        later, due = counts.get(True, 0), counts.get(False, 0)
        return TimersAfter(now.count() - later - due, later, due)
    except (PySparkException, Py4JJavaError) as error:
        log.warning("state with %s is not readable: %s", dict(options), error)
        return None


def _rows_by_time(spark: SparkSession, checkpoint: str, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as sf

    where = {name: options[name] for name in ("operatorId", "batchId") if name in options}
    reader = spark.read.format("statestore").options(**where)
    stored = reader.option(as_stored_option(spark), "true").load(checkpoint)
    side = f"{options['joinSide']}-keyWithTsToValues"
    return stored.where(sf.col("column_family_name") == side).select("key_bytes").distinct()


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


_STATE = "spark.sql.streaming.stateStore."
_FORMAT = f"{_STATE}checkpointFormatVersion"


def spark_repartition(spark: SparkSession) -> Callable[[str, CheckpointLogs, int], None]:
    """Return a function that spreads a checkpoint's state over another number of partitions.

    It appends a batch without input to a checkpoint that no query runs on. If Spark fails, it
    raises CheckpointError and leaves the checkpoint unusable.
    """
    check_can(spark, Ability.REPARTITION)

    def repartition(checkpoint: str, logs: CheckpointLogs, partitions: int) -> None:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        session = spark.newSession()
        prepare_state(session)
        for key, value in state_settings(logs).items():
            if session.conf.isModifiable(key):
                session.conf.set(key, value)
        log.info("%s: repartitioning state to %s", checkpoint, partitions)
        try:
            session._streamingCheckpointManager.repartition(checkpoint, partitions)
        except (Py4JError, PySparkException) as error:
            raise CheckpointError(
                f"{checkpoint}: Spark could not spread its state over {partitions} partitions: "
                f"{first_line(error)}. The restore is open: give the command again without "
                "partitions to restore the state as it is"
            ) from error

    return repartition


def state_settings(logs: CheckpointLogs) -> dict[str, str]:
    """Return the query's settings of its state, from its log and the checkpoint's format."""
    batch = logs.position().last_commit
    conf = logs.offsets(batch).conf
    kept = {key: value for key, value in conf.items() if key.startswith(_STATE)}
    return {**kept, _FORMAT: "2" if logs.commit(batch).state_ids else "1"}


def first_line(error: Exception) -> str:
    """Return the first line of an error of Spark's, with the name of its JVM class."""
    thrown = getattr(error, "java_exception", None)
    text = str(thrown.toString()) if thrown is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
