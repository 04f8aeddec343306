"""Daily departure delays per airport, over flights in event time."""

from pyspark.sql import functions as F

from airflow_provider.runtime import JobContext, files


def daily_delays(ctx: JobContext) -> None:
    """Count flights and average their delay, per day and airport of origin."""
    write_daily(ctx, bounded=True)


def daily_delays_so_far(ctx: JobContext) -> None:
    """Do the same for flights that keep arriving: a day is written when it is over."""
    write_daily(ctx, bounded=False)


def write_daily(ctx: JobContext, *, bounded: bool) -> None:
    """Declare the query of both jobs; all that differs is whether its input ends."""
    flights = ctx.read(
        "flights",
        format="csv",
        path=ctx.params["input"],
        options={"header": "true"},
        schema="time_hour timestamp, origin string, dep_delay double",
        bounded=bounded,
        watermark=("time_hour", "2 hours"),
    )
    daily = flights.groupBy(F.window("time_hour", "1 day"), "origin").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.avg("dep_delay").alias("mean_delay"),
    )
    day = F.col("window.start").cast("date").alias("day")
    rows = daily.select(day, "origin", "flights", "departed", "mean_delay")
    ctx.write("daily", rows, to=files(ctx.params["output"]), operators=["daily_window"])
