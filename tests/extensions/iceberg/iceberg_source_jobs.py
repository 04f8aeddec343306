"""A job that reads an Iceberg table, two files in a batch."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.runtime.sinks.files import files


def copied(ctx: Any) -> None:
    """Copy the ids of the table."""
    catalog = json.loads(ctx.params["catalog"])
    table = iceberg_table(ctx.params["table"], catalog=catalog, max_files=2)
    rows = ctx.read("in", table, bounded=True, ends=ctx.params.get("ends"), adaptive_batches=False)
    ctx.write("out", rows.select("id"), to=files(ctx.params["output"]))
