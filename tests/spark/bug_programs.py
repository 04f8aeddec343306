"""Programs of plain PySpark, each of which a known bug of Spark answers wrongly as a stream."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

Row = dict[str, Any]
Step = Mapping[str, Sequence[Row]]
Read = Callable[[str], DataFrame]

EVENTS = "k string, t timestamp, n int, u timestamp, f double"
FLUSH = "flush"
"""Key of the rows that move the watermarks past all others."""
WITHIN = "t2 BETWEEN t1 - INTERVAL 5 SECONDS AND t1 + INTERVAL 5 SECONDS"


class Program(NamedTuple):
    """A query over the sources a and b.

    Attributes:
        bug: the name of the known bug.
        steps: the rows of each batch, by source.
        query: the query; its output has the column k, or others that tell a flush from data.
    """

    bug: str
    steps: Sequence[Step]
    query: Callable[[Read], DataFrame]
    mode: str = "append"
    flushes: bool = True

    def sources(self) -> set[str]:
        return {name for step in self.steps for name in step}


def at(second: float) -> str:
    """Return a time as JSON has it."""
    return datetime.fromtimestamp(second, timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")


def row(k: str | None, t: float | None = None, **more: Any) -> Row:
    """Return an event; its *u* is a second, too."""
    times = {name: at(value) for name, value in (("t", t), ("u", more.pop("u", None))) if value}
    return {"k": k, **times, **more}


def flushes(sources: set[str]) -> list[Step]:
    """Return batches whose rows move the watermarks on, and match nothing."""
    return [
        {name: [row(f"{FLUSH} pq {name} {hour}", 3600 * hour, u=3600 * hour)] for name in sources}
        for hour in (1, 2)
    ]


def rows_as_stream(spark: SparkSession, program: Program, folder: Path) -> list[str]:
    """Run a program as a stream, a batch for each step; return its rows."""
    found: dict[int, list[str]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found[number] = list(map(str, batch.collect()))

    steps = [*program.steps, *(flushes(program.sources()) if program.flushes else ())]
    write(folder, steps, program.sources())
    query = program.query(reading(spark, folder, streaming=True))
    writer = query.writeStream.foreachBatch(keep).outputMode(program.mode)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    last = [found[max(found)]] if program.mode == "complete" else list(found.values())
    return without_flush(text for batch in last for text in batch)


def rows_as_batch(spark: SparkSession, program: Program, folder: Path) -> list[str]:
    """Run a program over the same files as a batch job; return its rows."""
    query = program.query(reading(spark, folder, streaming=False))
    return without_flush(map(str, query.collect()))


def without_flush(texts: Any) -> list[str]:
    return sorted(text for text in texts if FLUSH not in text)


def write(folder: Path, steps: Sequence[Step], sources: set[str]) -> None:
    for name in sources:
        (folder / name).mkdir(parents=True)
        for number, step in enumerate(steps):
            file = folder / name / f"{number:03}.json"
            file.write_text("".join(f"{json.dumps(each)}\n" for each in step.get(name, ())))
            os.utime(file, (1e9 + number, 1e9 + number))


def reading(spark: SparkSession, folder: Path, *, streaming: bool) -> Read:
    def read(name: str) -> DataFrame:
        path = str(folder / name)
        if not streaming:
            return spark.read.schema(EVENTS).json(path)
        return spark.readStream.schema(EVENTS).option("maxFilesPerTrigger", 1).json(path)

    return read


def side(read: Read, name: str, number: int, *, mark: str | None = "t") -> DataFrame:
    """Return a source with the columns k1, t1, …"""
    events = read(name)
    events = events.withWatermark(mark, "1 second") if mark else events
    return events.toDF(*(f"{each}{number}" for each in events.columns))


def joined(how: str, on: str, *, marks: Sequence[str | None] = ("t", "t")) -> Callable[[Read], Any]:
    """Return a join of the two sources; *marks* have the columns of their watermarks."""

    def query(read: Read) -> DataFrame:
        left, right = (side(read, name, i, mark=marks[i - 1]) for i, name in ((1, "a"), (2, "b")))
        return left.join(right, F.expr(on), how)

    return query


def window(column: str) -> Column:
    return F.window(column, "5 seconds").alias("w")


def grouped_by_window(read: Read) -> DataFrame:
    """Sum by key and window, with subtotals of each key and of all."""
    events = read("a").withWatermark("t", "10 seconds").withColumn("w", window("t"))
    return events.rollup("k", "w").agg(F.sum("n"))


def without_table(read: Read) -> DataFrame:
    """Leave the row of a table out of a stream, once."""
    rows = read("a").withWatermark("t", "1 second").select("k", "t")
    table = rows.sparkSession.sql("SELECT 'p' AS k, timestamp_seconds(10) AS t")
    return rows.exceptAll(table)


def by_window(query: Callable[[Read], DataFrame], *, of: str) -> Callable[[Read], DataFrame]:
    """Count the rows of a query in windows of one of its times."""
    return lambda read: query(read).groupBy(window(of), "k1").count()


def distinct_times(query: Callable[[Read], DataFrame]) -> Callable[[Read], DataFrame]:
    """Take each match of a query once."""
    return lambda read: query(read).select("k1", "t1", "n2").dropDuplicates(["t1", "n2"])


def joined_again(query: Callable[[Read], DataFrame]) -> Callable[[Read], DataFrame]:
    """Join the first side's rows of a query with a third stream."""

    def again(read: Read) -> DataFrame:
        third = F.expr("k1 = k3 AND t3 BETWEEN t1 - INTERVAL 1 HOUR AND t1 + INTERVAL 1 HOUR")
        return query(read).select("k1", "t1", "n2").join(side(read, "c", 3), third)

    return again


