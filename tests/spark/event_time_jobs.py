"""Jobs whose output has event times in several forms, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider.runtime import JobContext, files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def forms(ctx: JobContext) -> None:
    """Write the same rows with each form of event time."""
    from pyspark.sql import functions as sf

    events = _events(ctx)
    hours = events.groupBy(sf.window("time", "1 hour")).agg(sf.count("k").alias("n"))
    for name, df in {
        "rows": events.select("time", "k"),
        "renamed": events.where("k <> 'a'").select(sf.col("time").alias("at")),
        "windows": hours,
        "starts": hours.select(sf.col("window.start").alias("hour"), "n"),
        "ends": hours.select(sf.col("window.end").alias("hour"), "n"),
        "without": events.select("k"),
    }.items():
        ctx.write(name, df, to=files(f"{ctx.params['output']}/{name}"))


def corrected(ctx: JobContext) -> None:
    """Write each row of a source that also reads corrected records."""
    events = _events(ctx, also=ctx.params["corrected"])
    ctx.write("rows", events.select("time", "k"), to=files(ctx.params["output"]))


def _events(ctx: JobContext, also: str | None = None) -> DataFrame:
    return ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema="time timestamp, k string",
        watermark=("time", "0 seconds"),
        bounded=True,
        also=also,
    )
