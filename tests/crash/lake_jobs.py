"""Jobs of a chain over tables: raw files, bronze, silver without duplicates, gold by the hour."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import functions as sf

from airflow_provider.extensions.delta import delta, delta_table
from airflow_provider.extensions.iceberg import iceberg, iceberg_table

RAW = "id long, at timestamp, user int, amount int"
DELAY = "12 hours"
MOST = 4


def sink_of(ctx: Any, name: str) -> Any:
    """Return the sink of a table of the chain."""
    location = json.loads(ctx.params["tables"])[name]
    if ctx.params["kind"] == "delta":
        return delta(location, ["origin"] if name == "bronze" else [])
    return iceberg(location, catalog=json.loads(ctx.params["catalog"]))


def read_table(ctx: Any, name: str, changes: str | None = None) -> Any:
    """Read a table of the chain, by this package or by the connector of its format."""
    location, kind = json.loads(ctx.params["tables"])[name], ctx.params["kind"]
    asked: dict[str, Any] = {"bounded": True, "adaptive_batches": False, "watermark": ("at", DELAY)}
    if ctx.params.get("by") == "connector":
        options = {
            "delta": {
                "maxFilesPerTrigger": str(MOST),
                "skipChangeCommits": str(changes is not None),
            },
            "iceberg": {
                "streaming-max-files-per-micro-batch": str(MOST),
                "streaming-skip-delete-snapshots": str(changes is not None),
            },
        }[kind]
        path = location if kind == "delta" else f"lake.{location}"
        return ctx.read(name, format=kind, path=path, options=options, ends="latest", **asked)
    if kind == "delta":
        return ctx.read(name, delta_table(location, max_files=MOST, changes=changes), **asked)
    catalog = json.loads(ctx.params["catalog"])
    table = iceberg_table(location, catalog=catalog, max_files=MOST, changes=changes)
    return ctx.read(name, table, **asked)


def bronze(ctx: Any) -> None:
    """Append raw rows to bronze, as they are."""
    options = {"maxFilesPerTrigger": str(MOST)}
    path = ctx.params["raw"]
    raw = ctx.read("raw", format="parquet", path=path, schema=RAW, options=options, bounded=True)
    ctx.write("bronze", raw.withColumn("origin", sf.lit("job")), to=sink_of(ctx, "bronze"))


def silver(ctx: Any) -> None:
    """Keep one row of each id; those with a negative amount are no rows of a customer."""
    rows = read_table(ctx, "bronze", "appended rows only").where("amount >= 0")
    # A batch has no watermark, and no state to forget.
    distinct = rows.dropDuplicatesWithinWatermark if rows.isStreaming else rows.dropDuplicates
    kept = distinct(["id"]).drop("origin")
    ctx.write("silver", kept, to=sink_of(ctx, ctx.params.get("to", "silver")))


def gold(ctx: Any) -> None:
    """Sum up by the hour and the user."""
    rows = read_table(ctx, "silver")
    hour, user = sf.window("at", "1 hour"), (rows["user"] % 10).alias("user")
    sums = rows.groupBy(hour, user).agg(
        sf.count("*").alias("rows"), sf.sum("amount").alias("amount")
    )
    found = sums.select(sf.col("window.start").alias("hour"), "user", "rows", "amount")
    ctx.write("gold", found, to=sink_of(ctx, ctx.params.get("to", "gold")))
