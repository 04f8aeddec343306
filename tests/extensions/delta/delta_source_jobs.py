"""Jobs that read Delta tables: their rows, or their changes."""

from __future__ import annotations

from typing import Any

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from airflow_provider.extensions.delta import delta, delta_table
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.sinks.spark_sink import for_each_batch


def chained(ctx: Any) -> None:
    """Write files into a table, and copy the table by another query of the same job."""
    numbers = ctx.read(
        "numbers", format="csv", path=ctx.params["input"], schema="id long", bounded=True
    )
    ctx.write("bronze", numbers, to=delta(ctx.params["table"]))
    table = ctx.read("table", delta_table(ctx.params["table"]), bounded=True)
    ctx.write("silver", table, to=files(ctx.params["output"]))


def copied(ctx: Any) -> None:
    """Copy the ids of the table."""
    table = delta_table(ctx.params["input"], max_files=2)
    rows = ctx.read("in", table, bounded=True, ends=ctx.params.get("ends"), adaptive_batches=False)
    ctx.write("out", rows.select("id"), to=files(ctx.params["output"]))


def counted(ctx: Any) -> None:
    """Count the rows of a table and of files by the minute; the table may be silent."""
    watermark = ("at", "5 seconds")
    table = delta_table(ctx.params["table"])
    silent = ctx.read("table", table, watermark=watermark, idle_timeout="1 second", bounded=False)
    schema = "id long, at timestamp"
    path = ctx.params["input"]
    loud = ctx.read(
        "files", format="csv", path=path, schema=schema, watermark=watermark, bounded=False
    )
    windows = loud.union(silent).groupBy(sf.window("at", "1 minute"))
    counts = windows.agg(sf.count("*").alias("n"))
    found = counts.select(sf.col("window.start").cast("long").alias("start"), "n")
    ctx.write("out", found, to=files(ctx.params["output"]))


def replicated(ctx: Any) -> None:
    """Apply the changes of the table to another one with the same rows, by ``id``."""
    changes = delta_table(ctx.params["input"], changes="feed", max_files=1)
    rows = ctx.read("changes", changes, bounded=True)

    def apply(df: DataFrame, epoch: int) -> None:
        last = Window.partitionBy("id").orderBy(sf.desc("_commit_version"), sf.col("is_gone"))
        is_gone = sf.col("_change_type").isin("delete", "update_preimage")
        of_id = sf.row_number().over(last)
        found = df.withColumn("is_gone", is_gone).withColumn("n", of_id).where("n = 1")
        merge = DeltaTable(ctx.params["output"]).merge(found.toArrow(), "t.id = s.id", "s", "t")
        values = {name: f"s.{name}" for name in ("id", "value", "part")}
        merge = merge.when_matched_delete("s.is_gone").when_matched_update(values)
        merge.when_not_matched_insert(values, "not s.is_gone").execute()

    ctx.write("replica", rows, to=for_each_batch(apply))