def marked_again(read: Read) -> DataFrame:
    """Count windows in longer windows, by a watermark of their own."""
    counted = read("a").withWatermark("t", "1 second").groupBy(window("t"), "k").count()
    ends = counted.select(F.col("w.end").alias("e"), "k").withWatermark("e", "1 second")
    return ends.groupBy(F.window("e", "20 seconds"), "k").count()


BEHIND: Sequence[Step] = [
    {"a": [row("p", 10)], "b": [row("z", 10)]},
    {"a": [row("q", 100)], "b": [row("z", 100)]},
    {"a": [row("q", 101)], "b": [row("z", 101)]},
    {"b": [row("p", 10)]},
    {"a": [row("q", 102)], "b": [row("z", 102)]},
]
"""The first row of a finds its match in b long after a's watermark has passed it."""
AHEAD: Sequence[Step] = [
    {"a": [row("p", 10, u=1000)], "b": [row("z", 10)]},
    {"a": [row("q", 500, u=500)], "b": [row("z", 500)]},
    {"a": [row("q", 501, u=501)], "b": [row("z", 501)]},
    {"a": [row("q", 1001, u=1001)], "b": [row("p", 1000)]},
    {"a": [row("q", 1002, u=1002)], "b": [row("y", 1002)]},
]
"""The first row of a has its match by the column u, which no watermark has passed then."""

HELD: Sequence[Step] = [
    {"a": [row("p", 10)], "b": [row("p", 12, n=1)], "c": [row("p", 12)]},
    {"a": [row("q", 50)], "b": [row("q", 50, n=2)]},
    {"a": [row("q", 51)], "b": [row("q", 51, n=3)]},
    {"a": [row("q", 51)], "b": [row("p", 55, n=4)]},
    {"a": [row("q", 60)], "b": [row("q", 61, n=5)], "c": [row("z", 61)]},
]
"""The first row of a finds a second match when the watermark has long passed it."""

PROGRAMS: Sequence[Program] = (
    Program(
        "SPARK-23702",
        [{"a": [row("p", 10), row("p", 12)]}, {"a": [row("p", 21)]}, {"a": [row("p", 35)]}],
        marked_again,
    ),
    Program(
        "CAST-BOUND",
        [
            {"a": [row("p", 10.1)], "b": [row("z", 10.1)]},
            {"a": [row("q", 11.5)], "b": [row("q", 11.5)]},
            {"a": [row("q", 11.6)], "b": [row("z", 11.6)]},
            {"a": [row("q", 11.6)], "b": [row("p", 10.9)]},
        ],
        joined("inner", "k1 = k2 AND CAST(t1 AS LONG) >= CAST(t2 AS LONG)"),
    ),
    Program("HELD-ROWS", HELD, by_window(joined("inner", "k1 = k2"), of="t1")),
    Program("HELD-ROWS", HELD, by_window(joined("inner", "k1 = k2 AND t2 >= t1"), of="t1")),
    Program("HELD-ROWS", HELD, distinct_times(joined("inner", "k1 = k2"))),
    Program("HELD-ROWS", HELD, joined_again(joined("inner", "k1 = k2"))),
    Program(
        "SPARK-56280",
        [{"a": [row("p", f=0.0)]}, {"a": [row("p", f=-0.0)]}],
        lambda read: read("a").dropDuplicates(["f"]).select("k"),
        flushes=False,
    ),
    Program("SPARK-58904", BEHIND, joined("inner", "k1 = k2 AND t1 = t2", marks=("t", None))),
    Program("SPARK-58904", BEHIND, joined("left", "k1 = k2 AND t1 = t2", marks=("t", None))),
    Program(
        "SPARK-58904",
        AHEAD,
        joined("inner", "k1 = k2 AND t2 >= t1 AND t2 <= u1"),
    ),
    Program(
        "SPARK-59290",
        [{"a": [row("p", 10), row("p", 10), row("p", 12)]}, {"a": [row("q", 12), row("q", 13)]}],
        without_table,
    ),
    Program(
        "SUBTOTALS-OVER-WINDOWS",
        [{"a": [row("p", 10, n=1), row("q", 11, n=2)]}, {"a": [row("p", 14, n=3)]}],
        grouped_by_window,
    ),
)
