"""Iceberg tables as other programs write them: old formats, files without a column, damage."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    DecimalType,
    FixedType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.extensions.iceberg.changes import is_read
from airflow_provider.extensions.iceberg.data_source import IcebergDataSource
from airflow_provider.extensions.iceberg.file_rows import FileReader
from airflow_provider.extensions.iceberg.table_options import TableOptions
from airflow_provider.runtime.errors import ConfigError, OutageError
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties
from tests.extensions.iceberg.table_reader_support import Query, Table

pytestmark = pytest.mark.slow

UTC = dt.timezone.utc


@pytest.fixture
def catalog(tmp_path) -> dict[str, str]:
    return catalog_properties(tmp_path)


@pytest.fixture
def table(catalog) -> Table:
    return Table(catalog)


def batch_rows(catalog: dict[str, str], **options: Any) -> list[dict[str, Any]]:
    """Read the table as a batch does."""
    source = iceberg_table(TABLE, catalog=catalog, **options)
    data_source = IcebergDataSource(source.bound().to_spark())
    reader = data_source.reader(data_source.schema())
    read: Any = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [row for batch in read for row in batch.to_pylist()]


def test_a_table_of_format_version_1_is_read_by_a_batch_alone(catalog):
    """It has no sequence numbers, by which a stream orders snapshots; the error says the way out."""
    table = Table(catalog, properties={"format-version": "1"})
    table.append(1, 2)
    table.append(3)
    spark: Any = SimpleNamespace(version="4.3.0")
    source = iceberg_table(TABLE, catalog=catalog)

    assert [1, 2, 3] == sorted(row["id"] for row in batch_rows(catalog))
    for start in (Query(catalog).batch, lambda: source.load(spark, "events", streaming=True)):
        with pytest.raises(ConfigError, match="format version 1.*'format-version'='2'.*BATCH"):
            start()


def test_a_required_column_that_only_the_partition_has_is_read(catalog):
    """
    Writers such as Hive leave partition columns out of the files. Their values are in the manifest,
    also those of columns without nulls.
    """
    kinds = (
        *(LongType(), StringType(), DateType(), TimestampType(), TimestamptzType()),
        *(DecimalType(5, 2), FixedType(3)),
    )
    names = [f"p{number}" for number in range(len(kinds))]
    fields = [
        NestedField(number + 2, name, kind, required=True)
        for number, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    schema = Schema(NestedField(1, "id", LongType(), required=True), *fields)
    spec = PartitionSpec(
        *(
            PartitionField(f.field_id, 1000 + f.field_id, IdentityTransform(), f.name)
            for f in fields
        )
    )
    table = Table(catalog, schema=schema, partition_spec=spec)
    noon = dt.datetime(2023, 5, 15, 12, 0, 1, 5, tzinfo=UTC)
    values = {
        "p0": 7,
        "p1": "seven",
        "p2": noon.date(),
        "p3": noon.replace(tzinfo=None),
        "p4": noon,
        "p5": decimal.Decimal("1.25"),
        "p6": b"abc",
    }
    day, micros = (
        (noon.date() - dt.date(1970, 1, 1)).days,
        int(noon.timestamp()),
    )
    at = micros * 1_000_000 + 5
    stored = Record(7, "seven", day, at, at, decimal.Decimal("1.25"), b"abc")
    add_file(table, pa.table({"id": pa.array([1, 2], pa.int64())}), stored)

    expected = [{"id": number, **values} for number in (1, 2)]
    assert expected == Query(catalog).rows() == batch_rows(catalog)
    assert [{"id": 1, "p1": "seven"}] == batch_rows(catalog, columns=["id", "p1"], where="id = 1")


def add_file(table: Table, rows: pa.Table, partition: Record) -> None:
    """Append a file as a writer does that leaves columns out of it."""
    now = table.now
    path = Path(now.location().removeprefix("file://")) / "data" / "bare.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    numbered = [field.with_metadata({"PARQUET:field_id": "1"}) for field in rows.schema]
    pq.write_table(rows.cast(pa.schema(numbered)), path)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=path.stat().st_size,
    )
    file.spec_id = 0
    with now.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(file)


def first_task(query: Query) -> Any:
    query.batch()
    return query.reader.partitions(query.committed, query.plan())[0]


@pytest.mark.parametrize("damaged", ["data", "deletes"])
def test_a_damaged_file_is_refused_by_name_in_one_line(table, catalog, damaged):
    """A task's error is that of the table, and not one that blames the job."""
    table.append(1, 2)
    path = next(iter(table.now.scan().plan_files())).file.file_path
    table.delete_positions(path, 0, as_vector=True)
    task = first_task(query := Query(catalog))
    broken = {"data": path, "deletes": task.value.files[0].deletes[0].path}[damaged]
    Path(broken.removeprefix("file://")).write_bytes(b"neither\nParquet nor Puffin")

    with pytest.raises(ConfigError) as refused:
        list(query.reader.read(task))
    assert f"{path} cannot be read: " in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_that_does_not_answer_a_task_is_an_outage(table, catalog, monkeypatch):
    """Also where no rule knows its error; the store's credentials stay hidden."""
    secret = "sesame-opens-7"  # noqa: S105 - of the test
    table.append(1)
    query = Query({**catalog, "s3.secret-access-key": secret})
    task = first_task(query)

    def fail(*_: Any) -> Any:
        raise OSError(f"AWS Error NETWORK_CONNECTION with {secret}")

    monkeypatch.setattr(FileReader, "read", fail)
    with pytest.raises(OutageError, match=r"parquet cannot be read: .*NETWORK_CONNECTION with \*"):
        list(query.reader.read(task))


