"""A job that keeps the newest change of each key in a table."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres

CHANGES = "id long, at long, number long, op string, name string, amount double"
WORDS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": ["at", "number"],
    "delete_when": "op = 'd'",
}


def newest(ctx: Any) -> None:
    """Read a file of changes in each batch; the table has the newest of each key."""
    changes = ctx.read(
        "changes",
        format="parquet",
        path=ctx.params["input"],
        schema=CHANGES,
        options={"maxFilesPerTrigger": "1"},
        bounded=True,
        adaptive_batches=False,
    )
    kind, table = ctx.params["kind"], ctx.params["table"]
    if kind == "delta":
        sink: Any = delta(table, **WORDS)
    elif kind == "iceberg":
        sink = iceberg("ns.newest", catalog=json.loads(table), **WORDS)
    else:
        sink = postgres(table, "newest", **WORDS)
    ctx.write("out", changes, to=sink)
