"""Jobs that copy the records of files, whatever their names, ages and formats."""

from __future__ import annotations

import json

from airflow_provider.runtime import JobContext, files

SCHEMA = "id long, v string"


def records(ctx: JobContext) -> None:
    """Copy the records, of any format; ``read`` has more arguments for the source, as JSON."""
    params = ctx.params
    more = json.loads(params.get("read", "{}"))
    kept = files(params["output"] + "-kept", format="json") if "rejected" in more else None
    rows = ctx.read(
        "records",
        format=params.get("format", "csv"),
        path=params["input"],
        schema=SCHEMA,
        options=json.loads(params.get("options", "{}")),
        bounded=True,
        **more,
    )
    ctx.write("out", rows, to=files(params["output"], format="json"), quarantine=kept)


def chain(ctx: JobContext) -> None:
    """Write the records, and read the folder that is written."""
    params = ctx.params
    rows = ctx.read("records", format="csv", path=params["input"], schema=SCHEMA, bounded=True)
    first = params["output"] + "/first"
    ctx.write("first", rows, to=files(first, format="json"))
    again = ctx.read("again", format="json", path=first, schema=SCHEMA, bounded=True)
    ctx.write("second", again, to=files(params["output"] + "/second", format="json"))


def twice(ctx: JobContext) -> None:
    """Read one source in two locations of a query, and another one beside it."""
    params = ctx.params
    one = ctx.read("one", format="csv", path=params["input"], schema=SCHEMA, bounded=True)
    two = ctx.read("two", format="csv", path=params["input"], schema=SCHEMA, bounded=True)
    ctx.write("out", one.union(two).union(one), to=files(params["output"], format="json"))


def lines(ctx: JobContext) -> None:
    """Copy the lines of files of text; ``read`` has more arguments for the source, as JSON."""
    params = ctx.params
    rows = ctx.read(
        "lines",
        format="text",
        path=params["input"],
        schema="value string",
        options=json.loads(params.get("options", "{}")),
        bounded=True,
        **json.loads(params.get("read", "{}")),
    )
    ctx.write("out", rows, to=files(params["output"], format="json"))
