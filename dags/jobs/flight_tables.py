"""Flights through a chain of tables: as they came, those that departed, and their delays by hour.

Each function is a job. The table that one writes is the input of the next.
"""

from pyspark.sql import functions as F

from airflow_provider.extensions.delta import delta, delta_table
from airflow_provider.runtime import JobContext, files

TIME = ("time_hour", "2 hours")  # how much later than the newest flight another one may come


def bronze(ctx: JobContext) -> None:
    """Put files of flights into a table, row by row, partitioned by day."""
    flights = ctx.read(
        "flights",
        format="csv",
        path=ctx.params["input"],
        options={"header": "true"},
        schema="time_hour timestamp, origin string, dep_delay double",
        watermark=TIME,
    )
    rows = flights.withColumn("day", F.date_format("time_hour", "yyyy-MM-dd"))
    ctx.write("bronze", rows, to=delta(ctx.params["output"], partition_by=["day"]))


def silver(ctx: JobContext) -> None:
    """Keep the flights that departed."""
    flights = ctx.read(
        "bronze",
        delta_table(ctx.params["input"], starts=0),
        bounded=True,
        ends=ctx.params.get("version"),  # None: up to what there is when the run starts
        watermark=TIME,
    )
    departed = flights.where("dep_delay IS NOT NULL").drop("day")
    ctx.write("silver", departed, to=delta(ctx.params["output"]))


def gold(ctx: JobContext) -> None:
    """Average the delay of each hour and airport; an hour is written when it is over."""
    departed = ctx.read(
        "silver",
        delta_table(ctx.params["input"], starts=0),
        bounded=True,
        ends=ctx.params.get("version"),
        watermark=TIME,
    )
    hourly = departed.groupBy(F.window("time_hour", "1 hour"), "origin").agg(
        F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay")
    )
    rows = hourly.select(F.col("window.start").alias("hour"), "origin", "flights", "mean_delay")
    ctx.write("gold", rows, to=delta(ctx.params["output"]), operators=["hourly_window"])


def complete_hour(ctx: JobContext) -> None:
    """Do both for one hour, the interval of the run, from the partition of its day."""
    if ctx.interval is None:
        raise ValueError("this job is for an hour: give the run an interval")
    start, end = ctx.interval
    flights = ctx.read(
        "bronze",
        delta_table(ctx.params["input"], where=[("day", "=", f"{start:%Y-%m-%d}")]),
        bounded=True,
    )
    hour = flights.where((F.col("time_hour") >= F.lit(start)) & (F.col("time_hour") < F.lit(end)))
    delays = hour.groupBy("origin").agg(
        F.count("dep_delay").alias("flights"), F.avg("dep_delay").alias("mean_delay")
    )
    ctx.write("hour", delays, to=files(ctx.params["output"]))
