"""Spark's own offline repartitioning of a checkpoint's state (Spark 4.2 and later)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider.runtime.errors import CheckpointError
from airflow_provider.runtime.queries.state_metrics import prepare_state
from airflow_provider.runtime.spark.versions import Ability, check_can

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from airflow_provider.runtime.checkpoint.logs import CheckpointLogs

log = logging.getLogger(__name__)

_STATE = "spark.sql.streaming.stateStore."
_FORMAT = f"{_STATE}checkpointFormatVersion"


def spark_repartition(spark: SparkSession) -> Callable[[str, CheckpointLogs, int], None]:
    """Return what spreads a checkpoint's state over another number of partitions.

    What it returns appends a batch without input to a checkpoint that no query runs on; it raises
    CheckpointError when Spark cannot do it, and leaves the checkpoint unusable then.

    Raises:
        ConfigError: this Spark cannot repartition at all.
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
            msg = (
                f"{checkpoint}: Spark could not spread its state over {partitions} partitions: "
                f"{first_line(error)}. The restore is open: give the command again without "
                "partitions to restore the state as it is"
            )
            raise CheckpointError(msg) from error

    return repartition


def state_settings(logs: CheckpointLogs) -> dict[str, str]:
    """Return how the query keeps its state; its log tells all but the format of the checkpoint."""
    batch = logs.position().last_commit
    conf = logs.offsets(batch).conf
    kept = {key: value for key, value in conf.items() if key.startswith(_STATE)}
    return {**kept, _FORMAT: "2" if logs.commit(batch).state_ids else "1"}


def first_line(error: Exception) -> str:
    """Return what an error of Spark's says first, with the name of its class in the JVM."""
    thrown = getattr(error, "java_exception", None)
    text = str(thrown.toString()) if thrown is not None else str(error)
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__)
