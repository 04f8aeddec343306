"""The benchmark's query: counts and sums per key and minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from airflow_provider.runtime import JobContext, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "ts timestamp, key int, value long"
WATERMARK = ("ts", "10 seconds")


def windows(ctx: JobContext) -> None:
    """Write the query with the two-phase files sink."""
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": ctx.params["files_per_batch"]},
        bounded=True,
        watermark=WATERMARK,
    )
    ctx.write("windows", count_by_window(events), to=files(ctx.params["output"]))


def count_by_window(events: DataFrame) -> DataFrame:
    """Return count and sum per key and one-minute window."""
    groups = events.groupBy(F.window("ts", "1 minute"), "key")
    counted = groups.agg(F.count("*").alias("events"), F.sum("value").alias("total"))
    return counted.select(F.col("window.start").alias("minute"), "key", "events", "total")
