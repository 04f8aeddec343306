"""A Delta table read as Spark reads it, without Spark: offsets are planned, logged and replayed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

from airflow_provider.extensions.delta import delta_table
from airflow_provider.extensions.delta.table_data_source import DeltaDataSource
from airflow_provider.extensions.delta.table_stream import DeltaStreamReader


def append(folder: Path | str, *ids: int, **columns: Any) -> None:
    """Append rows as another program does, in one file of one version."""
    table = pa.table({"id": pa.array(ids, pa.int64()), **columns})
    write_deltalake(str(folder), table, mode="append")


class Query:
    """A streaming query without Spark: one reader for each start, offsets as Spark's log has them.

    Attributes:
        offsets: the logged offsets, as texts.
        read: the rows of all batches so far.
    """

    def __init__(self, folder: Path | str, **options: Any) -> None:
        self.given = delta_table(str(folder), **options).options.to_spark()
        self.offsets: list[str] = []
        self.read: list[dict[str, Any]] = []
        self.restart()

    def restart(self) -> DeltaStreamReader:
        """Start a new process with the table's columns as they are now."""
        source = DeltaDataSource(self.given)
        reader = source.streamReader(source.schema())
        assert isinstance(reader, DeltaStreamReader)
        self.reader = reader
        return reader

    @property
    def ids(self) -> list[int]:
        return [row.get("id", -1) for row in self.read]

    @property
    def last(self) -> dict[str, Any]:
        """Return the last offset that was logged, or that of a new query."""
        return json.loads(self.offsets[-1]) if self.offsets else self.reader.initialOffset()

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Log the next batch's offset; False if there is no more to read."""
        planned = self.reader.latestOffset(self.last, limit or self.reader.getDefaultReadLimit())
        text = json.dumps(planned)
        if self.offsets and json.loads(text) == self.last:
            return False
        self.offsets.append(text)
        return True

    def run(self) -> list[dict[str, Any]]:
        """Read the last planned batch, and return its rows."""
        start, end = ["{}", *self.offsets][-2:]
        tasks = self.reader.partitions(json.loads(start), json.loads(end))
        rows: list[dict[str, Any]] = []
        for task in pickle.loads(pickle.dumps(tasks)):  # noqa: S301 - as executors get them
            for batch in self.reader.read(task):
                rows += batch.to_pylist()
        return rows

    def batch(self, limit: ReadLimit | None = None) -> list[dict[str, Any]] | None:
        """Plan and read a batch; None if there is no more to read."""
        if not self.plan(limit):
            return None
        rows = self.run()
        self.read += rows
        return rows

    def drain(self, limit: ReadLimit | None = None) -> list[int]:
        """Run batches until there is no more to read; return the ids that they have read."""
        before = len(self.read)
        while self.batch(limit) is not None:
            pass
        return self.ids[before:]


class Copy:
    """A query that collects rows, with what Spark reports of its batches."""

    def __init__(self, spark, tmp_path, source):
        self.spark, self.checkpoint, self.source = spark, str(tmp_path / "checkpoint"), source
        self.rows: list[Any] = []
        self.batches: list[Any] = []

    def run(self):
        """Read what exists, and return the rows of this run, sorted."""
        found: list[Any] = []

        def take(df, _):
            found.extend(tuple(row) for row in df.collect())

        df = self.source.load(self.spark, "t", streaming=True)
        writer = df.writeStream.foreachBatch(take).option("checkpointLocation", self.checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.batches = [progress["sources"][0] for progress in query.recentProgress]
        self.rows += found
        return sorted(found)


EVERYTHING = ReadAllAvailable()
