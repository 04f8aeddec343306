"""A job that writes each order once to four sinks, and refuses a negative amount."""

import json
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files


def write_everywhere(ctx: JobContext) -> None:
    """Read one file a batch; what was seen before is kept in state."""
    orders = ctx.read(
        "orders",
        format="csv",
        path=ctx.params["input"],
        options={"maxFilesPerTrigger": "1"},
        schema="time timestamp, id int, amount int",
        watermark=("time", "1 day"),
    )
    refused = F.raise_error(F.lit("a negative amount"))
    amount = F.when(F.col("amount") >= 0, F.col("amount")).otherwise(refused)
    once = orders.dropDuplicatesWithinWatermark(["id"]).select("id", amount.alias("amount"))
    sinks: list[Any] = [
        files(ctx.params["files"]),
        delta(ctx.params["delta"]),
        iceberg("ns.orders", catalog=json.loads(ctx.params["iceberg"])),
        postgres(ctx.params["postgres"], "orders"),
    ]
    ctx.write("orders", once, to=sinks)
