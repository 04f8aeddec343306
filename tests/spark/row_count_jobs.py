"""Jobs whose rows are rejected, break rules, or come late; their accounts are looked at."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files, for_each_batch, spark_sink
from airflow_provider.runtime.api.sinks import Sink

SCHEMA = "t timestamp, k string, v int"


def _orders(
    ctx: JobContext, rejected: str = "quarantine", watermark: str | None = None
) -> DataFrame:
    return ctx.read(
        "orders",
        format="json",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "1"},
        watermark=None if watermark is None else ("t", watermark),
        bounded=True,
        rejected=rejected,
    )


def _checked(ctx: JobContext, rows: DataFrame, *, on: str = "quarantine") -> DataFrame:
    positive = ctx.expect(rows, "positive", "v > 0", on=on)
    return ctx.expect(positive, "known", "k IS NOT NULL", on="count")


def _kept(ctx: JobContext) -> Sink:
    return files(ctx.params["kept"], ctx.params.get("format", "parquet"))


def checked(ctx: JobContext) -> None:
    """Write each good row; keep the others."""
    rows = _checked(ctx, _orders(ctx)).select("k", "v")
    ctx.write("out", rows, to=files(ctx.params["output"]), quarantine=_kept(ctx))


def twice(ctx: JobContext) -> None:
    """Read the source in two locations of one query."""
    rows = _orders(ctx)
    both = rows.select("k", "v").union(rows.select("k", "v"))
    ctx.write("out", both, to=files(ctx.params["output"]), quarantine=_kept(ctx))


def joined_with_nothing(ctx: JobContext) -> None:
    """Join with a source without rows, of which adaptive execution learns as it runs."""
    rows = _checked(ctx, _orders(ctx))
    others = ctx.read(
        "others", format="json", path=ctx.params["others"], schema="k string", bounded=True
    )
    others = others.groupBy("k").count()
    found = rows.join(others, "k").select("k", "v")
    ctx.write("out", found, to=files(ctx.params["output"]), quarantine=_kept(ctx))


def windows(ctx: JobContext) -> None:
    """Count by windows of ten seconds, of which late rows are kept, and those of others are not."""
    rows = _checked(ctx, _orders(ctx, watermark="1 second"))
    counted = rows.groupBy(F.window("t", "10 seconds").alias("w")).agg(F.sum("v").alias("v"))
    plain = counted.select(F.col("w.start").cast("string").alias("w"), "v")
    ctx.write(
        "out", plain, to=files(ctx.params["output"]), quarantine=_kept(ctx), operators=["windows"]
    )


def through_spark(ctx: JobContext) -> None:
    """Give the rows to a sink of Spark's own, which counts them."""
    rows = _checked(ctx, _orders(ctx, "count"), on="count").select("k", "v")
    path = {"path": ctx.params["output"]} if ctx.params["sink"] == "parquet" else {}
    ctx.write("out", rows, to=spark_sink(ctx.params["sink"], path))


def through_a_function(ctx: JobContext) -> None:
    """Give the rows to a function that reads them twice."""

    def read_twice(df: DataFrame, _: int) -> None:
        df.collect()
        df.count()

    rows = _checked(ctx, _orders(ctx)).select("k", "v")
    ctx.write("out", rows, to=for_each_batch(read_twice), quarantine=_kept(ctx))
