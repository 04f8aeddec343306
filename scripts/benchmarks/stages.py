"""Jobs of one stage and of three: windows of windows of windows, each read from the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider.runtime import JobContext

SIZES = {"fine": 10, "coarse": 60, "top": 600}
SCHEMA = "time long, k int, n long"


def one(ctx: JobContext) -> None:
    """Count the input in windows."""
    _write(ctx, "fine", _read(ctx, "events", ctx.params["input"], "csv"))


def chain(ctx: JobContext) -> None:
    """Count it in windows, these in larger ones, and those in larger ones still."""
    location, file_format = ctx.params["input"], "csv"
    for name in SIZES:
        _write(ctx, name, _read(ctx, f"for_{name}", location, file_format))
        location, file_format = f"{ctx.params['output']}/{name}", "parquet"


def side_by_side(ctx: JobContext) -> None:
    """Count it in windows of three sizes, by three queries that do not wait for each other."""
    events = _read(ctx, "events", ctx.params["input"], "csv")
    for name in SIZES:
        _write(ctx, name, events)


def _read(ctx: JobContext, name: str, location: str, file_format: str) -> DataFrame:
    bounded = ctx.params["bounded"] == "yes"
    rows = ctx.read(name, format=file_format, path=location, schema=SCHEMA, bounded=bounded)
    return rows.withColumn("at", F.timestamp_seconds("time")).withWatermark("at", "0 seconds")


def _write(ctx: JobContext, name: str, rows: DataFrame) -> None:
    from airflow_provider.runtime import files

    counted = rows.groupBy(F.window("at", f"{SIZES[name]} seconds"), "k").agg(F.sum("n").alias("n"))
    counted = counted.select(F.col("window.start").cast("long").alias("time"), "k", "n")
    ctx.write(name, counted, to=files(f"{ctx.params['output']}/{name}"))
