"""A warm driver of a cluster's: what a run has of the cluster is given back with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from streams import Event, read_with_pandas, windows_of, write_events
from warm_pools import Pool, await_until

from airflow_provider.runtime.errors import EXIT_OK
from tests.cluster import Cluster, is_executor

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(400)]

JOBS = Path(__file__).with_name("jobs.py")
EVENTS: list[Event] = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "cluster")
    started.worker()
    started.await_workers()
    yield started
    started.end()


@pytest.fixture
def pool(tmp_path: Path, cluster: Cluster) -> Iterator[Pool]:
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.cores.max": "2",
        "spark.executor.memory": "512m",
    }
    started = Pool(tmp_path, master=cluster.url, conf=conf)
    yield started
    started.end()


def is_free(cluster: Cluster) -> bool:
    """Whether the master knows no application, and the worker has no executor."""
    return not cluster.applications() and not any(map(is_executor, cluster.children()))


def test_executors_are_given_back_between_two_runs(tmp_path, cluster, pool):
    """
    Each of two runs in one JVM is an application of its own; while the driver waits, the master
    knows none and the worker has no executor.
    """
    write_events(tmp_path / "input", EVENTS)
    jvms = set()
    for number, mode in enumerate(("batch", "streaming")):
        jvms.add(pool.ready().jvm)
        await_until(lambda: is_free(cluster))
        output = tmp_path / f"out-{number}"
        params = {"input": tmp_path / "input", "output": output}
        command = pool.arguments(
            f"{JOBS}:tumbling_window", tmp_path / f"job-{number}", params, mode=mode
        )
        started = pool.start(command)
        seen = await_until(cluster.applications)
        assert EXIT_OK == started.wait(), started.log
        assert windows_of(EVENTS) == read_with_pandas(output)
        assert 1 == len(seen)
    pool.ready()
    assert 1 == len(jvms), pool.log
    await_until(lambda: is_free(cluster))
