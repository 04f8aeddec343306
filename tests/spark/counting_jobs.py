"""A job whose rules count, or end the run, and take no row out."""

from __future__ import annotations

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files


def counted(ctx: JobContext) -> None:
    rows = _rows(ctx)
    rows = ctx.expect(rows, "small", "v < 5", on="count")
    rows = ctx.expect(rows, "given", F.col("k").isNotNull(), on="count")
    rows = ctx.expect(rows, "never", "false", on="count")
    rows = ctx.expect(rows, "always", "true", on="count")
    rows = ctx.expect(rows, "no error", "1 / (v - 3) > -9", on="count")
    ctx.write("out", rows.select("v"), to=files(ctx.params["output"]))


def in_python(ctx: JobContext) -> None:
    rows = _rows(ctx)
    is_small = F.udf(lambda value: value < 5, "boolean")
    rows = ctx.expect(rows, "small", is_small("v"), on="count")
    rows = ctx.expect(rows, "given", "k IS NOT NULL", on="count")
    ctx.write("out", rows.select("v"), to=files(ctx.params["output"]))


def limited(ctx: JobContext) -> None:
    rows = ctx.expect(_rows(ctx), "small", "v < 5")
    rows = ctx.expect(rows, "given", "k IS NOT NULL", on="count")
    ctx.write("out", rows.select("v"), to=files(ctx.params["output"]))


def _rows(ctx: JobContext):
    schema = "time timestamp, k string, v int"
    return ctx.read("events", format="csv", path=ctx.params["input"], schema=schema, bounded=True)
