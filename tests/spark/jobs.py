"""Jobs that the tests run, in process and as ``spark-stream run tests/spark/jobs.py:NAME``.

Their input is CSV without a header: ``time, k, v`` (see ``streams.write_events``). Times leave a job
as whole seconds, so that every reader of the output sees the same numbers.
"""

# ruff: noqa: N802, N803 - a StatefulProcessor's methods and their arguments have Spark's names
from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres import postgres
from airflow_provider.runtime import JobContext, files, spark_sink

sys.path.insert(0, str(Path(__file__).parent))

from later_pyspark import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadMaxRows,
    SimpleDataSourceStreamReader,
    StatefulProcessor,
    StatefulProcessorHandle,
    SupportsTriggerAvailableNow,
)

SCHEMA = "time timestamp, k string, v int"


def events(
    ctx: JobContext, name: str = "events", *, param: str = "input", **options: Any
) -> DataFrame:
    """Read one folder of events, one file per batch if the run asks for it."""
    per_batch = ctx.params.get("files_per_batch")
    asked = {
        "format": "csv",
        "path": ctx.params[param],
        "schema": SCHEMA,
        "options": {"maxFilesPerTrigger": per_batch} if per_batch else {},
        "bounded": ctx.params.get("bounded", "yes") == "yes",
        "watermark": ("time", "5 seconds"),
    }
    return ctx.read(name, **{**asked, **options})


def write(ctx: JobContext, df: DataFrame, name: str = "out") -> None:
    ctx.write(name, df, to=files(ctx.params["output"]))


def seconds(column: str) -> Any:
    return F.col(column).cast("long")


def tumbling(df: DataFrame, *keys: str) -> DataFrame:
    """Count and sum in windows of ten seconds."""
    counted = df.groupBy(F.window("time", "10 seconds"), *keys).agg(
        F.count("*").alias("n"), F.sum("v").alias("total")
    )
    return counted.select(seconds("window.start").alias("start"), *keys, "n", "total")


def unpaced(ctx: JobContext) -> None:
    """Read with a limit that no target time changes."""
    write(ctx, events(ctx, adaptive_batches=False).select(seconds("time").alias("t"), "v"))


