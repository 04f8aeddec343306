"""The ``delta`` sink with real Spark: the contract, and rows of every type."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from contracts import DyingElsewhere
from deltalake import DeltaTable

from airflow_provider.extensions.delta import delta
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
WIDE = """
    id long, at timestamp, clock timestamp_ntz, day date, price decimal(20, 4), ok boolean,
    small byte, real double, raw binary, inner struct<x: int, y: struct<z: string>>,
    many array<struct<a: long>>, named map<string, array<int>>
"""


class TableCase:
    """A Delta table read by delta-rs through pyarrow."""

    def __init__(self, root, partition_by):
        self.folder = root / "a table"
        self.partition_by = partition_by

    def open(self):
        return delta(str(self.folder), self.partition_by)

    def visible(self):
        if not DeltaTable.is_deltatable(str(self.folder)):
            return []
        read = DeltaTable(str(self.folder)).to_pyarrow_table(columns=["id", "name"])
        return [tuple(row.values()) for row in read.to_pylist()]


@pytest.mark.long
class TestDelta(DyingElsewhere):
    """The ``delta`` sink."""

    @pytest.fixture
    def case(self, tmp_path):
        return TableCase(tmp_path, ())


@pytest.mark.whole
class TestPartitionedDelta(RevertibleSinkContract):
    """The ``delta`` sink, partitioned."""

    @pytest.fixture
    def case(self, tmp_path):
        return TableCase(tmp_path, ("name",))


def publish(folder, df, partition_by=(), epoch=0):
    sink = delta(str(folder), partition_by)
    sink.check(df, "append")
    made = EpochId("q", QUERY_ID, epoch, 1)
    staged = sink.stage(df, made)
    sink.commit(Committable(made, staged.data), OpenFence())
    return staged


def test_rows_of_every_type_are_read_back(spark, tmp_path):
    """What Spark wrote, nulls and nested ones too, another reader finds with the same values."""
    full = (
        1,
        dt.datetime(2024, 5, 1, 12, 0, 0, 123456, UTC),
        dt.datetime(2024, 5, 1, 12, 0, 0, 654321),  # noqa: DTZ001 - timestamp_ntz has none
        dt.date(1500, 2, 28),
        Decimal("1234567890123456.7890"),
        True,
        -7,
        0.1,
        b"\x00\xff",
        {"x": 1, "y": {"z": "é"}},
        [{"a": 1}, None],
        {"k": [1, None], "n": None},
    )
    df = spark.createDataFrame([full, (2, *[None] * 11)], WIDE)
    publish(tmp_path / "t", df)
    read = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("id").to_pylist()
    first = {**read[0], "named": dict(read[0]["named"])}

    assert dict(zip(df.columns, full, strict=True)) == first
    assert {"id": 2, **dict.fromkeys(df.columns[1:])} == read[1]


@pytest.mark.parametrize("kind", ["string", "int", "date"])
def test_partitions_are_read_back(spark, tmp_path, kind):
    """Nulls and odd texts come back from the folders that Spark made, and can be reverted."""
    kinds: dict[str, list[Any]] = {
        "string": ["a b", "c/d", "e:f%20", "é?#=&", "..", "[{^'\"\\*", None],
        "int": [1, -2, None],
        "date": [dt.date(2024, 2, 29), dt.date(1970, 1, 1), None],
    }
    rows = list(enumerate(kinds[kind]))
    staged = publish(tmp_path, spark.createDataFrame(rows, f"id int, p {kind}"), ("p",))
    read = DeltaTable(str(tmp_path)).to_pyarrow_table().sort_by("id")
    assert rows == [(row["id"], row["p"]) for row in read.to_pylist()]

    committable = Committable(EpochId("q", QUERY_ID, 0, 1), staged.data)
    delta(str(tmp_path), ("p",)).revert([committable], OpenFence())
    assert 0 == DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows


def test_a_first_partition_without_rows_is_no_file(spark, tmp_path):
    """Spark writes a file of its first task in any case; the table has only files with rows."""
    df = spark.range(0, 100, 1, 4).where("id >= 90").selectExpr("id", "'x' name")
    staged = publish(tmp_path, df)

    assert (10, 1) == (staged.rows, len(DeltaTable(str(tmp_path)).file_uris()))


def test_the_sessions_settings_do_not_matter(spark, tmp_path):
    """INT96 and the layouts of Spark 1, if a session asks for them, do not get into the table."""
    settings = {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.writeLegacyFormat": "true",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        publish(tmp_path, spark.sql("select timestamp'2024-05-01 12:00:00' at, array(1) many"))
        assert settings == {key: spark.conf.get(key) for key in settings}
    finally:
        for key in settings:
            spark.conf.unset(key)

    read = DeltaTable(str(tmp_path)).to_pyarrow_table().to_pylist()
    assert [{"at": dt.datetime(2024, 5, 1, 12, tzinfo=UTC), "many": [1]}] == read


def test_a_type_that_delta_has_not_is_refused(spark, tmp_path):
    """The message names the column, and nothing is written."""
    df = spark.sql("select 1 id, interval 1 day as gap")
    with pytest.raises(ConfigError, match=r"'gap'.*cast it"):
        delta(str(tmp_path / "t")).check(df, "append")

    assert not (tmp_path / "t").exists()
