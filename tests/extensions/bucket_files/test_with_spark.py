"""The ``files`` sink in a bucket with Spark's tasks: rows, types, names and lines are Spark's own."""

from __future__ import annotations

import bz2
import gzip
import json
import logging
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from scripting import flights_of, line_of, run_as_job, write_flights
from stores import told_to_workers
from streams import write_events

from airflow_provider.extensions.scripts.declaring import has_spark_log
from airflow_provider.runtime import files
from airflow_provider.runtime.api.sinks import Committable, EpochId, OpenFence, Staged
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError, RefusedRowsError
from airflow_provider.runtime.sinks.columns import NO_VALUE
from airflow_provider.runtime.sinks.spark_sink import SPARK_LOG
from airflow_provider.runtime.storage.open import open_objects
from airflow_provider.runtime.testing.sink_bench import QUERY_ID
from tests.contract.conftest import StoreServer
from tests.present import present

if TYPE_CHECKING:
    from collections.abc import Iterator

    from streams import Location

pytestmark = pytest.mark.spark

EVERY_TYPE = """
select * from values
  (1, true, 1Y, 2S, 3L, cast(1.5 as float), 2.5D, 'aü', X'00ff', date'2020-01-02',
   timestamp'2020-01-02 03:04:05.123456', timestamp_ntz'2020-01-02 03:04:05.123456', 1.23BD,
   cast(123456789012.345 as decimal(15,3)),
   cast('12345678901234567890123.4567' as decimal(30,4)),
   named_struct('a', 1, 'b', array('x', null)), map('k', cast(null as int)),
   array(named_struct('t', timestamp'1500-01-01 00:00:00'))),
  (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null,
   null, null)
  as t(id, b, y, s, l, f, d, `s x`, bin, dt, ts, ntz, d1, d2, d3, st, m, a)
"""
ODD_VALUES = [
    *("a b", "a/b", "ü", "x=y", "100%", "*?[", "it's", '"q"', "", None, "{}", "^", "#:", "\\"),
    *("\x01", "~`!@$&()+,-.;<>|_", "日本", " lead", "trail ", "..", "a\nb", "\x7f"),
]
TEXTS: list[tuple[str, dict[str, str]]] = [
    ("json", {}),
    ("json", {"ignoreNullFields": "false", "compression": "gzip", "timestampFormat": "yyyy"}),
    ("csv", {"header": "true", "sep": ";", "quoteAll": "true"}),
    ("csv", {"header": "true", "lineSep": "\r\n", "compression": "bzip2", "nullValue": "NA"}),
]


@pytest.fixture(autouse=True)
def ancient_times(spark: Any) -> Iterator[None]:
    """Let Spark 3.5 write and read times of the year 1500 as later versions do (SPARK-31404)."""
    modes = ("int96RebaseModeInWrite", "int96RebaseModeInRead")
    for mode in modes:
        spark.conf.set(f"spark.sql.parquet.{mode}", "CORRECTED")
    yield
    for mode in modes:
        spark.conf.unset(f"spark.sql.parquet.{mode}")


@pytest.fixture
def store(spark: Any, request: Any) -> Iterator[StoreServer]:
    """The store of the test, S3 unless it names another, for Spark's workers as well."""
    server = request.getfixturevalue(getattr(request, "param", "s3"))
    with told_to_workers(spark):
        yield server


@pytest.fixture
def url(store: StoreServer) -> str:
    return f"{store.url}/{uuid.uuid4().hex}/out"


def publish(df: Any, url: str, *arguments: Any, **options: Any) -> Staged:
    """Write a frame as an epoch, and return what was staged."""
    sink, epoch = files(url, *arguments, **options), EpochId("q", QUERY_ID, 0, 1)
    sink.check(df, "append")
    staged = sink.stage(df, epoch)
    sink.commit(Committable(epoch, json.loads(json.dumps(staged.data))), OpenFence())
    return staged