def test_metadata_that_pyiceberg_does_not_expect_are_refused_as_the_tables(
    table, catalog, monkeypatch
):
    """The error does not say that the job is to be corrected, which has no part in it."""
    table.append(1)

    def fail(*_: Any) -> Any:
        raise TypeError("list indices must be integers or slices, not str")

    monkeypatch.setattr(Snapshot, "manifests", fail)
    with pytest.raises(ConfigError, match="pyiceberg cannot read the table: TypeError: list"):
        batch_rows(catalog)


@pytest.mark.parametrize("key", ["deleted-data-files", "added-delete-files"])
def test_a_removal_that_only_the_summary_tells_of_is_refused(monkeypatch, key):
    """A manifest that another program has rewritten may name another snapshot."""
    options = TableOptions(table=TABLE, catalog="c")
    monkeypatch.setattr(Snapshot, "manifests", lambda *_: [])
    facts = {"snapshot-id": 7, "sequence-number": 2, "timestamp-ms": 0, "manifest-list": "none"}
    summary = Summary(Operation.OVERWRITE, **{key: "1"})
    snapshot = Snapshot.model_validate({**facts, "summary": summary})

    io: Any = None
    with pytest.raises(ConfigError, match="snapshot 7 .overwrite.* removed rows"):
        is_read(snapshot, io, options)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServiceUnavailableError("come back later"), OutageError),
        (requests.exceptions.ReadTimeout("no answer"), OutageError),
        (requests.exceptions.InvalidSchema("no such protocol"), ConfigError),
    ],
    ids=["unavailable", "timeout", "address"],
)
def test_a_catalog_that_is_away_is_no_mistake(table, catalog, monkeypatch, error, kind):
    """A query waits for the one by retries, and never for an address that is none."""

    def refuse(*_: object) -> None:
        raise error

    query = Query(catalog)
    with monkeypatch.context() as away:
        away.setattr(SqlCatalog, "load_table", refuse)
        with pytest.raises(kind) as raised:
            query.plan()
    assert kind is type(raised.value)
    table.append(1)
    assert [1] == query.ids()
