"""A job put together from a plan: where its rows come from, and what becomes of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext

sys.path.insert(0, str(Path(__file__).parents[1] / "spark"))

import jobs
from jobs import PerBucket, count_until_timeout, events, in_buckets, seconds, write
from pyspark.sql.streaming.state import GroupStateTimeout

cloudpickle.register_pickle_by_value(jobs)  # Spark's workers do not find it

COPIES = ["time", "k", "v"]
NO_MATCH = -1
SOON = "clicked_k = k AND clicked_at BETWEEN time AND time + INTERVAL 5 SECONDS"


def composed(ctx: JobContext) -> None:
    """Take the rows of the plan's head through its tail."""
    plan = json.loads(ctx.params["plan"])
    rows = _head(ctx, plan["head"]).withColumn("v", F.col("v").cast("long"))
    write(ctx, _tail(rows, plan))


def _head(ctx: JobContext, head: str) -> DataFrame:
    if head.startswith("join"):
        return _joined(ctx, head.partition(":")[2])
    rows = _events(ctx)
    if head == "distinct":
        return rows.dropDuplicates(COPIES)
    if head == "distinct_within_watermark":
        return rows.dropDuplicatesWithinWatermark(COPIES)
    return rows


def _events(ctx: JobContext, *name: str, **options: str) -> DataFrame:
    return events(ctx, *name, format=ctx.params.get("format", "csv"), **options)


def _joined(ctx: JobContext, how: str) -> DataFrame:
    """Return each row with the second of each row of the other side that follows it soon."""
    clicked = _events(ctx, "clicked", param="clicked").drop("v")
    clicked = clicked.withColumnsRenamed({"time": "clicked_at", "k": "clicked_k"})
    rows = _events(ctx).drop("v").join(clicked, F.expr(SOON), how)
    hit = F.coalesce(seconds("clicked_at"), F.lit(NO_MATCH)).alias("v")
    return rows.select("time", F.coalesce("k", "clicked_k").alias("k"), hit)


def _tail(rows: DataFrame, plan: dict[str, Any]) -> DataFrame:
    tail = plan["tail"]
    if tail == "rows":
        return rows.select(F.coalesce(seconds("time"), F.lit(NO_MATCH)).alias("t"), "k", "v")
    if tail == "timers":
        return _timers(rows)
    if tail == "timeouts":
        return _timeouts(rows)
    if tail == "sessions":
        return _sums(rows, F.session_window("time", f"{plan['size']} seconds"), "session_window")
    size, slide = f"{plan['size']} seconds", f"{plan['slide']} seconds"
    if tail == "windows":
        return _sums(rows, F.window("time", size, slide), "window")
    fine = rows.groupBy(F.window("time", size, slide), "k").agg(F.count("*").alias("n"))
    coarse = fine.groupBy(F.window(F.window_time("window"), f"{2 * plan['size']} seconds"))
    counted = coarse.agg(F.count("*").alias("groups"), F.sum("n").alias("n"))
    return counted.select(seconds("window.start").alias("start"), "groups", "n")


def _sums(rows: DataFrame, window: Any, name: str) -> DataFrame:
    counted = rows.groupBy(window, "k").agg(F.count("*").alias("n"), F.sum("v").alias("total"))
    bounds = [seconds(f"{name}.{bound}").alias(bound) for bound in ("start", "end")]
    return counted.select(*bounds, "k", "n", "total")


def _timers(rows: DataFrame) -> DataFrame:
    schema = "k string, start long, n long"
    return (
        in_buckets(rows).groupBy("k").transformWithState(PerBucket(), schema, "append", "eventTime")
    )


def _timeouts(rows: DataFrame) -> DataFrame:
    schema, state = "k string, start long, n long", "n long"
    grouped = in_buckets(rows).groupBy("k", "bucket")
    timeout = GroupStateTimeout.EventTimeTimeout
    return grouped.applyInPandasWithState(count_until_timeout, schema, state, "append", timeout)
