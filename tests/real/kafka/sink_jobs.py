"""Jobs that write to Kafka."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider.extensions.kafka import kafka
from airflow_provider.runtime import spark_sink

SCHEMA = "id long, name string"


def copied(ctx: Any) -> None:
    """Send the rows of each file as messages, a file in a batch."""
    from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

    rows = ctx.read(
        "rows",
        format="parquet",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "1"},
        bounded=True,
        adaptive_batches=False,
    )
    messages = rows.select(
        F.col("id").cast("string").alias("key"),
        F.to_json(F.struct("id", "name")).alias("value"),
    )
    ctx.write("out", messages, to=_sink(ctx))


def _sink(ctx: Any) -> Any:
    topic, options = ctx.params["topic"], json.loads(ctx.params["options"])
    if ctx.params.get("sink") == "spark":
        return spark_sink("kafka", {**options, "topic": topic})
    return kafka(topic, options=options, staging=ctx.params["staging"], key="key")
