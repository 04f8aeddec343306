"""A job whose batches last longer than the credentials of its table."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_provider.extensions.iceberg import iceberg


def slowly(batches: Iterator[pa.RecordBatch], wait_s: float) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(wait_s)
        yield batch


def copied(ctx: Any) -> None:
    """Copy numbered lines into the table, one file in a batch."""
    rows = ctx.read(
        "in",
        format="json",
        path=ctx.params["input"],
        schema="id long, name string",
        bounded=True,
        adaptive_batches=False,
        options={"maxFilesPerTrigger": "1"},
    )
    wait_s = float(ctx.params["wait_s"])
    slow = rows.mapInArrow(lambda batches: slowly(batches, wait_s), "id long, name string")
    catalog = json.loads(ctx.params["catalog"])
    ctx.write("out", slow, to=iceberg(ctx.params["table"], catalog=catalog))
