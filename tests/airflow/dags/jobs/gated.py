"""A job that counts events per minute and key, and waits for its gate in the last batch."""

import os
import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.runtime import JobContext, files

LAST = -1  # the value that only the last file has
PATIENCE_S = 200.0


def count(ctx: JobContext) -> None:
    """Count and add up, one file a batch."""
    gate = Path(ctx.params["gate"])

    @F.udf("long")
    def pass_gate(value: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        if value == LAST:
            gate.with_name(f"holder.{os.getpid()}").touch()
        while value == LAST and not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return value

    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        options={"maxFilesPerTrigger": "1"},
        schema="time timestamp, key string, value long",
        bounded=True,
        watermark=("time", "0 seconds"),
    )
    passed = events.withColumn("value", pass_gate("value"))
    counted = passed.groupBy(F.window("time", "1 minute"), "key").agg(
        F.count("*").alias("n"), F.sum("value").alias("total")
    )
    rows = counted.select(F.col("window.start").alias("minute"), "key", "n", "total")
    ctx.write("counts", rows, to=files(ctx.params["output"]))
