"""Every sink of the package against the contract that it ships."""

from __future__ import annotations

import io
import uuid

import duckdb
import pyarrow.parquet as pq
import pytest
from contracts import DyingElsewhere
from stores import told_to_workers

from airflow_provider.runtime import files
from airflow_provider.runtime.storage.open import open_objects
from airflow_provider.runtime.testing.sinks import RevertibleSinkContract
from tests.present import present

COLUMNS = ", columns={'id': 'BIGINT', 'name': 'VARCHAR'}"
READING = {
    "parquet": "",
    "json": COLUMNS + ", format='newline_delimited'",
    "csv": COLUMNS + ", header=false, auto_detect=false",
}

pytestmark = pytest.mark.spark


class FolderCase:
    """A folder read by DuckDB."""

    def __init__(self, root, file_format, partition_by):
        self.folder = root / "out"
        self.file_format = file_format
        self.partition_by = partition_by

    def open(self):
        return files(str(self.folder), self.file_format, self.partition_by)

    def visible(self):
        pattern = f"{self.folder}/**/*.{self.file_format}*"
        if not any(self.folder.rglob("part-*")):
            return []
        query = (
            f"select id, name from read_{self.file_format}('{pattern}'{READING[self.file_format]})"
        )
        return present(duckdb.sql(query)).fetchall()


class TestFiles(DyingElsewhere):
    """The ``files`` sink, Parquet."""

    @pytest.fixture
    def case(self, tmp_path):
        return FolderCase(tmp_path, "parquet", ())


@pytest.mark.whole
class TestPartitionedFiles(RevertibleSinkContract):
    """The ``files`` sink, Parquet in folders by value."""

    @pytest.fixture
    def case(self, tmp_path):
        return FolderCase(tmp_path, "parquet", ("name",))


class BucketCase:
    """A folder in a store, read as its objects are."""

    def __init__(self, server):
        self.url = f"{server.url}/{uuid.uuid4().hex}/out"

    def open(self):
        return files(self.url)

    def visible(self):
        storage = open_objects(self.url)
        assert storage is not None
        tables = [pq.read_table(io.BytesIO(storage.read(path))) for path, _ in storage.files()]
        return [(row["id"], row["name"]) for table in tables for row in table.to_pylist()]


@pytest.mark.whole
class TestFilesInBuckets(RevertibleSinkContract):
    """The ``files`` sink in each store; without Spark in tests/extensions/bucket_files/test_bucket_files.py."""

    @pytest.fixture(params=["s3", "gcs", "azurite"])
    def case(self, spark, request):
        server = request.getfixturevalue(request.param)
        with told_to_workers(spark):
            yield BucketCase(server)


@pytest.mark.whole
class TestTextFiles(RevertibleSinkContract):
    """The ``files`` sink, JSON lines and CSV."""

    @pytest.fixture(params=["json", "csv"])
    def case(self, tmp_path, request):
        return FolderCase(tmp_path, request.param, ())
