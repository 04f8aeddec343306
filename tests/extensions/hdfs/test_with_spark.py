"""A job directory in HDFS, whose checkpoint Spark knows by another address than this package.

The server of tests/contract serves a folder as HDFS; what is HDFS' own address to Spark elsewhere is
that folder here. The Hadoop of PySpark's jars has no client of WebHDFS that works: a class of it is
left out there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from streams import ROCKSDB, STATE, SUSPEND, Location, read_with_pandas, windows_of, write_events

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.driver.restore_job import restore_job
from airflow_provider.runtime.driver.run import run_job
from airflow_provider.runtime.errors import ConfigError
from airflow_provider.runtime.savepoints.catalog import verify_savepoint
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.file_tree import files_under
from airflow_provider.runtime.storage.open import open_storage
from tests.contract.conftest import StoreServer, serve_hdfs

pytestmark = [pytest.mark.spark, pytest.mark.whole]

CHANGELOGS = {**ROCKSDB, f"{STATE}.rocksdb.changelogCheckpointing.enabled": "true"}
FIRST = [(1, "a", 1), (4, "b", 2), (12, "b", 2), (25, "a", 3)]
LATER = [(26, "b", 4), (31, "a", 5), (47, "a", 6)]


@pytest.fixture
def hdfs(tmp_path, monkeypatch) -> Iterator[StoreServer]:
    (tmp_path / "hdfs").mkdir()
    monkeypatch.setenv("SPARK_STREAM_HDFS", f"file://{tmp_path}/hdfs")
    yield from serve_hdfs(str(tmp_path / "hdfs"))


def run(spark: Any, location: Location, folder: str, **asked: Any) -> Any:
    spec = location.ask(
        "tumbling_window", params={"files_per_batch": "1"}, conf=CHANGELOGS, **asked
    )
    return run_job(dataclasses.replace(spec, job_dir=folder), spark=spark)


def test_a_job_in_hdfs_is_suspended_saved_restored_and_drained(spark, location: Location, hdfs):
    """
    A run is suspended, a savepoint is taken beside it, a job in another folder begins from that, and
    every window comes out once.
    """
    write_events(location.input, FIRST[:2], FIRST[2:])
    run(spark, location, f"{hdfs.url}/job", **SUSPEND)
    source = job_source(f"{hdfs.url}/job", SystemClock())
    savepoint = take_savepoint(source, f"{hdfs.url}/savepoints/s1")
    open_storage(hdfs.url).delete("job")
    restore_job(f"{hdfs.url}/moved", savepoint.url)
    write_events(location.input, LATER, first=2)
    run(spark, location, f"{hdfs.url}/moved")

    assert [] == verify_savepoint(savepoint)
    assert windows_of(FIRST + LATER) == read_with_pandas(location.output)
    assert [] == [name for name, _ in files_under(hdfs.url) if ".tmp-" in name]


@pytest.mark.parametrize(
    ("own", "why"), [("file:///nowhere", "it finds no leases/1.json there"), ("what://n", "what")]
)
def test_a_location_that_spark_does_not_see_is_refused(  # noqa: PLR0917 - by name
    spark, location, hdfs, monkeypatch, own, why
):
    """
    A driver whose Spark would write its checkpoint to another location ends before it has read a row.
    """
    monkeypatch.setenv("SPARK_STREAM_HDFS", own)
    write_events(location.input, FIRST)

    with pytest.raises(ConfigError, match="set SPARK_STREAM_HDFS to the address") as raised:
        run(spark, location, f"{hdfs.url}/job")

    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not location.output.exists()
