"""The ``iceberg`` sink in real catalogs: its contract, and its tests that SQLite's catalog runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.extensions.iceberg import test_iceberg_sink as sink_tests
from tests.extensions.iceberg.test_iceberg_sink import TestIceberg, sink
from tests.real.catalogs.servers import CatalogServer

__all__ = ["TestIceberg", "sink"]

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

_NOT_HERE = {
    "test_its_dataset_is_the_tables_folder",  # only a catalog without a server says it before
    "test_an_unreachable_catalog_is_refused",  # has addresses of SQL catalogs
    "test_a_catalog_that_does_not_answer_is_no_mistake",  # the same
    "test_a_catalog_by_its_name",  # sets a warehouse
    "test_a_ledger_survives_its_property",  # no catalog
    "test_a_ledger_that_was_changed_is_one_error",  # a value that is too long for Derby
}
globals().update(
    {
        name: value
        for name, value in vars(sink_tests).items()
        if name.startswith("test_") and name not in _NOT_HERE
    }
)


@pytest.fixture
def any_catalog(catalog: dict[str, str]) -> Any:
    return catalog


@pytest.fixture
def tmp_path(server: CatalogServer) -> Path:
    """Return where the tests look for the catalog's files."""
    return server.warehouse
