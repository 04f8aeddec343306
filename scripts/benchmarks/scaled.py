"""The job that grows: counts and sums per key over a day, by any number of queries and sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from airflow_provider.runtime import JobContext

SCHEMA = "ts timestamp, id long, value long"
PRIME = 2_654_435_761  # shares no factor with a number of keys, so each key occurs


def scaled(ctx: JobContext) -> None:
    """Keep each key in state until the drain, which writes all of them; a file is a batch."""
    from airflow_provider.runtime import files

    rows = ctx.read(
        "rows",
        format="parquet",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "1"},
        bounded=True,
        watermark=("ts", "1 day"),
    )
    keyed = rows.withColumn("key", F.col("id") * PRIME % ctx.params["keys"])
    counted = (
        keyed.groupBy(F.window("ts", "1 day"), "key")
        .agg(F.count("*").alias("events"), F.sum("value").alias("total"))
        .select("key", "events", "total")
    )
    for query in range(ctx.params["queries"]):
        locations = (f"{ctx.params['output']}/{query}-{n}" for n in range(ctx.params["sinks"]))
        ctx.write(f"q{query:02d}", counted, to=[files(location) for location in locations])
