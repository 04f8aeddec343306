"""A job with a plan that Spark answers wrongly as a stream."""

from __future__ import annotations

from jobs import events, seconds, write
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext


def subtotals(ctx: JobContext) -> None:
    """Sum by key and window, by key, and over all."""
    windows = events(ctx).withColumn("w", F.window("time", "10 seconds"))
    summed = windows.rollup("k", "w").agg(F.sum("v").alias("total"))
    write(ctx, summed.select("k", seconds("w.start").alias("start"), "total"))