def slow_rows(ctx: JobContext) -> None:
    """Take a millisecond for every row."""

    def pause(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            time.sleep(0.001 * len(frame))
            yield frame

    slow = events(ctx).select(seconds("time").alias("t"), "v").mapInPandas(pause, "t long, v int")
    write(ctx, slow)


class Counting(DataSource):
    """Numbers up to a total, at most so many in a batch as its option ``rows`` says."""

    @classmethod
    def name(cls) -> str:
        return "counting"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CountingReader(int(self.options["rows"]), int(self.options["total"]))


class CountingReader(DataSourceStreamReader):
    def __init__(self, rows: int, total: int) -> None:
        self.rows, self.total = rows, total

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(self.rows)

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.total
        return {"n": min(start["n"] + rows, self.total)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition((start["n"], end["n"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        time.sleep(0.001 * (partition.value[1] - partition.value[0]))
        yield from ((n,) for n in range(*partition.value))

    def commit(self, end: dict[str, int]) -> None:
        pass


class Paging(DataSource):
    """Numbers up to a total from a simple reader, which hands out so many at a time."""

    @classmethod
    def name(cls) -> str:
        return "paging"

    def schema(self) -> str:
        return "n int"

    def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:
        return PagingReader(int(self.options["rows"]), int(self.options["total"]))


class PagingReader(SimpleDataSourceStreamReader):
    def __init__(self, rows: int, total: int) -> None:
        self.rows, self.total = rows, total

    def initialOffset(self) -> dict[str, int]:
        return {"n": 0}

    def read(self, start: dict[str, int]) -> tuple[Iterator[tuple[int]], dict[str, int]]:
        end = {"n": min(start["n"] + self.rows, self.total)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(
        self, start: dict[str, int], end: dict[str, int]
    ) -> Iterator[tuple[int]]:
        return iter([(n,) for n in range(start["n"], end["n"])])

    def commit(self, end: dict[str, int]) -> None:
        pass


def paging(ctx: JobContext) -> None:
    """Copy the numbers of a source that says with each read only how far that goes."""
    ctx.spark.dataSource.register(Paging)
    options = {"rows": "700", "total": "3000"}
    write(ctx, ctx.read("numbers", format="paging", options=options, bounded=True))


class Growing(DataSource):
    """Numbers up to a total that lies in a file, and may grow."""

    @classmethod
    def name(cls) -> str:
        return "growing"

    def schema(self) -> str:
        return "n int"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return GrowingReader(int(self.options["rows"]), self.options["total"])


class GrowingReader(CountingReader):
    def __init__(self, rows: int, location: str) -> None:
        super().__init__(rows, 0)
        self.location = Path(location)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:
        self.total = self.reaches()
        return super().latestOffset(start, limit)

    def reaches(self) -> int:
        return int(self.location.read_text())


class Targeting(Growing):
    """The same, which keeps to the total that was there when a start began."""

    @classmethod
    def name(cls) -> str:
        return "targeting"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return TargetingReader(int(self.options["rows"]), self.options["total"])


class TargetingReader(GrowingReader, SupportsTriggerAvailableNow):
    target: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = int(self.location.read_text())

    def reaches(self) -> int:
        return super().reaches() if self.target is None else self.target


def growing(ctx: JobContext) -> None:
    """Copy the numbers of a source of which the job says that its answer is its end."""
    source = Targeting if ctx.params.get("targets") else Growing
    ctx.spark.dataSource.register(source)
    options = {"rows": "8", "total": ctx.params["total"]}
    numbers = ctx.read(
        "numbers", format=source.name(), options=options, bounded=True, ends="latest"
    )
    write(ctx, numbers)


def rated(ctx: JobContext) -> None:
    """Copy ten numbers of each second since the first start."""
    rate = ctx.read("rate", format="rate", options={"rowsPerSecond": "10"}, bounded=True)
    write(ctx, rate.select("value"))


def until_a_time(ctx: JobContext) -> None:
    """Copy the files that were modified before a time."""
    ends = dt.datetime.fromisoformat(ctx.params["ends"])
    write(ctx, events(ctx, ends=ends).select(seconds("time").alias("t"), "v"))


def until_a_time_natively(ctx: JobContext) -> None:
    """Do so with a sink that cannot hold a batch."""
    ends = dt.datetime.fromisoformat(ctx.params["ends"])
    to = spark_sink("parquet", {"path": ctx.params["output"]})
    ctx.write("out", events(ctx, ends=ends), to=to)


def counting(ctx: JobContext) -> None:
    """Copy the numbers of a source whose rows take a millisecond each."""
    ctx.spark.dataSource.register(Counting)
    options = {"rows": ctx.params["rows"], "total": ctx.params["total"]}
    write(ctx, ctx.read("numbers", format="counting", options=options))


# --- the drain matrix ---------------------------------------------------------------------------


def tumbling_window(ctx: JobContext) -> None:
    write(ctx, tumbling(events(ctx), "k"))


def archived(ctx: JobContext) -> None:
    """Two files a batch, which Spark moves away when it has planned the next one."""
    options = {
        "cleanSource": "archive",
        "sourceArchiveDir": ctx.params["archive"],
        "maxFilesPerTrigger": "2",
    }
    write(ctx, events(ctx, options=options, watermark=None))


def window_over_window(ctx: JobContext) -> None:
    fine = events(ctx).groupBy(F.window("time", "10 seconds"), "k").agg(F.count("*").alias("n"))
    coarse = fine.groupBy(F.window(F.window_time("window"), "20 seconds")).agg(
        F.count("*").alias("groups"), F.sum("n").alias("n")
    )
    write(ctx, coarse.select(seconds("window.start").alias("start"), "groups", "n"))


def session_window(ctx: JobContext) -> None:
    write(ctx, sessions(events(ctx)))


def sessions(df: DataFrame) -> DataFrame:
    counted = df.groupBy(F.session_window("time", "4 seconds"), "k").agg(F.count("*").alias("n"))
    return counted.select(
        seconds("session_window.start").alias("start"),
        seconds("session_window.end").alias("end"),
        "k",
        "n",
    )


def joined(ctx: JobContext) -> DataFrame:
    shown = events(ctx, "shown", param="shown").withColumnsRenamed({"time": "shown_at", "k": "id"})
    clicked = events(ctx, "clicked", param="clicked")
    clicked = clicked.withColumnsRenamed({"time": "clicked_at", "k": "clicked_id"}).drop("v")
    soon = F.expr(
        "clicked_id = id AND clicked_at BETWEEN shown_at AND shown_at + INTERVAL 5 SECONDS"
    )
    return shown.join(clicked, soon, "leftOuter")


def outer_join(ctx: JobContext) -> None:
    write(ctx, when_clicked(ctx))


def when_clicked(ctx: JobContext) -> DataFrame:
    return joined(ctx).select(
        "id",
        seconds("shown_at").alias("shown"),
        F.coalesce(seconds("clicked_at"), F.lit(-1)).alias("clicked"),
    )


def full_join_bounded_once(ctx: JobContext) -> None:
    """Join rows of which nothing says until when those of one side can find a partner."""
    _join_fully(ctx, "b >= a")


def full_join_with_a_condition(ctx: JobContext) -> None:
    """Join rows with bounds on both sides, and a condition on one."""
    _join_fully(ctx, "b BETWEEN a AND a + INTERVAL 3 SECONDS AND v > 0")


def half_marked_join(ctx: JobContext) -> None:
    """Join rows with a watermark on the one side alone whose rows all find a partner, or on one."""
    how = ctx.params["how"]
    marked = {"watermark": ("time", "5 seconds")}
    one = events(
        ctx, "one", param="shown", **({"watermark": None} if how != "rightOuter" else marked)
    )
    two = events(
        ctx, "two", param="clicked", **({"watermark": None} if how == "rightOuter" else marked)
    )
    left, right = (
        one.withColumnsRenamed({"time": "a", "k": "id"}),
        two.withColumnRenamed("time", "b"),
    )
    near = F.expr("id = k AND b BETWEEN a - INTERVAL 3 SECONDS AND a + INTERVAL 3 SECONDS")
    write(ctx, left.join(right.drop("v"), near, how).select("id", "k"))


def _join_fully(ctx: JobContext, near: str) -> None:
    one = events(ctx, "one", param="shown").withColumnsRenamed({"time": "a", "k": "id"})
    two = events(ctx, "two", param="clicked").withColumnsRenamed({"time": "b"}).drop("v")
    write(ctx, one.join(two, F.expr(f"id = k AND {near}"), "fullOuter").select("id", "k"))


def join_then_aggregation(ctx: JobContext) -> None:
    counted = (
        joined(ctx)
        .groupBy(F.window("shown_at", "10 seconds"))
        .agg(F.count("*").alias("shown"), F.count("clicked_at").alias("clicked"))
    )
    write(ctx, counted.select(seconds("window.start").alias("start"), "shown", "clicked"))


def deduplication(ctx: JobContext) -> None:
    """Keep one row for each key and value."""
    distinct = events(ctx).dropDuplicatesWithinWatermark(["k", "v"])
    write(ctx, distinct.select("k", "v"))


def deduplication_then_window(ctx: JobContext) -> None:
    write(ctx, tumbling(events(ctx).dropDuplicatesWithinWatermark(["k", "v"]), "k"))


class PerBucket(StatefulProcessor):
    """Counts rows in buckets of ten seconds; an event-time timer at a bucket's end emits it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._counts: Any = handle.getMapState("counts", "bucket long", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for row in rows:
            self._add(row["bucket"], 1)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        bucket = expiredTimerInfo.getExpiryTimeInMs() // 1000 - 10
        yield Row(k=key[0], start=bucket, n=self._take(bucket))

    def close(self) -> None:
        """Nothing is held."""

    def _add(self, bucket: int, n: int) -> None:
        before = self._counts.getValue((bucket,))[0] if self._counts.containsKey((bucket,)) else 0
        self._counts.updateValue((bucket,), (before + n,))
        self._handle.registerTimer((bucket + 10) * 1000)

    def _take(self, bucket: int) -> int:
        n = self._counts.getValue((bucket,))[0]
        self._counts.removeKey((bucket,))
        return int(n)


class Worth(StatefulProcessor):
    """Keeps accounts by their currency and its rate; a new rate tells what each is worth by it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._rate: Any = handle.getValueState("rate", "rate int")
        self._accounts = handle.getMapState("accounts", "account string", "balance int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self._accounts.updateValue((initialState["account"],), (initialState["balance"],))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: row["time"]):
            before = self._rate.get()[0] if self._rate.exists() else 0
            self._rate.update((row["v"],))
            for (account,), (balance,) in sorted(self._accounts.iterator()):
                yield Row(account=account, before=balance * before, now=balance * row["v"])

    def close(self) -> None:
        """Nothing is held."""


def worth(ctx: JobContext) -> None:
    accounts = ctx.initial_state("accounts", format="json", path=ctx.params["accounts"])
    rates = events(ctx).groupBy("k")
    schema = "account string, before long, now long"
    write(
        ctx,
        rates.transformWithState(
            Worth(), schema, "append", "eventTime", initialState=accounts.groupBy("k")
        ),
    )


class PerBucketInPandas(PerBucket):
    """The same over pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        for frame in rows:
            for bucket, n in frame.groupby("bucket").size().items():
                self._add(int(bucket), int(n))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[pd.DataFrame]:
        bucket = expiredTimerInfo.getExpiryTimeInMs() // 1000 - 10
        yield pd.DataFrame({"k": [key[0]], "start": [bucket], "n": [self._take(bucket)]})


def bucketed(ctx: JobContext) -> DataFrame:
    return in_buckets(events(ctx))


def in_buckets(df: DataFrame) -> DataFrame:
    return df.withColumn("bucket", seconds("time") - seconds("time") % 10)


def timers(ctx: JobContext) -> None:
    write(ctx, per_bucket(events(ctx)))


def per_bucket(df: DataFrame) -> DataFrame:
    rows, schema = in_buckets(df).groupBy("k"), "k string, start long, n long"
    return rows.transformWithState(PerBucket(), schema, "append", "eventTime")


def everything(ctx: JobContext) -> None:
    """Write with every kind of state, each by a query of its own."""
    df = events(ctx)
    made = {
        "windows": tumbling(df, "k"),
        "sessions": sessions(df),
        "distinct": df.dropDuplicatesWithinWatermark(["k", "v"]).select("k", "v"),
        "timers": per_bucket(df),
        "joined": when_clicked(ctx),
    }
    for name, rows in made.items():
        ctx.write(name, rows, to=files(f"{ctx.params['output']}/{name}"))


def timers_in_pandas(ctx: JobContext) -> None:
    rows = bucketed(ctx).groupBy("k")
    schema = "k string, start long, n long"
    write(ctx, rows.transformWithStateInPandas(PerBucketInPandas(), schema, "append", "eventTime"))


def count_until_timeout(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Count a bucket's rows; its event-time timeout emits the count."""
    if state.hasTimedOut:
        (n,) = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "start": [key[1]], "n": [n]})
        return
    before = state.get[0] if state.exists else 0
    state.update((before + sum(len(frame) for frame in frames),))
    state.setTimeoutTimestamp((int(key[1]) + 10) * 1000)


def timeouts_in_pandas(ctx: JobContext) -> None:
    write(ctx, counted_until_timeout(bucketed(ctx)))


def timeouts_in_the_year_10000(ctx: JobContext) -> None:
    """Set them for ordinary rows: pandas has no times as late as Spark's."""
    write(ctx, counted_until_timeout(bucketed(ctx).withColumn("bucket", F.lit(253_402_300_790))))


def counted_until_timeout(df: DataFrame) -> DataFrame:
    return df.groupBy("k", "bucket").applyInPandasWithState(
        count_until_timeout,
        "k string, start long, n long",
        "n long",
        "append",
        GroupStateTimeout.EventTimeTimeout,
    )


def counted_moments(ctx: JobContext) -> None:
    """Count by event time, which a row may not have."""
    counted = events(ctx).groupBy("time").agg(F.count("*").alias("n"))
    write(ctx, counted.select(seconds("time").alias("second"), "n"))


def late_seconds(ctx: JobContext) -> None:
    """Count each key in each second, so that each row is a group."""
    counted = events(ctx).groupBy(F.window("time", "1 second"), "k").agg(F.count("*").alias("n"))
    write(ctx, counted.select(seconds("window.start").alias("start"), "k", "n"))


def known_for_ever(ctx: JobContext) -> None:
    """Write each key once, and forget none."""
    write(ctx, events(ctx, watermark=None).select("k").dropDuplicates())


class RenewedAlarm(StatefulProcessor):
    """Set a timer ten seconds after each row, and another one whenever a timer fires.

    Args:
        after: what the next timer is ten seconds after: the last timer's time, or the watermark.
        at_ms: the time of all timers that rows set; None for ten seconds after the row, or after
            the watermark.
    """

    def __init__(self, after: str, at_ms: int | None = None) -> None:
        self._after = after
        self._at_ms = at_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for second in self._seconds(rows):
            self._handle.registerTimer(self._at_ms or self._next(second * 1000, timerValues))
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        self._handle.registerTimer(self._next(at_ms, timerValues))
        at = None
        if at_ms < YEAR_10000_MS:
            at = dt.datetime.fromtimestamp(at_ms // 1000, dt.timezone.utc).replace(tzinfo=None)
        yield self._row(k=key[0], second=at_ms // 1000, time=at)

    def _next(self, at_ms: int, timers: Any) -> int:
        since = timers.getCurrentWatermarkInMs() if self._after == "watermark" else at_ms
        return int(since) + 10_000

    def _seconds(self, rows: Any) -> list[int]:
        return [int(row["second"]) for row in rows if row["second"] is not None]

    def _row(self, **values: Any) -> Any:
        return Row(**values)

    def close(self) -> None:
        """Nothing is held."""


class RenewedAlarmInPandas(RenewedAlarm):
    """The same over pandas frames."""

    def _seconds(self, rows: Any) -> list[int]:
        return [int(second) for frame in rows for second in frame["second"].dropna()]

    def _row(self, **values: Any) -> Any:
        return pd.DataFrame([values]).astype({"time": "datetime64[ns]"})


YEAR_10000_MS = 253_402_300_800_000


def renewed(ctx: JobContext, df: DataFrame, after: str) -> DataFrame:
    """Let an alarm renew itself, in the form that the run asks for."""
    schema, column = "k string, second long, time timestamp", "time"
    at_ms = int(ctx.params["at_ms"]) if "at_ms" in ctx.params else None
    timed: dict[str, Any] = {
        "outputMode": "append",
        "timeMode": "eventTime",
        "eventTimeColumnName": column,
    }
    rows = df.groupBy("k")
    if ctx.params.get("form") == "pandas":
        alarm = RenewedAlarmInPandas(after, at_ms)
        return rows.transformWithStateInPandas(alarm, schema, **timed)
    return rows.transformWithState(RenewedAlarm(after, at_ms), schema, **timed)


def renewed_timers(ctx: JobContext) -> None:
    df = events(ctx).withColumn("second", seconds("time"))
    write(ctx, renewed(ctx, df, ctx.params["after"]).select("k", "second"))


def chained_timers(ctx: JobContext) -> None:
    """Set the timers of an alarm by those of another one."""
    df = events(ctx).withColumn("second", seconds("time"))
    both = renewed(ctx, renewed(ctx, df, "timer"), ctx.params["after"])
    write(ctx, both.select("k", "second"))


def windowed_timers(ctx: JobContext) -> None:
    """Set the timers of an alarm by windows, which are flushed in the drain."""
    counted = events(ctx).groupBy(F.window("time", "10 seconds"), "k").count()
    timed = counted.withColumn("time", F.window_time("window"))
    rows = timed.select("k", "time", seconds("time").alias("second"))
    write(ctx, renewed(ctx, rows, ctx.params["after"]).select("k", "second"))


def renew_timeout(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Set the timeout anew whenever it has passed."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]]})
    state.update((1,))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 10_000)


def renewed_timeouts(ctx: JobContext) -> None:
    by_key = events(ctx).groupBy("k")
    rows = by_key.applyInPandasWithState(
        renew_timeout, "k string", "n long", "append", GroupStateTimeout.EventTimeTimeout
    )
    write(ctx, rows)


# --- edges --------------------------------------------------------------------------------------


def rows_of(df: DataFrame) -> DataFrame:
    return df.select(seconds("time").alias("second"), "k", "v")


def native_windows(ctx: JobContext) -> None:
    """Write windows with Spark's own file sink."""
    sink = spark_sink("parquet", {"path": ctx.params["output"]})
    ctx.write("out", tumbling(events(ctx), "k"), to=sink)


def native_and_files(ctx: JobContext) -> None:
    """Ask for two phases and for one in the same query."""
    sinks: list[Any] = [files(ctx.params["output"]), spark_sink("noop")]
    ctx.write("out", tumbling(events(ctx), "k"), to=sinks)


def no_state(ctx: JobContext) -> None:
    write(ctx, rows_of(events(ctx)))


def two_queries(ctx: JobContext) -> None:
    """Write windows and the rows themselves, each by a query of its own."""
    df = events(ctx)
    output = ctx.params["output"]
    ctx.write("windows", tumbling(df, "k"), to=files(f"{output}/windows"))
    ctx.write("rows", rows_of(df), to=files(f"{output}/rows"))


def two_sinks(ctx: JobContext) -> None:
    output = Path(ctx.params["output"])
    sinks = [files(str(output / "one")), files(str(output / "two"), format="json")]
    ctx.write("out", tumbling(events(ctx), "k"), to=sinks)


def partitioned(ctx: JobContext) -> None:
    sink = files(ctx.params["output"], partition_by=("k",))
    ctx.write("out", tumbling(events(ctx), "k"), to=sink)


def in_format(ctx: JobContext) -> None:
    sink = files(ctx.params["output"], format=ctx.params["format"])
    ctx.write("out", tumbling(events(ctx), "k"), to=sink, operators=["windows"])


def united_with_itself(ctx: JobContext) -> None:
    df = events(ctx)
    write(ctx, tumbling(df.union(df), "k"))


def joined_with_itself(ctx: JobContext) -> None:
    df = events(ctx)
    same = F.expr("a.k = b.k AND a.time = b.time")
    write(
        ctx,
        df.alias("a").join(df.alias("b"), same).select(seconds("a.time").alias("t"), "a.k", "b.v"),
    )


def two_sources(ctx: JobContext) -> None:
    one, other = events(ctx, "one"), events(ctx, "other", param="other")
    write(ctx, tumbling(one.union(other), "k"))


def half_bounded(ctx: JobContext) -> None:
    """Count what is live together with what was there before."""
    live = events(ctx, "live", bounded=False)
    past = events(ctx, "past", param="past", bounded=True)
    write(ctx, tumbling(live.union(past), "k"))


def half_bounded_join(ctx: JobContext) -> None:
    """Give each live row what its key was worth up to 15 seconds before it; -1 for nothing."""
    live = events(ctx, "live", bounded=False)
    past = events(ctx, "past", param="past", bounded=True)
    past = past.withColumnsRenamed({"time": "past_time", "k": "past_k", "v": "past_v"})
    before = F.expr("k = past_k AND past_time BETWEEN time - INTERVAL 15 SECONDS AND time")
    both = live.join(past, before, "leftOuter")
    worth = F.coalesce("past_v", F.lit(-1)).alias("worth")
    write(ctx, both.select(seconds("time").alias("t"), "k", worth))


def half_bounded_rate(ctx: JobContext) -> None:
    """Ask a source to end that is not of files."""
    past = ctx.read("past", format="rate", bounded=True, watermark=("timestamp", "5 seconds"))
    past = past.select(F.col("timestamp").alias("time"), F.lit("r").alias("k"), "value")
    write(ctx, tumbling(events(ctx, "live", bounded=False).union(past), "k"))


def late_watermark(ctx: JobContext) -> None:
    """Set a bounded source's watermark where no marker can follow it."""
    live = events(ctx, "live", bounded=False)
    past = events(ctx, "past", param="past", watermark=None).withWatermark("time", "5 seconds")
    write(ctx, tumbling(live.union(past), "k"))


def often_silent(ctx: JobContext) -> None:
    """Count two streams, one of which may be silent."""
    loud = events(ctx, "loud")
    silent = events(ctx, "silent", param="silent", idle_timeout=ctx.params["idle_timeout"])
    write(ctx, tumbling(loud.union(silent), "k"))


def one_ends(ctx: JobContext) -> None:
    """Count the past and the live rows, each by a query of its own."""
    output = Path(ctx.params["output"])
    live = events(ctx, "live", bounded=False)
    past = events(ctx, "past", param="past", bounded=True)
    ctx.write("past", tumbling(past, "k"), to=files(str(output / "past")))
    ctx.write("live", tumbling(live, "k"), to=files(str(output / "live")))


def without_watermark(ctx: JobContext) -> None:
    write(ctx, events(ctx, watermark=None).groupBy("k").count())


def foreign_source(ctx: JobContext) -> None:
    """Read a stream without telling the context."""
    write(ctx, rows_of(ctx.spark.readStream.csv(ctx.params["input"], schema=SCHEMA)))


def traced(ctx: JobContext) -> None:
    """Note each callback, and what readers saw when the job finished."""
    trace = Path(ctx.params["trace"])

    def note(word: str) -> None:
        with trace.open("a", encoding="utf-8") as notes:
            notes.write(f"{word}\n")

    def finish() -> None:
        note(f"finish:{_published(ctx.params['output'])}")
        failing = ctx.params.get("failing")
        if failing is not None and Path(failing).exists():
            raise OSError(failing)

    ctx.on_finish(finish)
    ctx.on_close(lambda: note("close"))
    tumbling_window(ctx)


def _published(output: str) -> int:
    found = list(Path(output).glob("*.parquet"))
    return sum(len(pd.read_parquet(path)) for path in found)


# --- several queries ----------------------------------------------------------------------------


def chain(ctx: JobContext) -> None:
    """Sum in windows of 10, of those of 30, and of those of 60 seconds, each read from a table."""
    output = Path(ctx.params["output"])
    ctx.write("fine", tumbling(events(ctx), "k"), to=files(str(output / "fine")))
    for name, above, size in (("coarse", "fine", 30), ("top", "coarse", 60)):
        ctx.write(
            name, _coarser(ctx, str(output / above), above, size), to=files(f"{output}/{name}")
        )


def _coarser(ctx: JobContext, path: str, name: str, size: int) -> DataFrame:
    bounded = ctx.params.get("bounded", "yes") == "yes"
    schema = "start long, k string, n long, total long"
    fine = ctx.read(name, format="parquet", path=path, schema=schema, bounded=bounded)
    timed = fine.withColumn("time", F.timestamp_seconds("start")).withWatermark("time", "0 seconds")
    summed = timed.groupBy(F.window("time", f"{size} seconds"), "k").agg(
        F.sum("n").alias("n"), F.sum("total").alias("total")
    )
    return summed.select(seconds("window.start").alias("start"), "k", "n", "total")


# --- bad input ----------------------------------------------------------------------------------


def no_query(ctx: JobContext) -> None:
    events(ctx)


def one_name_twice(ctx: JobContext) -> None:
    df = events(ctx)
    write(ctx, df, "twin")
    write(ctx, df, "twin")


def unknown_sink(ctx: JobContext) -> None:
    ctx.write("out", events(ctx), to="console")  # type: ignore[arg-type]


def missing_param(ctx: JobContext) -> None:
    write(ctx, events(ctx, param="where_the_events_are"))


def marked_rows(ctx: JobContext) -> None:
    """Give each row a UUID, another one at every attempt, and write to the sink that is asked for."""
    make: dict[str, Callable[[str], Any]] = {
        "files": files,
        "partitioned": lambda location: files(location, partition_by="k"),
        "delta": delta,
        "iceberg": lambda location: iceberg("ns.out", catalog=json.loads(location)),
        "postgres": lambda location: postgres(location, "out"),
        "upsert": lambda location: postgres(location, "out", keys=["v"]),
    }
    rows = events(ctx).select("v", "k", F.expr("uuid()").alias("mark"))
    ctx.write("out", rows, to=make[ctx.params["sink"]](ctx.params["location"]))


def raising(ctx: JobContext) -> None:
    events(ctx)
    raise ZeroDivisionError("no such day")


# --- crashes ------------------------------------------------------------------------------------


def gated(ctx: JobContext) -> None:
    """Hold the first batch back until the gate's file is there."""
    gate, prefix = ctx.params["gate"], sys.prefix

    def passes(_):  # type hints would tell Spark another kind of function
        if sys.prefix != prefix:
            raise ImportError(f"the driver runs in {prefix}, its worker in {sys.prefix}")
        deadline = time.monotonic() + 120
        while not os.path.exists(gate):
            if time.monotonic() > deadline:
                raise TimeoutError(gate)
            time.sleep(0.05)
        return True

    held = events(ctx).filter(F.udf(passes, "boolean")("k"))
    write(ctx, tumbling(held, "k"))


def exiting(ctx: JobContext) -> None:
    """End the process in ``on_finish``, as a job that knows no better; once."""
    left = Path(ctx.params["left"])

    def leave() -> None:
        if not left.exists():
            left.touch()
            os._exit(0)

    ctx.on_finish(leave)
    tumbling_window(ctx)
