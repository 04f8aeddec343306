"""The ``postgres`` sink with Spark's own executors: what they stage, and that it is every type exactly."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from contracts import DyingElsewhere

from airflow_provider.extensions.postgres.sink import PostgresSink, postgres
from airflow_provider.runtime.api.sinks import Committable, EpochId
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.extensions.postgres.postgres_support import Fence, postgres_server

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
TEXTS = [
    "",
    "a\tb",
    "a\nb\r\n",
    "\\N",
    "\\.",
    'say "it\'s"',
    "{1,2}",
    "žluť 🐎",
    " x ",
    "NULL",
    None,
]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres_server() as url:
        yield url


def publish(sink: Any, df: Any, epoch: int = 0) -> int:
    where = EpochId("q", QUERY_ID, epoch, 1)
    staged = sink.stage(df, where)
    sink.commit(Committable(where, staged.data), Fence())
    return staged.rows


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        connection.execute("SET TimeZone TO 'UTC'")
        return connection.execute(query).fetchall()


@pytest.mark.long
def test_texts_and_bytes_arrive_as_they_are(spark, url):
    """Whatever COPY's format, arrays or JSON give a meaning to is stored as the text it is."""
    rows = [
        (n, t, [t, "x"], None if t is None else t.encode(), {"k": t}) for n, t in enumerate(TEXTS)
    ]
    df = spark.createDataFrame(
        rows, "n int, t string, a array<string>, b binary, m map<string, string>"
    )

    assert len(TEXTS) == publish(postgres(url, "texts"), df)
    assert rows == ask(url, "SELECT n, t, a, b, m FROM texts ORDER BY n")


def test_numbers_and_times_arrive_exactly_in_any_time_zone(spark, url):
    """Extremes, NaN, infinities, nulls and the doubled hour of autumn are the same in the table."""
    autumn = [dt.datetime(2026, 10, 25, hour, 30, 0, 1, tzinfo=UTC) for hour in (0, 1)]
    old = dt.datetime(1, 1, 1, tzinfo=UTC)
    end = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    schema = (
        "i long, s short, y byte, d double, f float, c decimal(38,10), z boolean, t timestamp, "
        "p timestamp_ntz, e date, l array<timestamp>, r struct<t: timestamp, d: double>"
    )
    big, small = Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001")
    rows = [
        (2**63 - 1, -(2**15), 127, 0.1, 1.5, big, True, autumn[0]),
        (-(2**63), 2**15 - 1, -128, math.inf, -math.inf, small, False, autumn[1]),
        (0, 0, 0, 5e-324, math.inf, Decimal("1E+2"), True, old),
        (1, 0, 0, 1.7976931348623157e308, 3.4028235e38, Decimal(0), True, end),
    ]
    full = [
        (*row, row[-1].replace(tzinfo=None), row[-1].date(), [row[-1], None], (row[-1], row[3]))
        for row in rows
    ]
    nulls = (None,) * 12
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Prague")
    try:
        df = spark.createDataFrame([*full, nulls], schema)
        assert 5 == publish(postgres(url, "numbers"), df)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)

    stored = ask(url, "SELECT i, s, y, d, f, c, z, t, p, e, l FROM numbers ORDER BY i")
    expected = sorted((row[:11] for row in full), key=lambda row: row[0])
    assert [*expected, nulls[:11]] == stored
    times = ask(url, "SELECT r ->> 't' FROM numbers WHERE i = 0 OR r IS NULL ORDER BY i")
    assert [("0001-01-01T00:00:00.000000Z",), (None,)] == times


def test_nan_is_stored_as_nan(spark, url):
    """NaN is a value of PostgreSQL's floating point types, and stays one."""
    df = spark.createDataFrame([(math.nan, math.nan)], "d double, f float")
    publish(postgres(url, "nans"), df)

    assert [("NaN", "NaN")] == ask(url, "SELECT d::text, f::text FROM nans")


def test_a_text_with_a_nul_character_is_refused_while_it_is_staged(spark, url):
    """PostgreSQL stores no NUL in a text: the error says so, and nothing is published."""
    df = spark.createDataFrame([("a\0b",)], "t string")

    with pytest.raises(Exception, match="invalid byte sequence .* 0x00"):
        publish(postgres(url, "nul"), df)
    assert [(None,)] == ask(url, "SELECT to_regclass('nul')")


@pytest.mark.long
def test_a_stream_with_state_is_staged_batch_by_batch(spark, url, tmp_path):
    """
    A stateful query's batches run exactly once through the executors, also one that has no rows.
    """
    from pyspark.sql import functions as F  # noqa: N812

    sink = postgres(url, "counts", keys=["k"])
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10)
    counts = source.load().groupBy((F.col("value") % 3).alias("k")).count()
    staged: list[int] = []
    sink.check(counts, "update")

    def stage(df: Any, epoch: int) -> None:
        staged.append(publish(sink, df.where("k < 2"), epoch))

    query = counts.writeStream.outputMode("update").foreachBatch(stage)
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        deadline = time.monotonic() + 60
        while len(staged) < 3:
            assert time.monotonic() < deadline
            assert query.exception() is None
            time.sleep(0.1)
    finally:
        query.stop()
    batches = ask(url, "SELECT count(*) FROM spark_stream.epochs WHERE target = 'counts'")[0][0]
    read = [n for n in range(batches * 10) if n % 3 < 2]

    assert {2} == set(staged)
    assert [(k, sum(1 for n in read if n % 3 == k)) for k in (0, 1)] == ask(
        url, "SELECT k, count FROM counts ORDER BY k"
    )


def test_a_frame_without_rows_makes_the_table_and_publishes_an_epoch(spark, url):
    """Readers of an empty result find the table with its columns."""
    df = spark.createDataFrame([], "a int, b array<int>")

    assert 0 == publish(postgres(url, "nothing"), df)
    assert [] == ask(url, "SELECT a, b, spark_epoch FROM nothing")


class PostgresCase:
    """One table, written to in mode ``append``."""

    def __init__(self, url: str, table: str) -> None:
        self.url = url
        self.table = table

    def open(self) -> PostgresSink:
        return postgres(self.url, self.table)

    def visible(self) -> list[tuple[Any, ...]]:
        if ask(self.url, f"SELECT to_regclass('{self.table}')") == [(None,)]:
            return []
        return ask(self.url, f"SELECT id, name FROM {self.table}")


class TestSqlSink(DyingElsewhere):
    @pytest.fixture
    def case(self, url: str) -> PostgresCase:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS spark_stream CASCADE")
            connection.execute("DROP TABLE IF EXISTS contract")
        return PostgresCase(url, "contract")
