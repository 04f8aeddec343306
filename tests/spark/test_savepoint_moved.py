"""A savepoint of a real query that goes to an object store and back, while all before it goes."""

from __future__ import annotations

import shutil
import uuid
from collections import Counter

import fsspec
import pytest
from streams import START, Event, Location, Rows, plain, read_with_duckdb, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.savepoints.catalog import open_savepoint, verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from tests.contract.conftest import serve_s3

pytestmark = pytest.mark.spark

STORE = "spark.sql.streaming.stateStore"
CHANGELOGS = {
    f"{STORE}.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    f"{STORE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{STORE}.minDeltasForSnapshot": "2",
    f"{STORE}.maintenanceInterval": "1s",
}
FIRST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]
LATER = [(26, "b", 4), (31, "a", 5), (47, "a", 6)]

# Not for the session: the contract tests have a server of their own.
s3 = pytest.fixture(scope="module")(serve_s3)


def buckets_of(events: list[Event]) -> Rows:
    counts = Counter((k, START + t - t % 10) for t, k, _ in events)
    return sorted((k, start, n) for (k, start), n in counts.items())


def state_of(spark, checkpoint: str, **reading: str) -> list[str]:
    state = spark.read.format("statestore").options(**reading).load(checkpoint)
    return sorted(str(row) for row in state.collect())


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(("tumbling_window", windows_of, {}), id="windows"),
        pytest.param(
            ("timers", buckets_of, {"stateVarName": "counts"}), id="timers", marks=pytest.mark.whole
        ),
    ],
)
def test_from_a_disk_to_a_store_and_to_another_disk(spark, location, s3, case):
    """
    Copied by what knows nothing of savepoints, with the job and each earlier copy gone: the query
    goes on to the exact end. Spark reads the state of the savepoint where it was taken.
    """
    job, truth, reading = case
    write_events(location.input, FIRST[:2], FIRST[2:])
    asked = {"params": {"files_per_batch": "1"}, "conf": CHANGELOGS}
    location.run(spark, job, until="available", at_end="suspend", **asked)
    before = state_of(spark, str(location.checkpoint()), **reading)
    url = str(location.root / "savepoints" / "s1")
    taken = take_savepoint(job_source(str(location.job_dir), SystemClock()), url)
    shutil.rmtree(location.job_dir)

    assert before
    assert before == state_of(spark, f"{taken.url}/queries/out", **reading)

    store = fsspec.filesystem("s3")
    remote, back = f"{s3.url}/{uuid.uuid4().hex}", str(location.root / "another" / "disk")
    store.put(f"{taken.url}/", remote, recursive=True)
    shutil.rmtree(taken.url)
    store.get(f"{remote}/", back, recursive=True)
    store.rm(remote, recursive=True)
    assert [] == verify_savepoint(open_savepoint(back))

    new = Location(location.root / "new")
    write_events(location.input, LATER, first=2)
    asked["params"] |= {"input": str(location.input)}
    run_job(new.ask(job, from_savepoint=back, **asked), spark=spark)
    outputs = [*location.output.glob("part-*"), *new.output.glob("part-*")]
    assert truth([*FIRST, *LATER]) == plain(r for path in outputs for r in read_with_duckdb(path))
