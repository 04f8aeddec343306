"""Jobs whose stateful operators see rows in any order; see ``jobs.py`` for their input."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from airflow_provider.runtime import JobContext, files, for_each_batch, spark_sink

sys.path.insert(0, str(Path(__file__).parent))

import jobs
from jobs import events, in_buckets, per_bucket, seconds

cloudpickle.register_pickle_by_value(jobs)  # workers have it not

END_MS = 4_102_444_800_000  # the year 2100: after all rows, before the end of time


def _windows(df: DataFrame, window: Any) -> DataFrame:
    counted = df.groupBy(window.alias("w"), "k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
    return counted.select(seconds("w.start").alias("a"), seconds("w.end").alias("b"), "k", "n", "v")


def _joined(left: DataFrame, right: DataFrame, how: str) -> DataFrame:
    one, two = left.alias("one"), right.alias("two")
    near = F.expr("one.k = two.k AND two.time BETWEEN one.time AND one.time + INTERVAL 3 SECONDS")
    return one.join(two, near, how).select(
        F.coalesce("one.k", "two.k").alias("k"),
        *(
            F.coalesce(of, F.lit(-1)).alias(name)
            for side in ("one", "two")
            for of, name in (
                (seconds(f"{side}.time"), f"{side}_t"),
                (F.col(f"{side}.v"), f"{side}_v"),
            )
        ),
    )


def _at_the_end(key: Any, frames: Iterator[Any], state: GroupState) -> Iterator[Any]:
    import pandas as pd

    if state.hasTimedOut:
        n, v = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "v": [v]})
        return
    n, v = state.get if state.exists else (0, 0)
    for frame in frames:
        n, v = n + len(frame), v + int(frame["v"].sum())
    state.update((n, v))
    state.setTimeoutTimestamp(END_MS)


def _in_groups(df: DataFrame) -> DataFrame:
    """Count and sum each key, and write it when event time has passed all rows."""
    return df.groupBy("k").applyInPandasWithState(
        _at_the_end,
        "k string, n long, v long",
        "n long, v long",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )


def every_operator(ctx: JobContext) -> None:
    """Write what each stateful operator makes of the same rows, each by a query of its own."""
    one, two = events(ctx), events(ctx, "others", param="others")
    in_batch = ctx.mode == "BATCH"
    queries = {
        "tumbling": _windows(one, F.window("time", "10 seconds")),
        "sliding": _windows(one, F.window("time", "20 seconds", "5 seconds")),
        "sessions": _windows(one, F.session_window("time", "2 seconds")),
        "distinct": one.select("time", "k").dropDuplicates(),
        "within": one.select("time", "k").dropDuplicates()
        if in_batch  # of the other one Spark has none there
        else one.select("time", "k").dropDuplicatesWithinWatermark(["time", "k"]),
        "inner": _joined(one, two, "inner"),
        "left": _joined(one, two, "left"),
        "full": _joined(one, two, "full"),
        "groups": one.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("v"))
        if in_batch
        else _in_groups(one),
        "chained": _minutes(one),
    }
    if ctx.params["timers"] == "yes":  # in a batch job none fires
        queries["timers"] = _in_buckets(one) if in_batch else per_bucket(one)
    for name, df in queries.items():
        rows = df.withColumn("time", seconds("time")) if "time" in df.columns else df
        kept = files(f"{ctx.params['kept']}/{name}") if "kept" in ctx.params else None
        ctx.write(name, rows, to=files(f"{ctx.params['output']}/{name}"), quarantine=kept)


def _in_buckets(df: DataFrame) -> DataFrame:
    return in_buckets(df).groupBy("k", F.col("bucket").alias("start")).agg(F.count("*").alias("n"))


def _minutes(df: DataFrame) -> DataFrame:
    """Count windows of windows: an aggregation of what another one has closed."""
    inner = df.groupBy(F.window("time", "10 seconds"), "k").agg(F.sum("v").alias("v"))
    outer = inner.groupBy(F.window("window", "1 minute"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("v")
    )
    return outer.select(seconds("window.start").alias("a"), "k", "n", "v")


def behind_another(ctx: JobContext) -> None:
    """Join rows without copies, by their odd names, with others: one side has been in state."""
    one = events(ctx).dropDuplicates(["time", "k"])
    two = events(ctx, "others", param="others", watermark=None)
    odd = two.withColumnRenamed("time", "a `time").withWatermark("`a ``time`", "5 seconds")
    both = one.alias("one").join(
        odd.alias("two"), F.expr("one.k = two.k AND one.time = two.`a ``time`")
    )
    out = both.select("one.k", "one.v", F.col("two.v").alias("w"))
    to, kept = files(ctx.params["output"]), files(ctx.params["kept"])
    ctx.write("out", out, to=to, quarantine=kept, operators=["once", "join"])


def own_watermark(ctx: JobContext) -> None:
    """Set the watermark in the query, of a source that may be silent, and by a computed column."""
    df = events(ctx, watermark=None).withColumn("at", F.col("time") + F.expr("INTERVAL 1 HOUR"))
    df = (
        df.withWatermark("at", "5 seconds")
        .withColumnRenamed("time", "_")
        .withColumnRenamed("at", "time")
    )
    write(ctx, _windows(df, F.window("time", "10 seconds")))


def write(ctx: JobContext, df: DataFrame) -> None:
    ctx.write("out", df, to=files(ctx.params["output"]))


def late_windows(ctx: JobContext) -> None:
    """Count in windows of so many seconds, each of which has many rows."""
    order = ctx.params.get("read_order", "modified")
    window = F.window("time", *ctx.params.get("window", "10 seconds").split(","))
    write(ctx, _windows(events(ctx, read_order=order), window))


def late_windows_for_each(ctx: JobContext) -> None:
    """Give windows to a function, which notes the rows of each batch that it gets."""
    trace = Path(ctx.params["trace"])

    def note(df: DataFrame, epoch: int) -> None:
        with trace.open("a", encoding="utf-8") as file:
            file.write(f"{epoch}:{sum(row['n'] for row in df.collect())}\n")

    windows = _windows(events(ctx), F.window("time", "10 seconds"))
    ctx.write("out", windows, to=for_each_batch(note))


def late_sessions(ctx: JobContext) -> None:
    """Count sessions, of which each has many rows."""
    write(ctx, _windows(events(ctx), F.session_window("time", "10 seconds")))


def late_distinct(ctx: JobContext) -> None:
    """Write each moment of each key once."""
    write(
        ctx,
        events(ctx).select("time", "k").dropDuplicates().select(seconds("time").alias("t"), "k"),
    )


def only_values(ctx: JobContext) -> None:
    """Filter rows, which Spark may push into the source."""
    read = events(ctx, watermark=None, format=ctx.params.get("format", "csv"))
    write(ctx, read.where("v > 5").select(seconds("time").alias("t"), "v"))


def to_a_sink_of_spark(ctx: JobContext) -> None:
    """Count windows into a sink that has no epochs."""
    df = _windows(events(ctx), F.window("time", "10 seconds"))
    ctx.write("out", df, to=spark_sink("noop"), output_mode="append")
