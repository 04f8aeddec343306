"""Names of datasets: those of OpenLineage's specification, and nothing of an address that is secret."""

from __future__ import annotations

import json

import pytest

from airflow_provider.extensions.delta import delta
from airflow_provider.extensions.postgres.sink import postgres
from airflow_provider.runtime.api.sources import ObservedSource
from airflow_provider.runtime.jobdir.datasets import datasets_of, folder_dataset, table_dataset
from airflow_provider.runtime.jobdir.run_records import AttemptRecord
from airflow_provider.runtime.queries.query import QueryDefinition
from airflow_provider.runtime.sinks.files import files
from airflow_provider.runtime.sinks.spark_sink import DiscardSink, spark_sink
from airflow_provider.runtime.sources.shorthand import source_of_format
from airflow_provider.runtime.testing.job_directories import an_attempt
from tests.declaring import declared

AZURE = "abfss://lake@account.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("url", "namespace", "name"),
    [
        ("/data/in", "file", "/data/in"),
        ("file:///data/in/", "file", "/data/in"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("s3a://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3://bucket", "s3://bucket", "/"),
        ("s3://key:secret@bucket/a", "s3://bucket", "a"),
        ("s3://bucket/a?b#c", "s3://bucket", "a?b#c"),
        ("gcs://bucket/a", "gs://bucket", "a"),
        (f"{AZURE}/a", AZURE, "a"),
        (f"{AZURE.replace('lake', 'lake:secret')}/a", AZURE, "a"),
        ("hdfs://user:secret@names:8020/a", "hdfs://names:8020", "a"),
    ],
)
def test_a_folder_is_named_by_its_bucket(url, namespace, name):
    """Hadoop's scheme and the store's own are one; who reads it is left out."""
    assert (namespace, name) == folder_dataset(url)


@pytest.mark.parametrize(
    ("data_format", "path", "options", "datasets"),
    [
        ("csv", "/in", {}, [("file", "/in")]),
        ("Parquet", None, {"path": "/in", "key": "secret"}, [("file", "/in")]),
        ("delta", "s3a://b/t", {}, [("s3://b", "t")]),
        ("iceberg", "/warehouse/t", {}, [("file", "/warehouse/t")]),
        ("iceberg", "catalog.ns.t", {}, []),
        ("rate", None, {}, []),
        ("console", None, {}, []),
        ("unknown", None, {}, []),
        ("kafka", None, {"kafka.bootstrap.servers": "h:1,i:2", "subscribe": "a, b"},
         [("kafka://h:1", "a"), ("kafka://h:1", "b")]),
        ("kafka", None, {"kafka.bootstrap.servers": "SASL_SSL://u:secret@h", "assign": '{"t":[0]}'},
         [("kafka://h:9092", "t")]),
        ("kafka", None, {"Kafka.Bootstrap.Servers": "h:1", "subscribePattern": "a.*"},
         [("kafka://h:1", "a.*")]),
        ("kafka", None, {"kafka.bootstrap.servers": "h:1", "topic": "out"}, [("kafka://h:1", "out")]),
        ("spark-stream-kafka", None, {"kafka.bootstrap.servers": "h:1", "subscribe": "a"},
         [("kafka://h:1", "a")]),
        ("kafka", None, {"kafka.bootstrap.servers": "h:1", "assign": "?"}, []),
        ("kafka", None, {"subscribe": "a"}, []),
    ],
)  # fmt: skip
def test_sparks_readers_and_writers_are_named_by_their_options(
    data_format, path, options, datasets
):
    """What has no address has no name."""
    source = source_of_format(data_format, path, None, options)
    assert isinstance(source, ObservedSource)
    assert datasets == list(source.datasets())
    if data_format in {"kafka", "rate", "console"}:
        assert datasets == list(datasets_of(data_format, options))


@pytest.mark.parametrize(
    ("host", "port", "namespace"),
    [
        ("db", None, "postgres://db:5432"),
        ("one,two", "6000,6001", "postgres://one:6000"),
        ("/var/run/postgresql", "", "postgres://localhost:5432"),
    ],
)
def test_a_table_is_named_by_its_server(host, port, namespace):
    """The first server of several, and PostgreSQL's port where none is given."""
    assert (namespace, "d.public.t") == table_dataset(host, port, "d", "public", "t")


class Broken:
    """A sink of a user's whose location cannot be found out."""

    name = "broken"

    @property
    def datasets(self):
        raise OSError("the catalog is away")


class OfUsers:
    """A sink of a user's that says nothing."""

    name = "of users"


def test_a_query_says_what_it_reads_and_writes(caplog):
    """By source and sink, without a password; a sink that cannot say it fails nothing."""
    source = declared(
        name="in", format="csv", path="/in", schema=None, options={}, bounded=True, watermark=None
    )
    pytest.importorskip("psycopg")
    sinks = (
        files("/out"),
        delta("s3://b/t"),
        postgres("postgresql://u:secret@db/shop", "sales.orders"),
        postgres("postgresql://u:secret@db:6000/shop", "orders"),
        DiscardSink(files("/x")),
        Broken(),
        OfUsers(),
    )
    query = QueryDefinition("q", None, sinks, "append", (), (source,))  # type: ignore[arg-type]
    kafka = spark_sink("kafka", {"kafka.bootstrap.servers": "h:1", "topic": "out"})

    said = query.datasets()

    assert {"in": [{"namespace": "file", "name": "/in"}]} == said["sources"]
    assert [
        [{"namespace": "file", "name": "/out"}],
        [{"namespace": "s3://b", "name": "t"}],
        [{"namespace": "postgres://db:5432", "name": "shop.sales.orders"}],
        [{"namespace": "postgres://db:6000", "name": "shop.public.orders"}],
        [],
        [],
        [],
    ] == list(said["sinks"].values())
    assert "broken: it is not known where it writes" in caplog.text
    assert [("kafka://h:1", "out")] == list(kafka.datasets())
    assert "secret" not in json.dumps(said)
    record = an_attempt(datasets={"q": said})
    assert record == AttemptRecord.from_dict(json.loads(record.to_bytes()), where="1.json")
