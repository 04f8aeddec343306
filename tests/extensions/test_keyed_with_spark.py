"""Tables by key with Spark: what its reduction stages, in each table that takes keys."""

from __future__ import annotations

import datetime as dt
import logging
import time
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties, load
from tests.extensions.postgres.postgres_support import new_database, postgres_server

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
WORDS: dict[str, Any] = {
    "keys": ["id", "part"],
    "sequence_by": ["at", "tie"],
    "delete_when": "op = 'd'",
}
SCHEMA = (
    "id long, part string, at timestamp, tie decimal(10, 2), op string, name string, "
    "many array<struct<a: long>>, real double"
)


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


class Case:
    """A table of a kind: its sink, and an independent reader."""

    def __init__(self, kind, root, server):
        self.kind, self.root = kind, root
        if kind == "iceberg":
            self.properties = catalog_properties(root)
        if kind == "postgres":
            self.url = new_database(server)

    def open(self, **words):
        if self.kind == "delta":
            return delta(str(self.root / "table"), **words)
        if self.kind == "iceberg":
            return iceberg(TABLE, catalog=self.properties, **words)
        return postgres(self.url, "t", **words)

    def rows(self, *columns):
        if self.kind == "delta":
            table = DeltaTable(str(self.root / "table")).to_pyarrow_table()
        elif self.kind == "iceberg":
            table = load(self.properties).scan().to_arrow()
        else:
            with psycopg.connect(self.url) as connection:
                names = ", ".join(f'"{column}"' for column in columns)
                query = f"SELECT {names} FROM t"
                return sorted(connection.execute(query.encode()).fetchall())
        return sorted(tuple(row[c] for c in columns) for row in table.to_pylist())


@pytest.fixture(params=["delta", "iceberg", "postgres"])
def case(request, tmp_path, server):
    return Case(request.param, tmp_path, server)


def at(second):
    return dt.datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def change(id_, second, name, *, op="u", tie=0, part="x"):
    return (id_, part, at(second), Decimal(tie), op, name, [(7,), None], float("nan"))


def frame(spark, *changes):
    return spark.createDataFrame(list(changes), SCHEMA).repartition(3)


def publish(sink, df, epoch):
    made = EpochId("q", QUERY_ID, epoch, 1)
    staged = sink.stage(df, made)
    committable = Committable(made, staged.data)
    sink.commit(committable, OpenFence())
    return staged.rows, committable


def test_the_newest_change_of_each_key_is_staged_and_counts(spark, case, caplog):
    """Over epochs, with a second column that decides; what is superseded is logged."""
    sink = case.open(**WORDS)
    with caplog.at_level(logging.INFO):
        first = frame(
            spark,
            *(change(1, 5, "old", tie=tie) for tie in range(5)),
            change(1, 5, "five", tie=9),
            change(1, 4, "four"),
            change(2, 1, "one"),
            change(2, 1, "other part", part="y"),
            change(3, 1, "gone", op="d"),
            change(4, 1, "kept", op=None),
        )
        sink.check(first, "append")
        assert 5 == publish(sink, first, 0)[0]
    assert "6 of 11 changes are superseded" in caplog.text
    second = frame(spark, change(1, 5, "late", tie=8), change(2, 2, "", op="d"), change(3, 0, "n"))
    assert 3 == publish(sink, second, 1)[0]
    expected = [(1, "five"), (2, "other part"), (4, "kept")]
    assert expected == case.rows("id", "name")

    third, committable = publish(sink, frame(spark, change(1, 5, "five", tie=9)), 2)
    assert (1, expected) == (third, case.rows("id", "name"))  # the same change again
    sink.revert([committable], OpenFence())
    assert expected == case.rows("id", "name")


def test_nulls_and_ties_are_refused_by_name(spark, case):
    """With their number, or their keys, before anything is published."""
    sink = case.open(**WORDS)
    nulls = [(None, *change(1, 1, "a")[1:]), change(1, 1, "a")]
    with pytest.raises(RefusedRowsError, match="1 rows of the epoch have a null in id, part"):
        sink.stage(frame(spark, *nulls), EpochId("q", QUERY_ID, 0, 1))
    nulls = [(1, "x", None, *change(1, 1, "a")[3:]), (2, "x", None, *change(1, 1, "a")[3:])]
    with pytest.raises(RefusedRowsError, match="2 rows of the epoch have a null in at, tie"):
        sink.stage(frame(spark, *nulls), EpochId("q", QUERY_ID, 1, 1))
    ties = [change(1, 1, "a"), change(1, 1, "b")]
    with pytest.raises(RefusedRowsError, match=r"the same at, tie.*id = 1, part = 'x';"):
        sink.stage(frame(spark, *ties), EpochId("q", QUERY_ID, 2, 1))


@pytest.mark.parametrize(
    ("delete_when", "says"),
    [("nope = 1", "delete_when='nope = 1' is not understood"), ("id", "gives bigint; write a")],
)
def test_a_condition_that_is_none_is_refused(spark, case, delete_when, says):
    """Before anything is written."""
    sink = case.open(**{**WORDS, "delete_when": delete_when})
    with pytest.raises(ConfigError, match=says):
        sink.check_shape(frame(spark, change(1, 1, "a")), "append")


def test_a_revert_restores_every_value(spark, case):
    """Nested values, NaN and times are the same after they were replaced and put back."""
    sink = case.open(**WORDS)
    publish(sink, frame(spark, change(1, 1, "a"), change(2, 1, "b")), 0)
    before = [str(row) for row in case.rows("id", "part", "at", "tie", "op", "name", "real")]
    _, replaced = publish(
        sink, frame(spark, change(1, 2, "x"), change(2, 2, "", op="d"), change(3, 1, "c")), 1
    )
    sink.check_revert([replaced])
    sink.revert([replaced], OpenFence())

    assert before == [
        str(row) for row in case.rows("id", "part", "at", "tie", "op", "name", "real")
    ]


@pytest.mark.long
def test_a_rolling_aggregate_is_a_table_by_its_group(spark, case, tmp_path):
    """``output_mode="update"``: the later epoch's row of a group replaces the earlier one's."""
    from pyspark.sql import functions as F  # noqa: N812

    sink = case.open(keys="k")
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    counts = source.load().groupBy((F.col("value") % 3).alias("k")).count()
    sink.check(counts, "update")
    epochs: list[int] = []

    def stage(df: Any, epoch: int) -> None:
        publish(sink, df, epoch)
        epochs.append(epoch)

    query = counts.writeStream.outputMode("update").foreachBatch(stage)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        deadline = time.monotonic() + 60
        while len(epochs) < 3:
            assert time.monotonic() < deadline
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        query.stop()

    read = range(10 * len(epochs))
    assert [(k, sum(n % 3 == k for n in read)) for k in range(3)] == case.rows("k", "count")
