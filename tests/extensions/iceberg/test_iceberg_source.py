"""An Iceberg table as a job's source: the contract, and a table whose next snapshot is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider.extensions.iceberg import iceberg_table
from airflow_provider.runtime.api.sources import Source
from airflow_provider.runtime.errors import RunFailedError
from airflow_provider.runtime.testing.sources import ROWS, SourceContract, SourceJob
from tests.extensions.iceberg.iceberg_support import TABLE, catalog_properties
from tests.extensions.iceberg.table_reader_support import Table

pytestmark = [pytest.mark.spark, pytest.mark.long]

JOBS = Path(__file__).parent / "iceberg_source_jobs.py"


class Case:
    """A table, a snapshot a piece."""

    entry = f"{JOBS}:copied"

    def __init__(self, catalog: dict[str, str]) -> None:
        self._catalog = catalog
        self.table = Table(self._catalog)
        self.params = {"table": TABLE, "catalog": json.dumps(self._catalog)}

    def open(self) -> Source:
        return iceberg_table(TABLE, catalog=self._catalog)

    def append(self, first: int) -> None:
        self.table.append(*range(first, first + ROWS))


class TestIcebergTable(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Case:
        return Case(catalog_properties(tmp_path))

    def test_a_run_does_not_end_before_a_snapshot_that_it_refuses(
        self, job: SourceJob, case: Case
    ) -> None:
        """The rows before it are published, and the run fails each time it is tried."""
        job.append(2)
        job.run("r1")
        job.append(1)
        case.table.now.delete("id = 3")

        for _ in range(2):
            with pytest.raises(RunFailedError, match="removed rows"):
                job.run("r2")
        assert job.appended == job.ids()
