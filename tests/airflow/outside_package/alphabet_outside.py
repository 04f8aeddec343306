"""A source from outside: a data source of Spark's in Python, and a job that reads it.

Its reader says where the letters end when a run begins, so each attempt of a run reads the same.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from streams_outside import LinesSink

from airflow_provider.runtime.api.kit.sources import reader_of
from airflow_provider.runtime.api.sources import Location


class Alphabet(DataSource):
    """The letters of a file, one row for each; the option ``path`` names the file."""

    @classmethod
    def name(cls):
        return "alphabet"

    def schema(self):
        return "position int, letter string"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return AlphabetReader(Path(self.options["path"]))


class AlphabetReader(DataSourceStreamReader):
    def __init__(self, path):
        self._path = path

    def initialOffset(self):  # noqa: N802 - Spark's name
        return {"letters": 0}

    def latestOffset(self, start=None, limit=None):  # noqa: N802 - Spark's name
        return {"letters": len(self._path.read_text().strip())}

    def partitions(self, start, end):
        return [InputPartition(json.dumps([start["letters"], end["letters"]]))]

    def read(self, partition):
        start, end = json.loads(partition.value)
        yield from enumerate(self._path.read_text()[start:end], start=start)


@dataclasses.dataclass(frozen=True)
class AlphabetSource:
    """The letters of a file, as ``ctx.read`` takes them."""

    path: str
    kind = "alphabet"

    def load(self, spark, name, *, streaming):
        spark.dataSource.register(Alphabet)
        reader = reader_of(spark, name, streaming=streaming)
        return reader.format("alphabet").option("path", self.path).load()

    def location(self):
        return Location(self.path)


def spell(ctx):
    """Write each letter of the file with its position."""
    rows = ctx.read("letters", AlphabetSource(ctx.params["input"]), bounded=True)
    ctx.write("out", rows, to=LinesSink(ctx.params["output"]))
