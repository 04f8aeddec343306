"""Programs of plain PySpark, each of which a known bug of Spark answers wrongly as a stream."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
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
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def row(k: str | None, t: float | None = None, **more: Any) -> Row:
    """Return an event; its *u* is a second, too."""
    times = {name: at(value) for name, value in (("t", t), ("u", more.pop("u", None))) if value}
    return {"k": k, **times, **more}


def flushes(sources: set[str]) -> list[Step]:
    """Return batches whose rows move the watermarks on, and match nothing."""
    return [
        {name: [row(f"{FLUSH} {name} {hour}", 3600 * hour, u=3600 * hour)] for name in sources}
        for hour in (1, 2, 3)
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
