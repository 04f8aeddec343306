"""Jobs that write one day of a table again."""

from __future__ import annotations

from airflow_provider.extensions.delta import delta
from airflow_provider.runtime import JobContext

SCHEMA = "day date, id long, name string"


def one_day(ctx: JobContext) -> None:
    """Write the rows of the input in the place of a day's."""
    rows = ctx.read("rows", format="csv", path=ctx.params["input"], schema=SCHEMA, bounded=True)
    day = ctx.params["day"]
    ctx.write("out", rows, to=delta(ctx.params["output"], replace=f"day = DATE '{day}'"))
