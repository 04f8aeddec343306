"""Jobs that read with Spark's options: by ``ctx.read``, past it, and with a setting of their own."""

from __future__ import annotations

from airflow_provider.runtime.queries.context import JobContext
from airflow_provider.runtime.sinks.files import files

SCHEMA = "n int"


def by_read(ctx: JobContext) -> None:
    """Read with the options that the run gives."""
    rows = ctx.read(
        "in",
        format=ctx.params.get("format", "csv"),
        path=ctx.params["input"],
        schema=SCHEMA,
        options=ctx.params.get("options", {}),
        bounded=True,
    )
    ctx.write("out", rows, to=files(ctx.params["output"], "json"))


def by_session(ctx: JobContext) -> None:
    """Join a table that the session has read."""
    rows = ctx.read("in", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    reader = ctx.spark.read.schema(SCHEMA).options(**ctx.params["options"])
    table = reader.csv(ctx.params["input"])
    ctx.write("out", rows.join(table, "n"), to=files(ctx.params["output"], "json"))


def with_setting(ctx: JobContext) -> None:
    """Set what the run gives."""
    for name, value in ctx.params["settings"].items():
        ctx.spark.conf.set(name, value)
    by_read(ctx)
