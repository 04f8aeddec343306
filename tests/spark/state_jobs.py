"""Stateful queries of every kind over rows with nulls, nested values and time zones.

Their input is JSON: ``time`` with a zone, ``k`` and ``n`` that may be null, ``v``, and ``location``.
"""

# ruff: noqa: N802, N803 - a StatefulProcessor's methods and their arguments have Spark's names
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from jobs import events
from later_pyspark import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from airflow_provider.runtime import JobContext, files

LOCATION = "struct<city: string, tags: array<string>>"
SCHEMA = f"time timestamp, k string, n int, v int, location {LOCATION}"
FAR_MS = 4_102_444_800_000  # 2100: no timer of these tests goes off
TTL_MS = 3_600_000
ALARM_MS = 1_000


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """Read one file in each batch; nothing is ever late."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return reader.json(str(folder)).withWatermark("time", "1 day")


def aggregated(rows: DataFrame) -> DataFrame:
    several = F.count("*"), F.sum("v"), F.avg("v"), F.min("n"), F.max("time"), F.stddev("v")
    return rows.groupBy("k", "location").agg(*several, F.collect_set("v"))


def windowed(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("time", "10 minutes"), "k").agg(F.max("v"))


def in_sessions(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.session_window("time", "5 minutes"), "k").agg(F.sum("v"))


def total(rows: DataFrame) -> DataFrame:
    return rows.agg(F.sum("v"))


def deduplicated(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicates(["k", "n"])


def deduplicated_for_a_while(rows: DataFrame) -> DataFrame:
    return rows.dropDuplicatesWithinWatermark(["k", "n"])


def joined(rows: DataFrame) -> DataFrame:
    left = rows.select("time", "k", "location")
    right = rows.select(F.col("time").alias("t2"), F.col("k").alias("k2"), "v")
    soon = F.expr("k = k2 AND t2 BETWEEN time AND time + INTERVAL 1 HOUR")
    return left.join(right, soon)


def joined_in_full(rows: DataFrame) -> DataFrame:
    """Of the right side only what can match is kept; of the left one all, also what has no key."""
    left = rows.select("time", "k", "location")
    right = rows.select(F.col("time").alias("t2"), F.col("k").alias("k2"), "v")
    soon = F.expr("k = k2 AND greatest(v, 13) <> 13 AND t2 BETWEEN time AND time + INTERVAL 1 HOUR")
    return left.join(right, soon, "fullOuter")


def first_two(rows: DataFrame) -> DataFrame:
    return rows.limit(2)


class Remembering(StatefulProcessor):
    """Keeps values, lists and maps, some of which expire, and timers for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._last: Any = handle.getValueState("last", f"total long, location {LOCATION}", TTL_MS)
        self._all = handle.getListState("all", "n int")
        self._cities: Any = handle.getMapState(
            "cities", "city string", "times int, location " + LOCATION
        )
        self._recent = handle.getListState("recent", f"v int, location {LOCATION}", TTL_MS)
        self._numbers = handle.getMapState(
            "numbers", "n int, v int", f"location {LOCATION}", TTL_MS
        )

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda each: each["v"]):
            before = self._last.get()[0] if self._last.exists() else 0
            found = row["location"]
            location = (found["city"], list(found["tags"])) if found is not None else None
            self._last.update((before + row["v"], location))
            self._all.appendValue((row["n"],))
            city = (found["city"] if found is not None else None,)
            times = self._cities.getValue(city)[0] if self._cities.containsKey(city) else 0
            self._cities.updateValue(city, (times + 1, location))
            self._recent.appendValue((row["v"], location))
            self._numbers.updateValue((row["n"], row["v"]), (location,))
            self._handle.registerTimer(FAR_MS + row["v"])
        return iter(())

    def close(self) -> None:
        """Nothing is held."""


def remembered(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").transformWithState(
        Remembering(), "k string", "update", "processingTime"
    )


class Waiting(StatefulProcessor):
    """Keeps a sum, and timers of event time, for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total: Any = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        for row in rows:
            before = self._total.get()[0] if self._total.exists() else 0
            self._total.update((before + row["v"],))
            self._handle.registerTimer(FAR_MS + row["v"])
        return iter(())

    def close(self) -> None:
        """Nothing is held."""


def waited_for(rows: DataFrame) -> DataFrame:
    """Keep state twice: to drop duplicates, of which there are none, and in a processor."""
    once = rows.dropDuplicates(["k", "v"])
    return once.groupBy("k").transformWithState(Waiting(), "k string", "append", "eventTime")


def keep_sum(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Keep the sum, and whether a row had no number; time out at the end of the century."""
    before, had_null = state.get if state.exists else (0, False)
    for frame in frames:
        before += int(frame["v"].sum())
        had_null = had_null or bool(frame["n"].isna().any())
    state.update((before, had_null))
    state.setTimeoutTimestamp(FAR_MS + before)
    yield pd.DataFrame({"k": [key[0]]})


def summed_in_pandas(rows: DataFrame) -> DataFrame:
    grouped = rows.select("time", "k", "n", "v").groupBy("k")
    timeout = GroupStateTimeout.EventTimeTimeout
    return grouped.applyInPandasWithState(
        keep_sum, "k string", "total long, had_null boolean", "update", timeout
    )


# --- a job for the runtime ----------------------------------------------------------------------


def two_queries(ctx: JobContext) -> None:
    """Windows; and windows over what was deduplicated, whose operators have names: the last one first."""
    rows = events(ctx, watermark=("time", "1 day"))
    windows = rows.groupBy(F.window("time", "10 seconds"), "k").agg(F.sum("v").alias("total"))
    ctx.write("windows", windows, to=files(f"{ctx.params['output']}/windows"))
    again = events(ctx, "again", watermark=("time", "1 day"))
    once = again.dropDuplicatesWithinWatermark(["k", "v"])
    counted = once.groupBy(F.window("time", "10 seconds"), "k").agg(F.count("*").alias("n"))
    to = files(f"{ctx.params['output']}/counted")
    ctx.write("counted", counted, to=to, operators=["counts", "once"])


class Alarm(StatefulProcessor):
    """Emits a key and its number of rows a second after the first of them, by the clock."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._count: Any = handle.getValueState("n", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        before = self._count.get()[0] if self._count.exists() else 0
        self._count.update((before + len(list(rows)),))
        if not before:
            self._handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + ALARM_MS)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], n=self._count.get()[0])

    def close(self) -> None:
        """Nothing is held."""


def count_by_the_clock(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Emit a key and its number of rows a second after the last of them, by the clock."""
    before = state.get[0] if state.exists else 0
    if state.hasTimedOut:
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [before]})
        return
    state.update((before + sum(len(frame) for frame in frames),))
    state.setTimeoutDuration(ALARM_MS)


def alarms(ctx: JobContext) -> None:
    """Emit by timers and by timeouts of the clock, each in a query of its own."""
    by_key, schema = events(ctx, bounded=False).groupBy("k"), "k string, n long"
    timeout = GroupStateTimeout.ProcessingTimeTimeout
    made = {
        "timers": by_key.transformWithState(Alarm(), schema, "append", "processingTime"),
        "timeouts": by_key.applyInPandasWithState(
            count_by_the_clock, schema, "n long", "append", timeout
        ),
    }
    for name, rows in made.items():
        ctx.write(name, rows, to=files(f"{ctx.params['output']}/{name}"))
