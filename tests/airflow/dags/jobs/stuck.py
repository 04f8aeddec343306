"""A stream that counts rows, and gets stuck in a batch with a negative one until its gate opens."""

import time
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from airflow_provider.runtime import JobContext, files

PATIENCE_S = 200.0


def copy(ctx: JobContext) -> None:
    """Copy every row."""
    gate = Path(ctx.params["gate"])

    @F.udf("long")
    def pass_gate(value: int) -> int:
        deadline = time.monotonic() + PATIENCE_S
        while value < 0 and not gate.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        return value

    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema="value long")
    ctx.write(
        "copy", rows.select(pass_gate("value").alias("value")), to=files(ctx.params["output"])
    )
