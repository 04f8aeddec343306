"""The catalogs, each one server for the tests of a module, and an empty namespace for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.catalogs.servers import CatalogServer, Metastore, RestServer, namespace_in, running


def _server(kind: str, folder: Path) -> CatalogServer:
    if kind == "rest":
        return RestServer(folder)
    pytest.importorskip("thrift", reason="hive: needs pyiceberg[hive]")
    return Metastore(folder)


@pytest.fixture(scope="module", params=["rest", "hive"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CatalogServer]:
    with running(_server(request.param, tmp_path_factory.mktemp(request.param))) as started:
        yield started


@pytest.fixture
def catalog(server: CatalogServer) -> Iterator[dict[str, str]]:
    with namespace_in(server) as properties:
        yield properties
