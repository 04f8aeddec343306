"""A job that reads a Delta table, two files in a batch."""

from __future__ import annotations

from typing import Any

from airflow_provider.extensions.delta import delta, delta_table
from airflow_provider.runtime.sinks.files import files


def chained(ctx: Any) -> None:
    """Write files into a table, and copy the table by another query of the same job."""
    numbers = ctx.read(
        "numbers", format="csv", path=ctx.params["input"], schema="id long", bounded=True
    )
    ctx.write("bronze", numbers, to=delta(ctx.params["table"]))
    table = ctx.read("table", delta_table(ctx.params["table"]), bounded=True)
    ctx.write("silver", table, to=files(ctx.params["output"]))


def copied(ctx: Any) -> None:
    """Copy the ids of the table."""
    table = delta_table(ctx.params["input"], max_files=2)
    rows = ctx.read("in", table, bounded=True, ends=ctx.params.get("ends"), adaptive_batches=False)
    ctx.write("out", rows.select("id"), to=files(ctx.params["output"]))
