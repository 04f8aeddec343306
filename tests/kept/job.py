"""The job of the kept directories: units of each item in each hour."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files


def hours(ctx: JobContext) -> None:
    """Count orders in windows, with state."""
    orders = ctx.read(
        "orders",
        format="csv",
        path=ctx.params["input"],
        schema="at timestamp, item string, units int",
        bounded=True,
        watermark=("at", "10 minutes"),
    )
    counted = orders.groupBy(F.window("at", "1 hour"), "item").agg(F.sum("units").alias("units"))
    rows = counted.select(F.date_format("window.start", "HH").alias("hour"), "item", "units")
    ctx.write("hours", rows, to=files(ctx.params["output"]))