def fetch(url: str, folder: Path) -> list[Path]:
    """Bring the published files here, where Spark can read them."""
    storage = open_objects(url)
    assert storage is not None
    found = [folder / path for path, _ in storage.files()]
    for path in found:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.read(str(path.relative_to(folder))))
    return found


def footer_of(path: Path) -> tuple[bytes, Any]:
    """Return what Spark looks for in a footer: its version, and the schema."""
    footer = pq.read_metadata(path).metadata
    key = b"org.apache.spark.sql.parquet.row.metadata"
    return footer[b"org.apache.spark.version"], json.loads(footer[key])


def as_text(df: Any) -> list[str]:
    return sorted(map(str, df.collect()))


@pytest.mark.long
def test_parquet_is_what_spark_writes(spark, url, tmp_path):
    """
    Rows, types and the schema in the footer are those of Spark's own files, in each reader; an epoch
    without rows keeps the schema.
    """
    df = spark.sql(EVERY_TYPE)
    df.repartition(2).write.parquet(str(tmp_path / "spark"))
    staged = publish(df.repartition(2), url)
    published = fetch(url, tmp_path / "ours")

    theirs = spark.read.parquet(str(tmp_path / "spark"))
    ours = spark.read.parquet(str(tmp_path / "ours"))
    assert 2 == staged.rows
    assert theirs.schema.json() == ours.schema.json()
    assert as_text(theirs) == as_text(ours)
    (of_spark, *_) = map(footer_of, (tmp_path / "spark").glob("*.parquet"))
    assert [of_spark] * len(published) == [footer_of(path) for path in published]
    query = "select * exclude (ts, a) from read_parquet('{}') order by id"
    both = [
        present(duckdb.sql(query.format(tmp_path / name / "*.parquet"))).fetchall()
        for name in ("spark", "ours")
    ]
    assert both[0] == both[1]
    assert 2 == len(pq.read_table(tmp_path / "ours"))

    empty = f"{url}-empty"
    assert 0 == publish(df.limit(0), empty).rows
    (path,) = fetch(empty, tmp_path / "empty")
    assert ours.schema == spark.read.parquet(str(path)).schema


@pytest.mark.long
def test_folders_are_those_that_spark_makes(spark, url, tmp_path):
    """Values of any letters are found again, in folders of the same names."""
    df = spark.createDataFrame(list(enumerate(ODD_VALUES)), "id int, v string").selectExpr(
        "id", "v", "date'2020-01-01' + id % 2 as `d t`"
    )
    df.coalesce(1).write.partitionBy("v", "d t").parquet(str(tmp_path / "spark"))
    publish(df.coalesce(1), url, "parquet", ("v", "d t"))
    published = fetch(url, tmp_path / "ours")

    theirs = {path.parent for path in (tmp_path / "spark").rglob("*.parquet")}
    assert {path.relative_to(tmp_path / "spark") for path in theirs} == {
        path.parent.relative_to(tmp_path / "ours") for path in published
    }
    assert as_text(spark.read.parquet(str(tmp_path / "spark"))) == as_text(
        spark.read.parquet(str(tmp_path / "ours"))
    )


@pytest.mark.parametrize(("name", "options"), TEXTS)
def test_lines_are_those_that_spark_writes(spark, url, tmp_path, name, options):
    """JSON and CSV are the same bytes, with options, header and compression."""
    df = spark.sql(EVERY_TYPE).coalesce(1)
    if name == "csv":
        df = df.drop("st", "m", "a", "bin").withColumn('q "x";y', F.lit('a "b";c,d'))
    own = files(str(tmp_path / "spark"), format=name, options=options).layout.options
    df.write.format(name).options(**own).save(str(tmp_path / "spark"))
    publish(df, url, name, options=options)
    (published,) = fetch(url, tmp_path / "ours")

    (written,) = (tmp_path / "spark").glob("part-*")
    assert written.name.partition(".")[2].removeprefix("c000.") == published.name.partition(".")[2]
    opened: Any = {"gzip": gzip.open, "bzip2": bz2.open}.get(options.get("compression", ""), open)
    with opened(written, "rb") as theirs, opened(published, "rb") as ours:
        assert theirs.read() == ours.read()


