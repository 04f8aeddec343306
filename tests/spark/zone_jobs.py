"""Jobs whose rows depend on settings of the session."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files


def days(ctx: JobContext) -> None:
    """Count events by day, with state: as a window, as a date, and as Python reads the clock."""
    if zone := ctx.params.get("zone"):
        ctx.spark.conf.set("spark.sql.session.timeZone", zone)
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="at timestamp, k string",
        bounded=True,
        watermark=("at", "1 minute"),
    )
    named = F.udf(lambda at: at.strftime("%d"), "string")(F.col("at"))
    counted = events.groupBy(
        F.window("at", "1 day"), F.to_date("at").alias("day"), named.alias("p")
    )
    rows = counted.agg(F.count("*").cast("int").alias("n")).select(
        F.date_format("window.start", "dd HH:mm").alias("since"),
        F.col("day").cast("string"),
        "p",
        "n",
    )
    ctx.write("days", rows, to=files(ctx.params["output"]))


def numbers(ctx: JobContext) -> None:
    """Cast what is no number, which ANSI refuses."""
    lines = ctx.read("lines", format="text", path=ctx.params["input"], bounded=True)
    number = F.coalesce(F.col("value").cast("int"), F.lit(0))
    ctx.write("numbers", lines.select(number.alias("n")), to=files(ctx.params["output"]))
