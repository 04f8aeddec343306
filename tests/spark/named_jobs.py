"""A job with state whose sources a parameter lists; see ``test_named_sources.py``.

Its state is the pairs of key and value that it has written: each is written once, whichever source
has it.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files


def pairs(ctx: JobContext) -> None:
    """Write each pair once; the file has by name a folder and what else is said of it.

    It is a file, because a run that has died is resumed with the same parameters.
    """
    asked = json.loads(Path(ctx.params["sources"]).read_text())
    rows = [_source(ctx, name, **how) for name, how in asked.items()]
    keys = ctx.params.get("keys", "k,v").split(",")
    once = functools.reduce(DataFrame.unionByName, rows).dropDuplicates(keys)
    ctx.write("out", once, to=files(ctx.params["output"]))


def both_places(ctx: JobContext) -> None:
    """Read one source in two places of the plan."""
    asked = json.loads(Path(ctx.params["sources"]).read_text())
    a = _source(ctx, "a", **asked["a"])
    ctx.write("out", a.unionByName(a).dropDuplicates(["k", "v"]), to=files(ctx.params["output"]))


def _source(
    ctx: JobContext, name: str, *, path: str, kind: str = "csv", more: str = "", **reading: Any
) -> DataFrame:
    if kind == "delta":
        from airflow_provider.extensions.delta import delta_table

        return ctx.read(name, delta_table(path), bounded=True, **reading).select("k", "v")
    if kind == "rate":
        ticks = ctx.read(name, format="rate", bounded=True)
        return ticks.select(F.lit("n").alias("k"), F.col("value").cast("int").alias("v"))
    schema = f"k string, v int{more}"
    kept = ctx.params.get("keys", "k,v").split(",")
    rows = ctx.read(name, format=kind, path=path, schema=schema, bounded=True, **reading)
    return rows.select(*kept)
