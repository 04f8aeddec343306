"""A job that reads a Delta table, two files in a batch."""

from __future__ import annotations

from typing import Any

from airflow_provider.extensions.delta import delta_table
from airflow_provider.runtime.sinks.files import files


def copied(ctx: Any) -> None:
    """Copy the ids of the table."""
    table = delta_table(ctx.params["input"], max_files=2)
    rows = ctx.read("in", table, bounded=True, ends=ctx.params.get("ends"), adaptive_batches=False)
    ctx.write("out", rows.select("id"), to=files(ctx.params["output"]))
