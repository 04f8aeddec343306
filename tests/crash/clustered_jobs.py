"""A job that writes to every sink, and notes in each row which executor has made it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files, spark_sink

SCHEMA = "time timestamp, k string, v int"
NOBODY = "no executor"


def _executor_above() -> Callable[[object], str]:
    def found(_):  # type hints would tell Spark another kind of function
        pid = "self"
        while pid != "0":
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if "--executor-id" in words:
                return words[words.index("--executor-id") + 1]
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            pid = next(line for line in status if line.startswith("PPid:")).split()[1]
        return NOBODY

    return found


def everywhere(ctx: JobContext) -> None:
    """Write all rows to each sink; one of Spark's own has a query of its own."""
    location = Path(ctx.params["output"])
    events = ctx.read(
        "events",
        format="csv",
        path=ctx.params["input"],
        schema=SCHEMA,
        options={"maxFilesPerTrigger": "2"},
        bounded=True,
    )
    rows = events.select("v", F.udf(_executor_above(), "string")("k").alias("executor"))
    ctx.write(
        "ours",
        rows,
        to=[
            files(f"{location}/files"),
            delta(f"{location}/delta"),
            iceberg("ns.out", catalog=json.loads(ctx.params["catalog"])),
            postgres(ctx.params["url"], "out"),
        ],
    )
    ctx.write("sparks", rows, to=spark_sink("parquet", {"path": f"{location}/spark"}))
