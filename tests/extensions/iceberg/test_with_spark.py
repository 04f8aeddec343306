"""The ``iceberg`` sink staged by real Spark: the sinks' contract, types, and partitions."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from contracts import DyingElsewhere
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
)
from pyiceberg.types import LongType, NestedField, StringType, TimestampType, TimestamptzType

from airflow_provider.extensions.iceberg import iceberg
from airflow_provider.runtime.api.sinks import Committable, OpenFence
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.testing.sink_bench import stage_epoch
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract

pytestmark = pytest.mark.spark

TABLE = "ns.events"
UTC = dt.timezone.utc


class CatalogCase:
    """A table in a SQL catalog on SQLite, read by pyiceberg."""

    def __init__(self, root, partition_by=()):
        self.partition_by = partition_by
        self.properties = {
            "name": "test",
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }
        self.catalog().create_namespace("ns")

    def catalog(self):
        rest = {key: value for key, value in self.properties.items() if key != "name"}
        return load_catalog("test", **rest)

    def open(self):
        return iceberg(TABLE, catalog=self.properties, partition_by=self.partition_by)

    def table(self):
        return self.catalog().load_table(TABLE)

    def visible(self):
        if not self.catalog().table_exists(TABLE):
            return []
        return [(row["id"], row["name"]) for row in self.table().scan().to_arrow().to_pylist()]


@pytest.mark.long
class TestIceberg(DyingElsewhere):
    """The ``iceberg`` sink."""

    @pytest.fixture
    def case(self, tmp_path):
        return CatalogCase(tmp_path)


@pytest.mark.whole
class TestPartitionedIceberg(RevertibleSinkContract):
    """The ``iceberg`` sink, one file per value."""

    @pytest.fixture
    def case(self, tmp_path):
        return CatalogCase(tmp_path, ("name",))


@pytest.fixture
def case(tmp_path):
    return CatalogCase(tmp_path)


def publish(sink, df, epoch: int = 0) -> Committable:
    committable = stage_epoch(sink, df, epoch)
    sink.commit(committable, OpenFence())
    return committable


def test_every_type_is_read_back(spark, case):
    """
    Times with and without zone, dates, decimals, bytes and nested values come back as they were,
    nulls too; the session's own settings are left as they were.
    """
    schema = """
        ts timestamp, ntz timestamp_ntz, d date, small decimal(9,2), big decimal(38,10), bin binary,
        byte tinyint, short smallint, int int, flag boolean, real float, dbl double,
        nested struct<a:int,b:struct<c:string not null>> not null, list array<string>,
        map map<string,array<int>>
    """
    moment = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)
    row = (
        moment,
        moment.replace(tzinfo=None),
        dt.date(1500, 2, 28),
        decimal.Decimal("-1234567.89"),
        decimal.Decimal("1234567890123456789012345678.0123456789"),
        b"\0\xff",
        -128,
        -32768,
        7,
        True,
        0.5,
        0.1,
        {"a": 1, "b": {"c": "x"}},
        ["a", None],
        {"k": [1, None], "n": None},
    )
    empty = (*[None] * 12, {"a": None, "b": None}, None, None)
    df = spark.createDataFrame([row, empty], schema)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    sink = case.open()
    sink.check(df, "append")
    publish(sink, df)
    sink.check(df, "append")

    read = case.table().scan().to_arrow().sort_by("int").to_pylist()
    expected = dict(zip(df.columns, row, strict=True))
    assert expected == {**read[0], "map": dict(read[0]["map"])}
    assert dict(zip(df.columns, empty, strict=True)) == read[1]
    types = {field.name: str(field.field_type) for field in case.table().schema().fields}
    assert ("timestamptz", "timestamp") == (types["ts"], types["ntz"])
    assert before == spark.conf.get("spark.sql.parquet.outputTimestampType")


def test_partitions_by_value(spark, case):
    """
    Values that folders cannot be called after become partitions too, one per file, whatever
    their type; the column stays in the files.
    """
    values = ["a b/c", "50%?x=#1", "é", "", "__HIVE_DEFAULT_PARTITION__", None]
    rows = [(i, value, dt.date(2026, 1, 1 + i % 2), i % 3) for i, value in enumerate(values * 2)]
    df = spark.createDataFrame(rows, "id int, name string, day date, n long").repartition(3)
    case.partition_by = ("name", "day", "n")
    publish(case.open(), df)

    planned = list(case.table().scan().plan_files())
    first = dt.date(1970, 1, 1).toordinal()
    assert {(name, day.toordinal() - first, n) for _, name, day, n in rows} == {
        tuple(task.file.partition) for task in planned
    }
    read = case.table().scan().to_arrow().to_pylist()
    assert sorted(rows, key=str) == sorted((tuple(row.values()) for row in read), key=str)
    with case.table().io.new_input(planned[0].file.file_path).open() as stream:
        assert ["id", "name", "day", "n"] == pq.ParquetFile(stream).schema_arrow.names


@pytest.mark.long
@pytest.mark.parametrize(
    "zone", [pytest.param("UTC", marks=pytest.mark.whole), "America/Los_Angeles"]
)
def test_partitions_of_existing_tables(spark, case, zone):
    """
    Tables partitioned by year, month, day, hour or truncation get files that fit, whatever the
    session's time zone is.
    """
    fields = [
        NestedField(1, "ts", TimestamptzType(), required=False),
        NestedField(2, "ntz", TimestampType(), required=False),
        NestedField(3, "name", StringType(), required=False),
        NestedField(4, "n", LongType(), required=False),
    ]
    first = dt.datetime(2025, 12, 31, 22, 30, tzinfo=UTC)
    moments = [first + dt.timedelta(minutes=47 * i) for i in range(9)]
    rows: list[tuple[Any, ...]] = [
        (m, m.replace(tzinfo=None), f"name-{i % 2}-{i}", i) for i, m in enumerate(moments)
    ]
    rows.append((None, None, None, None))
    made_of: list[tuple[int, Any]] = [
        *((1, t()) for t in (YearTransform, MonthTransform, DayTransform, HourTransform)),
        *((2, t()) for t in (YearTransform, MonthTransform, DayTransform, HourTransform)),
        (3, TruncateTransform(6)),
        (4, TruncateTransform(3)),
    ]
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        df = spark.createDataFrame(rows, "ts timestamp, ntz timestamp_ntz, name string, n long")
        for source, transform in made_of:
            catalog = case.catalog()
            if catalog.table_exists(TABLE):
                catalog.drop_table(TABLE)
            spec = PartitionSpec(PartitionField(source, 1000, transform, "made_of"))
            catalog.create_table(TABLE, Schema(*fields), partition_spec=spec)
            sink = case.open()
            sink.check(df, "append")
            publish(sink, df)

            read = case.table().scan().to_arrow().to_pylist()
            assert sorted(rows, key=str) == sorted((tuple(r.values()) for r in read), key=str)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_type_without_a_counterpart_is_refused(spark, case):
    """A column that no Iceberg table can hold is refused by name."""
    df = spark.sql("select 1 as id, interval '1' day as span")
    with pytest.raises(ConfigError, match="span"):
        case.open().check(df, "append")


def test_a_stream_appends_its_batches(spark, case, tmp_path):
    """A real query's batches are staged with the query's own session, and appear epoch by epoch."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.csv").write_text(f"{number},2026-01-0{number + 1} 00:00:00\n")
    stream = spark.readStream.schema("id long, at timestamp").option("maxFilesPerTrigger", 1)
    df = stream.csv(str(source))
    sink = case.open()
    sink.check(df, "append")

    def write(batch, epoch) -> None:
        publish(sink, batch, epoch)

    query = (
        df.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)

    assert [
        {"id": n, "at": dt.datetime(2026, 1, n + 1, tzinfo=UTC)} for n in range(2)
    ] == case.table().scan().to_arrow().sort_by("id").to_pylist()
    assert 2 == len(case.table().metadata.snapshots)
