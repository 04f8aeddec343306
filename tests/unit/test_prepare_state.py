"""Preparation of Spark for reading state, on versions that do it only when a stream starts."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from airflow_provider.extensions.state_rewrite.rewrite_rows import state_session
from airflow_provider.extensions.state_tools.reader import StateReader
from airflow_provider.runtime.queries.spark_state import read_state_operators, spark_repartition

LOGS = MagicMock()
LOGS.offsets.return_value = SimpleNamespace(conf={})


class Spark(MagicMock):
    """A session of an application in which no stream has run, and whose sessions share that."""

    @property
    def is_prepared(self) -> bool:
        sessions = (self, self.newSession.return_value)
        managers = (s._jsparkSession.sessionState().streamingQueryManager for s in sessions)
        return any(manager.called for manager in managers)


@pytest.mark.parametrize(
    "use",
    [
        lambda spark: StateReader(spark, MagicMock()),
        lambda spark: state_session(spark, LOGS),
        lambda spark: read_state_operators(spark, "/checkpoint"),
        lambda spark: spark_repartition(spark)("/checkpoint", LOGS, 3),
    ],
    ids=["tables", "rewriting", "operators", "repartitioning"],
)
def test_whatever_reads_state_prepares_spark_first(use):
    """Spark 4.1 and 4.2 find state only when their manager of streams has been made."""
    spark = Spark()
    seen: list[bool] = []

    def read(_):
        seen.append(spark.is_prepared)
        return MagicMock()

    checkpoints = spark.newSession.return_value._streamingCheckpointManager
    checkpoints.repartition.side_effect = lambda *_: seen.append(spark.is_prepared)
    spark.read.format.side_effect = read
    use(spark)

    assert {True} == {*seen, spark.is_prepared}
