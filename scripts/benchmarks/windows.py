"""The benchmark's query: counts and sums per key and minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locations import sink_of
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime import JobContext

SCHEMA = "ts timestamp, key int, value long"
WATERMARK = ("ts", "10 seconds")


def windows(ctx: JobContext) -> None:
    """Write the query to the sink that the parameters name."""
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": ctx.params["files_per_batch"]},
        bounded=True,
        watermark=WATERMARK,
    )
    sink = sink_of(ctx.params["sink"], ctx.params["location"], ctx.params["database"])
    ctx.write("windows", count_by_window(events), to=sink)


def count_by_window(events: DataFrame) -> DataFrame:
    """Return count and sum per key and one-minute window."""
    groups = events.groupBy(F.window("ts", "1 minute"), "key")
    counted = groups.agg(F.count("*").alias("events"), F.sum("value").alias("total"))
    return counted.select(F.col("window.start").alias("minute"), "key", "events", "total")
