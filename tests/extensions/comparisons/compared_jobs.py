"""Jobs that are computed twice: windows of events, and what no two computations agree in."""

from __future__ import annotations

import os
import time

from pyspark.sql import functions as sf

from airflow_provider.runtime import JobContext, files, for_each_batch

SCHEMA = "at timestamp, k string, v double"


def read(ctx: JobContext, name: str = "events", **reading):
    options = {"maxFilesPerTrigger": ctx.params.get("files_per_batch", "1")}
    return ctx.read(
        name,
        format="csv",
        path=ctx.params["input"],
        schema=SCHEMA,
        bounded=True,
        options=options,
        watermark=("at", "0 seconds"),
        **reading,
    )


def output(ctx: JobContext, name: str = ""):
    form = ctx.params.get("format", "parquet")
    by = [column for column in [ctx.params.get("by")] if column]
    return files(f"{ctx.params['output']}{name}", form, partition_by=by)


def windows_of(events, *what, size: str = "10 seconds"):
    return events.groupBy(sf.window("at", size), "k").agg(*what).select("window.start", "k", "n")


def rows(ctx: JobContext) -> None:
    """Write a row for each event, with a column that the parameter computes."""
    events = read(ctx)
    ctx.write("out", events.withColumn("n", sf.expr(ctx.params.get("n", "v"))), to=output(ctx))


def windows(ctx: JobContext) -> None:
    """Aggregate the events of ten seconds by key, as the parameter says."""
    n = sf.expr(ctx.params.get("n", "count(*)")).alias("n")
    events = read(ctx).where(ctx.params.get("where", "true"))
    size = ctx.params.get("size", "10 seconds")
    ctx.write("out", windows_of(events, n, size=size), to=output(ctx), operators=["by key"])


def limited(ctx: JobContext) -> None:
    """Take two of the events."""
    ctx.write("out", read(ctx).limit(2), to=output(ctx))


def distinct(ctx: JobContext) -> None:
    """Keep one event of each key and second."""
    ctx.write("out", read(ctx).dropDuplicates(["at", "k"]), to=output(ctx))


def maps(ctx: JobContext) -> None:
    """Write a map, in an array of structs."""
    entries = sf.create_map(sf.lit("k"), "k", sf.lit("v"), sf.col("v").cast("string"))
    nested = sf.array(sf.struct(entries.alias("m"))).alias("nested")
    ctx.write("out", read(ctx).select("at", entries.alias("m"), nested), to=output(ctx))


def joined(ctx: JobContext) -> None:
    """Join the events with themselves, over windows: the source is read twice."""
    events = read(ctx)
    counts = events.groupBy(sf.window("at", "10 seconds"), "k").agg(sf.count("*").alias("n"))
    best = events.groupBy(sf.window("at", "10 seconds"), "k").agg(sf.max("v").alias("best"))
    both = counts.join(best, ["window", "k"])
    ctx.write("out", both.select("window.start", "k", "n", "best"), to=output(ctx))


def chain(ctx: JobContext) -> None:
    """Read in a second query what the first one writes."""
    ctx.write("first", read(ctx).where("v > 0"), to=output(ctx, "-first"))
    again = ctx.read(
        "again", format="parquet", path=f"{ctx.params['output']}-first", schema=SCHEMA, bounded=True
    )
    ctx.write("out", again.withColumn("n", sf.col("v") * 2), to=output(ctx))


def several(ctx: JobContext) -> None:
    """Give the rows to a function and to files, call back, and take out what breaks a rule."""
    trace = ctx.params["trace"]

    def note(what):
        with open(trace, "a") as file:
            file.write(f"{what}\n")

    ctx.on_finish(lambda: note("finish"))
    events = ctx.expect(read(ctx), "small", "v < 100", on="quarantine")
    ctx.write("out", events, to=output(ctx), quarantine=output(ctx, "-quarantine"))

    def write(df, batch):
        note(f"batch {df.count()}")

    ctx.write("told", read(ctx, "others"), to=for_each_batch(write, "notes"))


def gated(ctx: JobContext) -> None:
    """Wait in each row while the gate is there."""
    gate = ctx.params["gate"]

    @sf.udf("double")
    def passing(v):
        while os.path.exists(gate):
            time.sleep(0.05)
        return v

    ctx.write("out", read(ctx).withColumn("n", passing("v")), to=output(ctx))


def totals(ctx: JobContext) -> None:
    """Write two sinks, one by one key, of a new version that has another column and another query."""
    events = read(ctx)
    ctx.write("out", events.withColumn("twice", sf.col("v") * 2), to=output(ctx))
    ctx.write("more", events, to=output(ctx, "-more"))
