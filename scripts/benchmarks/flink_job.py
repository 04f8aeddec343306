"""The job of the comparison with Flink, for both engines: count and sum per key and minute.

``minutes`` is the job of this runtime; started as a script by ``flink run``, this file submits the
same job to Flink. Both read CSV and write CSV, the one format that both have without further jars.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider.runtime import JobContext

CHECKPOINTS = "10 s"
EVENTS = """
CREATE TABLE events (
  ts TIMESTAMP(3), key INT, `value` BIGINT,
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND
) WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'csv')
"""
SUMS = """
CREATE TABLE sums (`minute` TIMESTAMP(3), key INT, events BIGINT, total BIGINT)
WITH ('connector' = 'filesystem', 'path' = '{}', 'format' = 'csv')
"""
INSERT = """
INSERT INTO sums
SELECT window_start, key, COUNT(*), SUM(`value`)
FROM TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE)
GROUP BY window_start, window_end, key
"""


def minutes(ctx: JobContext) -> None:
    """Declare the job for Spark."""
    from pyspark.sql import functions as F

    from airflow_provider.runtime import files

    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="ts timestamp, key int, value long",
        bounded=True,
        watermark=("ts", "5 seconds"),
    )
    groups = events.groupBy(F.window("ts", "1 minute"), "key")
    sums = groups.agg(F.count("*").alias("events"), F.sum("value").alias("total"))
    sums = sums.select(F.col("window.start").alias("minute"), "key", "events", "total")
    ctx.write("sums", sums, to=files(ctx.params["output"], "csv"))


def submit(source: str, sink: str, mode: str) -> None:
    """Submit the job to Flink, and wait for its end."""
    from pyflink.table import (  # type: ignore[import-not-found]  # only Flink's environment has it
        EnvironmentSettings,
        TableEnvironment,
    )

    is_batch = mode == "batch"
    settings = EnvironmentSettings.new_instance()
    settings = settings.in_batch_mode() if is_batch else settings.in_streaming_mode()
    tables = TableEnvironment.create(settings.build())
    if not is_batch:  # a checkpoint publishes what it covers
        tables.get_config().set("execution.checkpointing.interval", CHECKPOINTS)
    tables.execute_sql(EVENTS.format(source))
    tables.execute_sql(SUMS.format(sink))
    tables.execute_sql(INSERT).wait()


if __name__ == "__main__":
    submit(*sys.argv[1:])
