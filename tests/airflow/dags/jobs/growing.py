"""A job over a folder that grows: events per minute and key, each minute when it is over."""

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.runtime import JobContext, files


def count(ctx: JobContext) -> None:
    """Count and add up."""
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="time timestamp, key string, value long",
        watermark=("time", "0 seconds"),
    )
    counted = events.groupBy(F.window("time", "1 minute"), "key").agg(
        F.count("*").alias("n"), F.sum("value").alias("total")
    )
    rows = counted.select(F.col("window.start").alias("minute"), "key", "n", "total")
    ctx.write("counts", rows, to=files(ctx.params["output"]))
