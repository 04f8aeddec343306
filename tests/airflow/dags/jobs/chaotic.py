"""A job of three queries, two of them over many small files, whose batches take their time."""

import time
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.runtime import JobContext, files

SLOW = -1  # the value that each file has once
PAUSE_S = 1.0


@F.udf("long")
def slowly(value: int) -> int:
    """Return the value; a file's slow one after a while."""
    if value == SLOW:
        time.sleep(PAUSE_S)
    return value


def copy_and_count(ctx: JobContext) -> None:
    """Copy rows; count them by minute and key; add up the counts of each key."""

    def read(name: str, **more: Any):
        return ctx.read(
            name,
            format="csv",
            path=ctx.params["input"],
            options={"maxFilesPerTrigger": "1"},
            schema="time timestamp, key string, value long",
            bounded=True,
            **more,
        ).withColumn("value", slowly("value"))

    output = ctx.params["output"]
    ctx.write("rows", read("rows"), to=files(f"{output}/rows"))
    counted = (
        read("events", watermark=("time", "0 seconds"))
        .groupBy(F.window("time", "1 minute"), "key")
        .agg(F.count("*").alias("n"), F.sum("value").alias("total"))
    )
    counts = counted.select(F.col("window.start").alias("minute"), "key", "n", "total")
    ctx.write("counts", counts, to=files(f"{output}/counts"))
    totals = (
        ctx.read(
            "counted",
            format="parquet",
            path=f"{output}/counts",
            schema="minute timestamp, key string, n long, total long",
            bounded=True,
            watermark=("minute", "0 seconds"),
        )
        .groupBy(F.window("minute", "5 minutes"), "key")
        .agg(F.sum("n").alias("n"), F.sum("total").alias("total"))
        .select(F.col("window.start").alias("began"), "key", "n", "total")
    )
    ctx.write("totals", totals, to=files(f"{output}/totals"))
