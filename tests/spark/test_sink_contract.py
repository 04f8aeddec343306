"""Every sink of the package against the contract that it ships."""

from __future__ import annotations

import duckdb
import pytest

from airflow_provider.runtime import files
from airflow_provider.runtime.testing import SinkContract
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


class TestFiles(SinkContract):
    """The ``files`` sink, Parquet."""

    @pytest.fixture
    def case(self, tmp_path):
        return FolderCase(tmp_path, "parquet", ())


@pytest.mark.whole
class TestPartitionedFiles(SinkContract):
    """The ``files`` sink, Parquet in folders by value."""

    @pytest.fixture
    def case(self, tmp_path):
        return FolderCase(tmp_path, "parquet", ("name",))


@pytest.mark.whole
class TestTextFiles(SinkContract):
    """The ``files`` sink, JSON lines and CSV."""

    @pytest.fixture(params=["json", "csv"])
    def case(self, tmp_path, request):
        return FolderCase(tmp_path, request.param, ())
