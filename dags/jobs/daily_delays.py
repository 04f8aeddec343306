"""Daily departure delays per airport, over flights in event time."""

from pyspark.sql import functions as F

from airflow_provider.runtime import JobContext, files

LATE_MINUTES = 15


def daily_delays(ctx: JobContext) -> None:
    """Count flights and average their delay, per day and airport of origin."""
    write_daily(ctx, bounded=True)


def daily_delays_so_far(ctx: JobContext) -> None:
    """Do the same for flights that keep arriving: a day is written when it is over."""
    write_daily(ctx, bounded=False)


def daily_delays_rated(ctx: JobContext) -> None:
    """Do the same as ``daily_delays_so_far``, with one more column: another version of that job.

    What is kept in state is the same, so that it starts from the other's savepoints.
    """
    write_daily(ctx, bounded=False, rated=True)


def write_daily(ctx: JobContext, *, bounded: bool, rated: bool = False) -> None:
    """Declare the query of all jobs; they differ in whether their input ends, and in a column."""
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
    if rated:
        late = F.col("mean_delay") > LATE_MINUTES
        rows = rows.withColumn("rating", F.when(late, "late").otherwise("on time"))
    ctx.write("daily", rows, to=files(ctx.params["output"]), operators=["daily_window"])
