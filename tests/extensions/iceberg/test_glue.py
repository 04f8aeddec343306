"""The ``iceberg`` sink in Glue's catalog, which is moto's: the contract, and committers that race."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from airflow_provider.runtime.api.sinks import OpenFence
from tests.extensions.iceberg import test_iceberg_sink as sink_tests
from tests.extensions.iceberg.iceberg_support import (
    HandStagedTable,
    catalog_of,
    load,
    rows_of,
)
from tests.extensions.iceberg.served import served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Serve Glue; it compares the version of a table, as Amazon's does and moto's does not."""
    plain, turn = GlueResponse.update_table, threading.Lock()

    def compared(self: GlueResponse) -> object:
        wanted = self.parameters.get("VersionId")
        with turn:
            table = self.glue_backend.get_table(
                self.parameters["DatabaseName"], self.parameters["TableInput"]["Name"]
            )
            if wanted is not None and wanted != str(len(table.versions)):
                raise GlueClientError("ConcurrentModificationException", "another version")
            return plain(self)

    app = DomainDispatcherApplication(create_backend_app)
    with pytest.MonkeyPatch.context() as patch, served(app) as made:
        patch.setattr(GlueResponse, "update_table", compared)
        yield made


@pytest.fixture
def catalog(address: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    properties = {
        "name": "test",
        "type": "glue",
        "glue.endpoint": address,
        "glue.region": "us-east-1",
        "glue.access-key-id": "id",
        "glue.secret-access-key": "secret",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    opened = catalog_of(properties)
    opened.create_namespace("ns")
    yield properties
    for table in opened.list_tables("ns"):
        opened.drop_table(table)
    opened.drop_namespace("ns")


class TestIcebergInGlue(sink_tests.TestIceberg):
    """The contract, with rows staged by hand."""


def test_committers_that_race_publish_each_epoch_once(catalog):
    """Each of two sinks loses some swaps, looks again, and goes on."""
    epochs = 5
    sinks = [HandStagedTable(catalog) for _ in range(2)]
    staged = [
        [sink.staged(epoch, f"{n}-{epoch}", query_id=f"query-{n}") for epoch in range(epochs)]
        for n, sink in enumerate(sinks)
    ]
    failures: list[BaseException] = []

    def publish(number: int) -> None:
        try:
            for committable in staged[number]:
                sinks[number].commit(committable, OpenFence())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    expected = sorted(f"{n}-{epoch}" for n in range(2) for epoch in range(epochs))
    assert expected == sorted(name for _, name in rows_of(catalog))
    assert 2 * epochs == len(load(catalog).metadata.snapshots)
