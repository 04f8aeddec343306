"""Jobs that read a table as a stream, by its connector."""

from __future__ import annotations

from typing import Any

from airflow_provider.runtime.sinks.files import files

LIMITS = {"delta": "maxFilesPerTrigger", "iceberg": "streaming-max-files-per-micro-batch"}


def copied(ctx: Any) -> None:
    """Copy the rows of a table that are there at first, two files of it in a batch."""
    kind = ctx.params["kind"]
    rows = ctx.read(
        "rows",
        format=kind,
        path=ctx.params["input"],
        options={LIMITS[kind]: "2"},
        bounded=True,
        ends="latest",
        adaptive_batches=False,
    )
    ctx.write("out", rows, to=files(ctx.params["output"]))
