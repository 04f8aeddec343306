"""Three jobs, and what became of them in later versions; see ``test_changed_state.py``.

``counts`` groups events in windows, ``distinct`` drops duplicates, ``joined`` joins two streams.
"""

from __future__ import annotations

from typing import Any

from jobs import SCHEMA, events, seconds
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from airflow_provider.runtime import JobContext, files, spark_sink


def _counts(
    ctx: JobContext,
    *more: Column,
    window: tuple[str, ...] = ("10 seconds",),
    keys: tuple[Column | str, ...] = ("k",),
    value: str = "v",
    late: str = "5 seconds",
    where: str | None = None,
    having: str | None = None,
    name: str = "out",
) -> None:
    rows = events(ctx, watermark=("time", late))
    rows = rows if where is None else rows.where(where)
    total = [F.sum(value).alias("total")] if value else []
    counted = rows.groupBy(F.window("time", *window), *keys).agg(
        F.count("*").alias("n"), *total, *more
    )
    kept = counted if having is None else counted.where(having)
    columns = [column for column in kept.columns if column != "window"]
    _write(ctx, kept.select(seconds("window.start").alias("start"), *columns), name)


def _write(ctx: JobContext, rows: DataFrame, name: str = "out") -> None:
    ctx.write(name, rows, to=files(f"{ctx.params['output']}/{name}"))


def counts(ctx: JobContext) -> None:
    _counts(ctx)


def column_renamed(ctx: JobContext) -> None:
    _counts(ctx, F.sum("v").alias("sum_of_v"), value="")


def filter_after_state(ctx: JobContext) -> None:
    _counts(ctx, having="n > 1")


def shorter_delay(ctx: JobContext) -> None:
    _counts(ctx, late="2 seconds")


def other_window(ctx: JobContext) -> None:
    _counts(ctx, window=("20 seconds",))


def other_slide(ctx: JobContext) -> None:
    _counts(ctx, window=("10 seconds", "5 seconds"))


def other_key(ctx: JobContext) -> None:
    _counts(ctx, keys=(F.upper("k").alias("k"),))


def other_input(ctx: JobContext) -> None:
    _counts(ctx, F.sum(F.col("v") * 2).alias("total"), value="")


def filter_before_state(ctx: JobContext) -> None:
    _counts(ctx, where="v > 1")


def key_added(ctx: JobContext) -> None:
    _counts(ctx, keys=("k", (F.col("v") % 2).alias("odd")))


def aggregate_added(ctx: JobContext) -> None:
    _counts(ctx, F.max("v").alias("greatest"))


def nested_aggregate_added(ctx: JobContext) -> None:
    """Collect values, which the format of the output does not hold."""
    rows = events(ctx).groupBy(F.window("time", "10 seconds"), "k")
    counted = rows.agg(F.count("*").alias("n"), F.collect_list("v").alias("all"))
    output = files(f"{ctx.params['output']}/out", "csv")
    ctx.write("out", counted.select("window.start", "k", "n", "all"), to=output)


def aggregate_removed(ctx: JobContext) -> None:
    _counts(ctx, value="")


def other_type(ctx: JobContext) -> None:
    _counts(ctx, F.sum(F.col("v").cast("double")).alias("total"), value="")


def query_added(ctx: JobContext) -> None:
    _counts(ctx)
    _write(ctx, events(ctx, "again").select(seconds("time").alias("t"), "v"), "rows")


def query_renamed(ctx: JobContext) -> None:
    _counts(ctx, name="totals")


def distinct(ctx: JobContext) -> None:
    _distinct(ctx, "k")


def other_columns(ctx: JobContext) -> None:
    _distinct(ctx, "text")


def columns_added(ctx: JobContext) -> None:
    _distinct(ctx, "k", "v")


def _distinct(ctx: JobContext, *columns: str) -> None:
    rows = events(ctx).withColumn("text", F.col("v").cast("string"))
    rows = rows.dropDuplicatesWithinWatermark([*columns])
    _write(ctx, rows.select(seconds("time").alias("t"), "k", "v"))


_WITHIN = "l.k = r.k AND r.time >= l.time AND r.time <= l.time + INTERVAL {} SECONDS"


def joined(ctx: JobContext) -> None:
    _joined(ctx)


def other_join(ctx: JobContext) -> None:
    _joined(ctx, how="leftOuter")


def other_condition(ctx: JobContext) -> None:
    _joined(ctx, within=20)


def column_joined(ctx: JobContext) -> None:
    _joined(ctx, F.col("l.v").alias("w"))


def _joined(ctx: JobContext, *more: Column, how: str = "inner", within: int = 10) -> None:
    left: Any = events(ctx, "left").alias("l")
    right: Any = events(ctx, "right").alias("r")
    rows = left.join(right, F.expr(_WITHIN.format(within)), how)
    _write(ctx, rows.select(seconds("l.time").alias("t"), F.col("l.k"), F.col("r.v"), *more))


def checked(ctx: JobContext) -> None:
    _checked(ctx)


def column_read(ctx: JobContext) -> None:
    """Read one more column, which no query uses."""
    _checked(ctx, schema=f"{SCHEMA}, more string")


def counts_rules(ctx: JobContext) -> None:
    """Count rows by rules, which takes none of them out."""
    _checked(ctx, rule="k <> 'x'", on="count")


def keeps_other_rows(ctx: JobContext) -> None:
    _checked(ctx, value="v > 5")


def takes_no_records_out(ctx: JobContext) -> None:
    _checked(ctx, rejected=None)


def _checked(
    ctx: JobContext,
    *,
    schema: str = SCHEMA,
    rejected: str | None = "count",
    value: str = "v > 0",
    rule: str = "",
    on: str = "",
) -> None:
    rows = events(ctx, schema=schema, rejected=rejected)
    rows = ctx.expect(rows, "a value", value, on="quarantine")
    rows = ctx.expect(rows, "a rule", rule, on=on) if rule else rows
    counted = rows.dropDuplicatesWithinWatermark(["k", "v"]).groupBy(F.window("time", "10 seconds"))
    totals = counted.count().select(seconds("window.start").alias("start"), "count")
    output = ctx.params["output"]
    ctx.write("out", totals, to=files(f"{output}/out"), quarantine=files(f"{output}/kept"))


def state_before_counts(ctx: JobContext) -> None:
    rows = events(ctx).dropDuplicatesWithinWatermark(["k", "v"])
    counted = rows.groupBy(F.window("time", "10 seconds"), "k").agg(F.count("*").alias("n"))
    _write(ctx, counted.select(seconds("window.start").alias("start"), "k", "n"))


def fails_at_a_hundred(ctx: JobContext) -> None:
    """Count as before, until a value comes that the first version could take."""

    def check(value):  # type hints would tell Spark another kind of function
        if value is not None and value >= 100:
            raise ValueError(value)
        return True

    rows = events(ctx, watermark=("time", "5 seconds"))
    counted = rows.groupBy(F.window("time", "10 seconds"), "k").agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )
    kept = counted.where(F.udf(check, "boolean")("total"))
    _write(ctx, kept.select(seconds("window.start").alias("start"), "k", "n", "total"))


def input_removed(ctx: JobContext) -> None:
    _write(ctx, events(ctx, options={"cleanSource": "delete"}))


def through_spark_sink(ctx: JobContext) -> None:
    """Write what nobody can revert."""
    rows = events(ctx).groupBy(F.window("time", "10 seconds"), "k").count()
    ctx.write("out", rows.drop("window"), to=spark_sink("noop"))
