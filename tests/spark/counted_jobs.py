"""Jobs whose rows in state are counted: a query of each kind, and of several together."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files

sys.path.insert(0, str(Path(__file__).parent))

from jobs import events, seconds


def counted(ctx: JobContext) -> None:
    """Write the query that the parameter ``query`` names."""
    name = ctx.params["query"]
    ctx.write("out", QUERIES[name](ctx), to=files(ctx.params["output"]))


def windows(ctx: JobContext) -> DataFrame:
    """Return groups of which most are found again in a later batch."""
    groups = events(ctx).groupBy(F.window("time", "10 seconds"), "k").agg(F.sum("v").alias("v"))
    return groups.select(seconds("window.start").alias("start"), "k", "v")


def lists(ctx: JobContext) -> DataFrame:
    """Return groups whose aggregate is an object of Java's."""
    found = events(ctx).groupBy(F.window("time", "10 seconds")).agg(F.collect_list("k").alias("k"))
    return found.select(seconds("window.start").alias("start"), F.size("k").alias("k"))


def greatest(ctx: JobContext) -> DataFrame:
    """Return groups whose aggregate is a text, for which Spark sorts."""
    found = events(ctx).groupBy(F.window("time", "10 seconds")).agg(F.max("k").alias("k"))
    return found.select(seconds("window.start").alias("start"), "k")


def windows_of_windows(ctx: JobContext) -> DataFrame:
    """Return an aggregation of an aggregation."""
    sliding = F.window("time", "10 seconds", "5 seconds")
    inner = events(ctx).groupBy(sliding, "k").agg(F.count("*").alias("n"))
    outer = inner.groupBy("window").agg(F.max("n").alias("most"))
    return outer.select(seconds("window.start").alias("start"), "most")


def distinct(ctx: JobContext) -> DataFrame:
    """Return rows without duplicates."""
    return events(ctx).dropDuplicates(["time", "k"]).select(seconds("time").alias("t"), "k")


def kept_forever(ctx: JobContext) -> DataFrame:
    """Return rows without duplicates, of which the state forgets none."""
    return events(ctx).dropDuplicates(["k"]).select("k")


def joined(ctx: JobContext) -> DataFrame:
    """Join two sources whose rows leave the state with time."""
    both = _near(ctx)
    return both.select(seconds("time").alias("t"), seconds("at").alias("at"), "k")


def joined_forever(ctx: JobContext) -> DataFrame:
    """Join two sources whose rows stay in state, and aggregate what they give."""
    right = events(ctx, "right", param="right").select(F.col("k").alias("key"), "v")
    left = events(ctx).select("time", "k")
    both = left.join(right, F.expr("k = key")).groupBy(F.window("time", "10 seconds"), "k")
    sums = both.agg(F.sum("v").alias("v"))
    return sums.select(seconds("window.start").alias("start"), "k", "v")


def joined_windows(ctx: JobContext) -> DataFrame:
    """Aggregate what a join gives whose rows leave the state with time."""
    pairs = _near(ctx).groupBy(F.window("time", "10 seconds"), "k").count()
    return pairs.select(seconds("window.start").alias("start"), "k", "count")


def with_windows(ctx: JobContext) -> DataFrame:
    """Join rows with their windows, which a drain flushes into the join."""
    most = events(ctx).groupBy(F.window("time", "10 seconds")).agg(F.max("v").alias("most"))
    ends = most.select("most", F.window_time("window").alias("end"))
    right = events(ctx, "right", param="right").select(F.col("time").alias("at"), "v")
    of_window = "v = most AND at > end - INTERVAL 10 SECONDS AND at <= end"
    both = right.join(ends, F.expr(of_window))
    return both.select(seconds("at").alias("at"), "v")


def left_semi(ctx: JobContext) -> DataFrame:
    """Return rows that have a match, as groups."""
    groups = _near(ctx, "left_semi").groupBy(F.window("time", "10 seconds"), "k").count()
    return groups.select(seconds("window.start").alias("start"), "k", "count")


def _near(ctx: JobContext, how: str = "inner") -> DataFrame:
    right = events(ctx, "right", param="right")
    right = right.select(F.col("time").alias("at"), F.col("k").alias("key"))
    near = "k = key AND at BETWEEN time - INTERVAL 5 SECONDS AND time + INTERVAL 5 SECONDS"
    return events(ctx).join(right, F.expr(near), how)


def outer(ctx: JobContext) -> DataFrame:
    """Join with the rows that have no partner, which Spark does not count as removed."""
    both = _near(ctx, "left_outer")
    return both.select(seconds("time").alias("t"), seconds("at").alias("at"), "k")


def sessions(ctx: JobContext) -> DataFrame:
    """Return sessions, of which one may become a part of another."""
    found = events(ctx).groupBy(F.session_window("time", "5 seconds"), "k").count()
    return found.select(seconds("session_window.start").alias("start"), "k", "count")


QUERIES = {
    each.__name__: each
    for each in (
        *(windows, lists, greatest, windows_of_windows, distinct, kept_forever),
        *(joined, joined_forever, joined_windows, with_windows, left_semi, outer, sessions),
    )
}
