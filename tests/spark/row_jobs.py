"""Jobs whose rows may be no records, break rules, or come late; see ``jobs.py`` for their input."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files, for_each_batch

sys.path.insert(0, str(Path(__file__).parent))

from jobs import SCHEMA, events, seconds, tumbling

MAKE: dict[str, Callable[[str, str], Any]] = {
    "files": lambda location, _: files(location),
    "bucket": lambda location, _: files(location),
    "delta": lambda location, _: delta(location),
    "iceberg": lambda location, name: iceberg(f"ns.{name}", catalog=json.loads(location)),
    "postgres": postgres,
}


def _rows(ctx: JobContext, df: DataFrame) -> DataFrame:
    del ctx
    return df


def _windows(ctx: JobContext, df: DataFrame) -> DataFrame:
    del ctx
    return tumbling(df, "k")


def _distinct(ctx: JobContext, df: DataFrame) -> DataFrame:
    del ctx
    return df.dropDuplicates(["time", "k"])


def _joined(ctx: JobContext, df: DataFrame) -> DataFrame:
    other = events(ctx, "others", param="others").alias("two")
    near = F.expr("one.k = two.k AND one.time = two.time")
    return df.alias("one").join(other, near).select("one.*", F.col("two.v").alias("w"))


def _only(column: str) -> Callable[[JobContext, DataFrame], DataFrame]:
    return lambda _, df: df.select(column)


SHAPES: dict[str, Callable[[JobContext, DataFrame], DataFrame]] = {
    "rows": _rows,
    "windows": _windows,
    "distinct": _distinct,
    "joined": _joined,
    "only_k": _only("k"),
    "totals": lambda _, df: df.groupBy("k").count(),
}


def checked(ctx: JobContext) -> None:
    """Read and give rules, below and above the shapes that the parameters name."""
    of = ctx.params
    per_batch = of.get("files_per_batch")
    how = {
        "format": "csv",
        "schema": SCHEMA,
        "bounded": True,
        "options": {"maxFilesPerTrigger": per_batch} if per_batch else {},
        "watermark": ("time", of.get("delay", "5 seconds")),
        **json.loads(of.get("read", "{}")),
    }
    df = ctx.read("events", path=of["input"], **how)
    if (below := of.get("below", "rows")) != "rows":  # then its rules are the last of all
        df = _in_seconds(SHAPES[below](ctx, df))
    for rule in json.loads(Path(of["rules"]).read_text(encoding="utf-8")):
        df = ctx.expect(df, **rule)
    if below == "rows" or "above" in of:
        df = _in_seconds(SHAPES[of.get("above", "rows")](ctx, df))
    to = _noting(ctx) if of.get("sink") == "function" else _sink(ctx, "sink", "output")
    kept = _sink(ctx, "quarantine_sink", "kept") if "kept" in of else None
    ctx.write("out", df, to=to, quarantine=kept, output_mode=of.get("output_mode", "append"))


def _in_seconds(df: DataFrame) -> DataFrame:
    return df.withColumn("time", seconds("time")) if "time" in df.columns else df


def _sink(ctx: JobContext, kind: str, location: str) -> Any:
    name = {"output": "out", "kept": "taken"}[location]
    return MAKE[ctx.params.get(kind, "files")](ctx.params[location], name)


def _noting(ctx: JobContext) -> Any:
    """Return a sink that reads each batch twice, and notes its number and its rows."""
    trace = Path(ctx.params["output"])

    def note(df: DataFrame, epoch: int) -> None:
        rows = df.collect()
        assert df.count() == len(rows)
        with trace.open("a", encoding="utf-8") as file:
            file.write(f"{epoch}:{len(rows)}\n")

    return for_each_batch(note)


def by_columns(ctx: JobContext) -> None:
    """Give rules as columns, one of a function of Python, on columns with odd names."""
    df = events(ctx).select(
        "time", F.struct(F.col("v").alias("a.b")).alias("in ner"), F.col("k").alias("x.`y")
    )
    df = ctx.expect(df, "nested", F.col("in ner")["a.b"] >= 3, on="quarantine")
    df = ctx.expect(df, "odd name", F.col("`x.``y`") != "c", on="quarantine")
    df = ctx.expect(
        df, "python", F.udf(lambda v: v != 7, "boolean")(df["in ner"]["a.b"]), on="quarantine"
    )
    out = df.select(F.col("in ner")["a.b"].alias("v"), F.col("`x.``y`").alias("k"))
    ctx.write("out", out, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def branches(ctx: JobContext) -> None:
    """Use what one rule leaves in several queries, in two of them under another rule each."""
    small = ctx.expect(events(ctx), "small", "v < 8", on="quarantine")
    queries = {
        "all": small,
        "even": ctx.expect(small, "even", "v % 2 = 0", on="quarantine"),
        "odd": ctx.expect(small, "odd", "v % 2 = 1", on="quarantine"),
    }
    for name, df in queries.items():
        kept = files(f"{ctx.params['kept']}/{name}")
        ctx.write(
            name, df.select("k", "v"), to=files(f"{ctx.params['output']}/{name}"), quarantine=kept
        )


def twice(ctx: JobContext) -> None:
    """Use a frame with a rule twice in one query."""
    good = ctx.expect(events(ctx), "small", "v < 8", on="quarantine")
    both = good.select("k", "v").union(good.select("k", (F.col("v") + 100).alias("v")))
    ctx.write("out", both, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def own_watermark(ctx: JobContext) -> None:
    """Take times of the far future out before the watermark sees them."""
    read = events(ctx, watermark=None)
    sane = ctx.expect(read, "sane time", "time < '2100-01-01'", on="quarantine")
    windows = tumbling(sane.withWatermark("time", "5 seconds"), "k")
    ctx.write("out", windows, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def inner_join(ctx: JobContext) -> None:
    """Join with a side that has no rows, which adaptive execution finds out as it runs."""
    few = events(ctx, "others", param="others").where("v < 0").select("k").distinct()
    read = events(ctx)
    good = ctx.expect(read, "small", "v < 8", on="quarantine")
    joined = good.repartition("k").join(few.repartition("k"), "k").select("k", "v")
    ctx.write("out", joined, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def past_and_live(ctx: JobContext) -> None:
    """Read a source that ends beside one that may be idle, each with a rule of its own."""
    past = events(ctx, "past", param="past", bounded=True)
    live = events(ctx, "live", bounded=False, idle_timeout="1 second")
    both = ctx.expect(past, "past", "v < 300", on="quarantine").union(
        ctx.expect(live, "live", "v <> 5", on="quarantine")
    )
    ctx.write(
        "out", tumbling(both), to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"])
    )


def by_lot(ctx: JobContext) -> None:
    """Give a rule that nothing in the rows decides."""
    lot = F.udf(lambda _: random.random() < 0.5, "boolean").asNondeterministic()
    rule = {"spark": F.rand() < 0.5, "python": lot("v"), "column": F.col("c") < 0.5}
    df = events(ctx).withColumn("a", F.rand()).withColumn("b", F.col("a") / 2)
    df = ctx.expect(df.withColumn("c", F.col("b") * 2), "few", "v < 100", on="quarantine")
    df = ctx.expect(df, "lot", rule[ctx.params["lot"]], on=ctx.params["on"]).drop(*"abc")
    ctx.write("out", df, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def once_broken(ctx: JobContext) -> None:
    """Give a rule that rows break when they are read for the first time, and not again."""
    read = Path(ctx.params["marks"])

    def is_read_again(v):  # without hints, which Spark would take for those of Arrow
        try:
            (read / str(v)).mkdir(parents=True)
        except FileExistsError:
            return True
        return False

    df = ctx.expect(events(ctx), "again", F.udf(is_read_again, "boolean")("v"), on="quarantine")
    ctx.write("out", df, to=files(ctx.params["output"]), quarantine=files(ctx.params["kept"]))


def messages(ctx: JobContext) -> None:
    """Write the first column of the records in messages."""
    read = ctx.read("events", bounded=True, **json.loads(ctx.params["read"]))
    kept = files(ctx.params["kept"]) if "kept" in ctx.params else None
    ctx.write("out", read.select("value.v"), to=files(ctx.params["output"]), quarantine=kept)
