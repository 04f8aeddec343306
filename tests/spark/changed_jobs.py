"""A job of two queries, as it was and as it was changed since; see ``test_restart_topology.py``.

Query ``a`` counts in windows, and soon ends; ``b`` drops duplicates of one source, adds another one,
and is held back before rows of 100 and more until the gate's file is there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from jobs import events, seconds, tumbling
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files


def two(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    b, c = held(ctx, source(ctx, "b")), source(ctx, "c")
    write_b(ctx, distinct(b).union(c))


def source_before_the_finished(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a").union(source(ctx, "extra")))
    write_b(ctx, distinct(source(ctx, "b")).union(source(ctx, "c")))


def query_before_the_finished(ctx: JobContext) -> None:
    """Fill the folder that ``a`` has read."""
    ctx.write("new", rows_of(source(ctx, "extra")), to=files(ctx.params["a"], format="csv"))
    two(ctx)


def operator_on_another_source(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    write_b(ctx, source(ctx, "b").union(distinct(source(ctx, "c"))))


def another_operator(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    write_b(ctx, source(ctx, "b").dropDuplicates(["k", "v"]).union(source(ctx, "c")))


def one_operator_more(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    write_b(ctx, distinct(source(ctx, "b")).union(distinct(source(ctx, "c"))))


def sources_reordered(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    c, b = source(ctx, "c"), source(ctx, "b")
    write_b(ctx, c.union(distinct(b)))


def source_gone(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    write_b(ctx, distinct(source(ctx, "b")))


def source_gone_and_another_operator(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))
    write_b(ctx, source(ctx, "b").dropDuplicates(["k", "v"]))


def query_gone(ctx: JobContext) -> None:
    write_a(ctx, source(ctx, "a"))


def source(ctx: JobContext, name: str) -> DataFrame:
    return events(ctx, name, param=name)


def held(ctx: JobContext, rows: DataFrame) -> DataFrame:
    gate = ctx.params["gate"]

    def passes(value):  # type hints would tell Spark another kind of function
        deadline = time.monotonic() + 120
        while value >= 100 and not os.path.exists(gate):
            if time.monotonic() > deadline:
                raise TimeoutError(gate)
            time.sleep(0.05)
        return True

    return rows.filter(F.udf(passes, "boolean")("v"))


def distinct(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["k", "v"])


def rows_of(rows: DataFrame) -> DataFrame:
    return rows.select(seconds("time").alias("t"), "k", "v")


def write_a(ctx: JobContext, rows: DataFrame) -> None:
    ctx.write("a", tumbling(rows, "k"), to=files(f"{ctx.params['output']}/a"))


def write_b(ctx: JobContext, rows: DataFrame) -> None:
    output = Path(ctx.params["output"])
    ctx.write("b", rows_of(rows), to=files(str(output / "b")), operators=["distinct"])
