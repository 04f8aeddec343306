"""Locks of Hive's metastore: whose writer has died, or stood still until another one got it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider.runtime.api.sinks import OpenFence
from airflow_provider.runtime.errors import SinkError
from tests.extensions.iceberg.iceberg_support import (
    HandStagedTable,
    append,
    catalog_of,
    load,
    rows_of,
)
from tests.real.catalogs.servers import Metastore, namespace_in, running
from tests.unit.support import FakeClock

pytest.importorskip("thrift", reason="hive: needs pyiceberg[hive]")

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

TIMEOUT_S = 5
QUICK = {"lock-check-max-wait-time": "0.2", "lock-check-retries": "2"}


@pytest.fixture(scope="module", params=["true", "false"], ids=["removed", "kept"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Metastore]:
    settings = {
        "hive.compactor.initiator.on": request.param,  # it starts what removes old locks, too
        "hive.txn.timeout": f"{TIMEOUT_S}s",
        "hive.timedout.txn.reaper.start": "1s",
        "hive.timedout.txn.reaper.interval": "1s",
    }
    with running(Metastore(tmp_path_factory.mktemp("hive"), settings)) as started:
        yield started


@pytest.fixture
def catalog(server: Metastore) -> Iterator[dict[str, str]]:
    with namespace_in(server) as properties:
        yield {**properties, **QUICK}


def names(catalog: dict[str, str]) -> list[str]:
    return sorted(name for _, name in rows_of(catalog))


def take_lock(catalog: dict[str, str]) -> int:
    """Take the table's lock as a commit does, and leave it as a writer does that dies."""
    opened: Any = catalog_of(catalog)
    with opened._client as client:
        return int(client.lock(opened._create_lock_request("ns", "events")).lockid)


def release_lock(catalog: dict[str, str], lock: int) -> None:
    from hive_metastore.ttypes import UnlockRequest

    opened: Any = catalog_of(catalog)
    with opened._client as client:
        client.unlock(UnlockRequest(lockid=lock))


def test_the_lock_of_a_dead_writer(server, catalog, request):
    """The next one gets through when the metastore has removed it; else it fails, and says so."""
    clock = FakeClock()

    def pass_time() -> None:
        clock.time += 50

    clock.during_sleep = pass_time
    removes = "removed" in request.node.name
    sink = HandStagedTable(catalog, clock=None if removes else clock)
    committable = sink.staged(0, "a")
    lock = take_lock(catalog)
    started = time.monotonic()
    if removes:
        sink.commit(committable, OpenFence())
        assert TIMEOUT_S - 2 <= time.monotonic() - started
    else:
        with pytest.raises(SinkError, match="Failed to acquire lock"):
            sink.commit(committable, OpenFence())
        release_lock(catalog, lock)
        sink.commit(committable, OpenFence())

    assert (["a"], 1) == (names(catalog), len(load(catalog).metadata.snapshots))


def test_a_writer_that_has_lost_its_lock_replaces_nothing(catalog, monkeypatch):
    """It stood still between lock and swap; another one has committed meanwhile, and stays."""
    sink = HandStagedTable(catalog)
    committable = sink.staged(0, "a")
    opened: Any = sink._open()
    held: list[int] = []
    write = opened._write_metadata

    def lose_lock(*what: Any, **more: Any) -> None:
        write(*what, **more)
        if not held:
            held.append(locks_of(opened)[0])
            release_lock(catalog, held[0])
            append(catalog, "theirs")

    monkeypatch.setattr(opened, "_write_metadata", lose_lock)
    sink.commit(committable, OpenFence())

    assert ["a", "theirs"] == names(catalog)


def locks_of(catalog: Any) -> list[int]:
    from hive_metastore.ttypes import ShowLocksRequest

    other = catalog_of({"name": "other", **catalog.properties})
    with other._client as client:
        return [int(each.lockid) for each in client.show_locks(ShowLocksRequest()).locks]
