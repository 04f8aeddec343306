"""A REST catalog that dies and refuses for a while: one snapshot for each epoch, and no mistake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import OutageError
from tests.extensions.iceberg.iceberg_support import (
    SCHEMA,
    Frame,
    HandStagedTable,
    load,
    rows_of,
)
from tests.extensions.iceberg.table_reader_support import Query, Table
from tests.real.catalogs.gateway import Gateway, gateway_before
from tests.real.catalogs.servers import RestServer, namespace_in, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

AWAY_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestServer]:
    with running(RestServer(tmp_path_factory.mktemp("rest"))) as started:
        yield started


@pytest.fixture
def catalog(server: RestServer) -> Iterator[dict[str, str]]:
    with namespace_in(server) as properties:
        yield properties


@pytest.fixture
def gateway(catalog: dict[str, str]) -> Iterator[tuple[Gateway, dict[str, str]]]:
    with gateway_before(catalog["uri"]) as (made, address):
        yield made, {**catalog, "uri": address}


def names(catalog: dict[str, str]) -> list[str]:
    return sorted(name for _, name in rows_of(catalog))


def snapshots(catalog: dict[str, str]) -> int:
    return len(load(catalog).metadata.snapshots)


def test_a_server_that_dies_after_a_commit_has_it_once(server, catalog, gateway):
    """The answer is lost with the server; it comes back, and the sink finds the epoch there."""
    proxy, through = gateway
    sink = HandStagedTable(through)
    committable = sink.staged(0, "a")
    restarts: list[threading.Timer] = []

    def die() -> None:
        server.kill()
        restarts.append(threading.Timer(AWAY_S, server.start))
        restarts[0].start()

    proxy.lose = die
    sink.commit(committable, OpenFence())

    restarts[0].join()
    assert (["a"], 1, 1) == (names(catalog), snapshots(catalog), proxy.commits)


def test_a_server_that_is_killed_again_and_again_has_each_epoch_once(server, catalog):
    """It dies at any moment, while two sinks publish; each epoch is one snapshot in the end."""
    epochs, done = 10, threading.Event()
    sinks = [HandStagedTable(catalog) for _ in range(2)]
    staged = [
        [
            sink.staged(epoch, f"{number}-{epoch}", query_id=f"query-{number}")
            for epoch in range(epochs)
        ]
        for number, sink in enumerate(sinks)
    ]
    kills = 0

    def publish(number: int) -> None:
        for committable in staged[number]:
            sinks[number].commit(committable, OpenFence())
            time.sleep(0.3)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if kills < 4:
            server.kill()
            kills += 1
            server.start()
        done.wait(0.35)

    assert 4 == kills
    assert sorted(f"{n}-{e}" for n in range(2) for e in range(epochs)) == names(catalog)
    assert 2 * epochs == snapshots(catalog)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_refusals_for_a_while_pass(catalog, gateway, status):
    """A proxy that refuses some requests delays an epoch, and a run that reads it."""
    proxy, through = gateway
    sink = HandStagedTable(through)
    committable = sink.staged(0, "a")
    proxy.refusals, proxy.status = 4, status
    sink.commit(committable, OpenFence())

    assert (["a"], 1) == (names(catalog), snapshots(catalog))


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_start_during_refusals_is_no_mistake(catalog, gateway, status):
    """A sink and a source that start meanwhile report an outage, which a retry helps against."""
    proxy, through = gateway
    Table(catalog).append(1)
    query: Any = Query(through)
    proxy.refusals, proxy.status = 100, status
    with pytest.raises(OutageError):
        HandStagedTable(through).check(Frame(SCHEMA), "append")
    with pytest.raises(OutageError):
        query.plan()

    proxy.refusals = 0
    assert [1] == query.ids()
