"""Stops of a running query."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest
from pyspark.sql.functions import udf
from streams import write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.checkpoint.drain_step import StartMode
from airflow_provider.runtime.checkpoint.logs import CheckpointLogs
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.queries.row_policy import RowPolicy
from airflow_provider.runtime.queries.streaming import StreamQuery
from airflow_provider.runtime.storage.open import open_storage
from tests.declaring import declared

pytestmark = pytest.mark.spark

LONG_S = 120
"""Longer than a stop may take."""


class LateJob:
    """Takes a batch whose Spark job is submitted only when the query is being stopped."""

    def __init__(self):
        self.in_batch = threading.Event()
        self.may_go_on = threading.Event()

    def last_record(self):
        """Return the record of the last epoch: there is none."""

    def pre_commit(self, df, batch, *counters, check, **_):
        self.in_batch.set()
        assert self.may_go_on.wait(60)
        # The stop's interrupt ends here, as it may in any code on the way that does not pass it on.
        assert df.sparkSession._jvm.java.lang.Thread.interrupted()
        df.filter(_waits_long()("k")).write.format("noop").mode("append").save()


def _waits_long():
    prefix = sys.prefix

    def passes(_):
        if sys.prefix != prefix:
            raise ImportError(sys.prefix)
        time.sleep(LONG_S)
        return True

    return udf(passes, "boolean")


def test_a_batch_that_submits_its_job_while_it_is_stopped_does_not_run_to_its_end(spark, location):
    """
    Spark's stop cancels the jobs of its moment; one submitted just after it is refused as well.
    """
    write_events(location.input, [(1, "a", 1)])
    columns = "t timestamp, k string, v long"
    events = spark.readStream.schema(columns).csv(str(location.input))
    source = declared(
        "events",
        watermark=None,
        format="csv",
        path=str(location.input),
        schema=columns,
        options={},
        bounded=True,
    )
    checkpoint = location.root / "checkpoint"
    epochs: Any = LateJob()
    definition = QueryDefinition("late", events, (), "append", operators=(), sources=(source,))
    query = StreamQuery(
        definition,
        checkpoint=str(checkpoint),
        logs=CheckpointLogs(open_storage(str(checkpoint))),
        epochs=epochs,
        trigger={"availableNow": True},
        clock=SystemClock(),
        policy=RowPolicy(definition, "count", None),
    )
    query.start(StartMode.INPUT)
    assert epochs.in_batch.wait(60)

    stopping = threading.Thread(target=query.stop)
    stopping.start()
    deadline = time.monotonic() + 30
    while not query.has_ended():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    epochs.may_go_on.set()
    stopping.join(LONG_S / 2)

    assert not stopping.is_alive()
    assert (0, -1) == (query.logs.position().last_offsets, query.logs.position().last_commit)