@pytest.mark.long
@pytest.mark.parametrize(
    "store",
    ["s3", *(pytest.param(each, marks=pytest.mark.whole) for each in ("gcs", "azure", "azurite"))],
    indirect=True,
)
def test_a_stream_and_a_batch_job_write_to_a_bucket(spark, location: Location, url):
    """Every row comes once, by epochs and in one, and beside the output lies its mark alone."""
    write_events(location.input, *([(n, "ab"[n % 2], n)] for n in range(4)))
    for mode in ("streaming", "batch"):
        target = f"{url}/{mode}"
        params = {"files_per_batch": "1", "sink": "partitioned", "location": target}
        elsewhere = type(location)(location.root / mode)
        asked = elsewhere.ask(
            "marked_rows", mode=mode, params={**params, "input": str(location.input)}
        )
        final = run_job(asked, spark=spark)

        storage = open_objects(url)
        assert storage is not None
        found = [path for path, _ in storage.files() if mode in path]
        beside = [path for path in found if not path.startswith(f"{mode}/k=")]
        assert [f".{mode}.writers"] == [path.partition("/")[0] for path in beside]
        paths = fetch(target, location.root / f"fetched-{mode}")
        rows = spark.read.parquet(str(location.root / f"fetched-{mode}")).select("v", "k").collect()
        assert [(n, "ab"[n % 2]) for n in range(4)] == sorted(tuple(row) for row in rows)
        assert 4 == final.queries["out"].sinks[0].rows
        assert (4 if mode == "streaming" else 2) <= len(paths)


@pytest.mark.whole
def test_a_plain_script_writes_to_a_bucket(spark, url, tmp_path, caplog):
    """
    Spark has no filesystem for it here, so its own sink could not; the windows that a drain flushes
    are there, too. A folder with Spark's list of its files would stay Spark's.
    """
    caplog.set_level(logging.INFO)
    write_flights(tmp_path / "flights", 0, 1, 2)
    target = url.replace("s3://", "s3a://")
    asked = ["--input", tmp_path / "flights", "--output", target]

    final = run_as_job(spark, tmp_path / "job", "hours_to_store.py", *asked)

    fetch(url, tmp_path / "fetched")
    rows = spark.read.parquet(str(tmp_path / "fetched")).collect()
    expected = [(hour, origin, flights) for hour, origin, flights, _ in flights_of(0, 1, 2)]
    assert expected == sorted(tuple(row) for row in rows)
    assert ("FINISHED", 9) == (final.outcome, final.rows_read)
    said = f"{line_of('hours_to_store.py', '.start(')}: query=out sink=files:{target}: exactly once"
    assert said in [record.getMessage() for record in caplog.records]

    storage = open_objects(url)
    assert storage is not None
    assert not has_spark_log(target)
    storage.put(f"{SPARK_LOG}/0", b"v1")
    assert has_spark_log(target)


def test_what_a_bucket_does_not_hold_is_refused(spark, url):
    """Nested columns and bytes in CSV, a name twice, the text that is the folder without a value."""
    for columns, arguments, said in (
        ("array(1) AS a, X'00' AS b", ("csv",), "use to_json(`a`), or another format"),
        ("1 AS a, 2 AS A", ("csv",), "columns 'a' and 'A' have one name"),
        ("1 AS a", ("parquet", "a"), "all columns are in partition_by"),
    ):
        with pytest.raises(ConfigError) as refused:
            files(url, *arguments).check(spark.sql(f"SELECT {columns}"), "append")
        assert said in str(refused.value)
    rows = spark.sql(f"SELECT 1 AS id, '{NO_VALUE}' AS k")
    with pytest.raises(RefusedRowsError, match="in column 'k'"):
        publish(rows, url, "parquet", "k")
