"""Jobs whose result is to be the same as streams and as batch jobs; the input is that of jobs.py."""

# ruff: noqa: N802, N803 - a StatefulProcessor's methods and their arguments have Spark's names
from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files, spark_sink

sys.path.insert(0, str(Path(__file__).parent))

from jobs import SCHEMA, events, rows_of, seconds, tumbling, write
from later_pyspark import StatefulProcessor, StatefulProcessorHandle

SOON = "clicked_id = id AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 5 SECONDS"


def sliding_window(ctx: JobContext) -> None:
    counted = events(ctx).groupBy(F.window("time", "10 seconds", "5 seconds"), "k").count()
    write(ctx, counted.select(seconds("window.start").alias("start"), "k", "count"))


def distinct(ctx: JobContext) -> None:
    write(ctx, events(ctx).dropDuplicates(["k", "v"]).select("k", "v"))


def named(ctx: JobContext) -> None:
    """Look each key up in a table that the job reads by itself."""
    names = ctx.spark.createDataFrame([("a", "Ann"), ("b", "Bob")], "k string, name string")
    found = events(ctx).join(F.broadcast(names), "k", "left")
    write(ctx, found.select("k", "v", F.coalesce("name", F.lit("?")).alias("name")))


def doubled(ctx: JobContext) -> None:
    def double(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(v=2 * frame["v"])[["k", "v"]]

    write(ctx, events(ctx).mapInPandas(double, "k string, v int"))


def _joined(ctx: JobContext, how: str) -> None:
    shown = events(ctx, "shown", param="shown").withColumnsRenamed({"time": "shown_at", "k": "id"})
    clicked = events(ctx, "clicked", param="clicked").drop("v")
    clicked = clicked.withColumnsRenamed({"time": "clicked_at", "k": "clicked_id"})
    rows = shown.join(clicked, F.expr(SOON), how)
    columns = ("shown_at", "clicked_at") if how != "leftSemi" else ("shown_at",)
    times = [F.coalesce(seconds(column), F.lit(-1)).alias(column) for column in columns]
    write(ctx, rows.select(*times))


def inner_join(ctx: JobContext) -> None:
    _joined(ctx, "inner")


def full_join(ctx: JobContext) -> None:
    _joined(ctx, "fullOuter")


def semi_join(ctx: JobContext) -> None:
    _joined(ctx, "leftSemi")


class Known(StatefulProcessor):
    """Emits a key the first time it is seen; no timers."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        if not self._seen.exists():
            self._seen.update((1,))
            yield Row(k=key[0])

    def close(self) -> None:
        """Nothing is held."""


def known_keys(ctx: JobContext) -> None:
    write(ctx, events(ctx).groupBy("k").transformWithState(Known(), "k string", "append", "none"))


def limited(ctx: JobContext) -> None:
    write(ctx, rows_of(events(ctx)).limit(3))


def rolling(ctx: JobContext) -> None:
    """Count per key, each count in the place of the one before."""
    counted = events(ctx, watermark=None).groupBy("k").agg(F.count("*").alias("n"))
    sink = postgres(ctx.params["location"], "counts", keys=["k"])
    ctx.write("out", counted, to=sink, output_mode="update")


def upserted(ctx: JobContext) -> None:
    """Keep each key's last row."""
    sink = postgres(ctx.params["location"], "counts", keys=["k"])
    ctx.write("out", rows_of(events(ctx)).select("k", F.col("v").cast("long").alias("n")), to=sink)


# --- what a batch job cannot be -----------------------------------------------------------------


def unbounded(ctx: JobContext) -> None:
    write(ctx, rows_of(events(ctx, bounded=False)))


def to_native(ctx: JobContext) -> None:
    ctx.write("out", tumbling(events(ctx), "k"), to=spark_sink("noop"))


def chained(ctx: JobContext) -> None:
    """Read with one query what another one writes."""
    between = Path(ctx.params["output"]) / "between"
    between.mkdir(parents=True, exist_ok=True)
    ctx.write("first", events(ctx).select("k", "v"), to=files(str(between), format="json"))
    second = ctx.read(
        "second", format="json", path=str(between), schema="k string, v int", bounded=True
    )
    ctx.write("second", second, to=files(str(Path(ctx.params["output"]) / "second")))


def cleaning(ctx: JobContext) -> None:
    write(ctx, rows_of(events(ctx, options={"cleanSource": "delete"})))


def foreign_stream(ctx: JobContext) -> None:
    write(ctx, rows_of(ctx.spark.readStream.csv(ctx.params["input"], schema=SCHEMA)))


def not_its_own(ctx: JobContext) -> None:
    """Write a table that the context does not know."""
    events(ctx)
    write(ctx, ctx.spark.range(3))


def filtered_join(ctx: JobContext) -> None:
    def read(name: str) -> DataFrame:
        path = ctx.params["input"]
        return ctx.read(name, format="json", path=path, schema="k int, v string", bounded=True)

    left, right = read("left"), read("right").where("v = 'a'")
    ctx.write("out", left.join(right, "k").select("k"), to=files(ctx.params["output"]))


def sorted_rows(ctx: JobContext) -> None:
    """Ask for an order, which no stream has."""
    df: DataFrame = rows_of(events(ctx))
    write(ctx, df.orderBy("second").limit(2))


# --- what fails, or takes its time --------------------------------------------------------------


def one_fails(ctx: JobContext) -> None:
    """Write two queries, of which one fails while a file is there."""
    failing = ctx.params["failing"]

    def check(k):  # type hints would tell Spark another kind of function
        if Path(failing).exists():
            raise OSError(failing)
        return k

    df, output = events(ctx), Path(ctx.params["output"])
    ctx.write("rows", rows_of(df), to=files(str(output / "rows")))
    checked = df.withColumn("k", F.udf(check)("k"))
    ctx.write("windows", tumbling(checked, "k"), to=files(str(output / "windows")))


def modes_seen(ctx: JobContext) -> None:
    """Note the mode of each call."""
    seen = Path(ctx.params["trace"])
    before = json.loads(seen.read_text()) if seen.exists() else []
    seen.write_text(json.dumps([*before, ctx.mode]))
    write(ctx, tumbling(events(ctx), "k"))
