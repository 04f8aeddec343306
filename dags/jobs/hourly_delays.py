"""Hourly departure delays per airport, over flights that keep arriving."""

from pyspark.sql import functions as F

from airflow_provider.runtime import JobContext, files


def hourly_delays(ctx: JobContext) -> None:
    """Count flights and average their delay; an hour is written when the watermark passes it."""
    flights = ctx.read(
        "flights",
        format="csv",
        path=ctx.params["input"],
        options={"header": "true"},
        schema="time_hour timestamp, origin string, dep_delay double",
        watermark=("time_hour", "2 hours"),
    )
    hourly = flights.groupBy(F.window("time_hour", "1 hour"), "origin").agg(
        F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay")
    )
    rows = hourly.select(F.col("window.start").alias("hour"), "origin", "flights", "mean_delay")
    ctx.write("hourly", rows, to=files(ctx.params["output"]), operators=["hourly_window"])
