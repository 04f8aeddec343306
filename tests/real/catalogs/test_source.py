"""Iceberg tables of real catalogs as a source: the contract, and what other programs do to them."""

from __future__ import annotations

import pytest

from tests.extensions.iceberg import test_iceberg_table as table_tests
from tests.extensions.iceberg.test_iceberg_source import Case, TestIcebergTable
from tests.extensions.iceberg.test_iceberg_table import expire, table

__all__ = ["TestTableOfCatalog", "expire", "table"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

_NOT_HERE = {
    "test_tasks_travel_to_executors_without_the_catalog",  # removes SQLite's file
}
globals().update(
    {
        name: value
        for name, value in vars(table_tests).items()
        if name.startswith("test_") and name not in _NOT_HERE
    }
)


@pytest.mark.spark
class TestTableOfCatalog(TestIcebergTable):
    @pytest.fixture
    def case(self, catalog: dict[str, str]) -> Case:
        return Case(catalog)


del TestIcebergTable  # or its tests would run once more, with a catalog of SQL
