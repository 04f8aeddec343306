"""Every sink, written by executors that are other processes than the driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from clustered_jobs import NOBODY
from drivers import Drivers
from streams import Location, write_events

from airflow_provider.runtime.errors import EXIT_OK
from tests.cluster import Cluster
from tests.extensions.iceberg.iceberg_support import catalog_properties, load
from tests.extensions.postgres.postgres_support import postgres_server

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(400)]

JOB = Path(__file__).with_name("clustered_jobs.py")
FILES = 6
PER_FILE = 5


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    started = Cluster(tmp_path / "cluster")
    for _ in range(2):
        started.worker()
    started.await_workers()
    yield started
    started.end()


@pytest.fixture
def url() -> Iterator[str]:
    with postgres_server() as found:
        yield found


def in_files(folder: Path) -> list[tuple[Any, ...]]:
    found = duckdb.sql(f"select v, executor from '{folder}/*.parquet'")
    assert found is not None
    return found.fetchall()


def in_delta(folder: Path) -> list[tuple[Any, ...]]:
    from deltalake import DeltaTable

    table = DeltaTable(str(folder)).to_pyarrow_table(columns=["v", "executor"])
    return list(zip(*table.to_pydict().values(), strict=True))


def in_iceberg(catalog: dict[str, str]) -> list[tuple[Any, ...]]:
    scan = load(catalog, "ns.out").scan(selected_fields=("v", "executor"))
    return list(zip(*scan.to_arrow().to_pydict().values(), strict=True))


def in_sql(url: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(url) as connection:
        return connection.execute("select v, executor from out").fetchall()


def test_every_sink_is_written_from_other_processes(
    location: Location, drivers: Drivers, cluster: Cluster, url: str
) -> None:
    """
    Files, Delta, Iceberg, SQL and a sink of Spark's have each row once, made by two executors.
    """
    write_events(
        location.input,
        *([(n, "a", n) for n in range(f * PER_FILE, (f + 1) * PER_FILE)] for f in range(FILES)),
    )
    catalog = catalog_properties(location.root)

    driver = drivers.run(
        "everywhere",
        {"catalog": json.dumps(catalog), "url": url},
        f"--entry={JOB}:everywhere",
        f"--master={cluster.url}",
        "--conf=spark.executor.memory=512m",
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    code = driver.wait()

    assert EXIT_OK == code, driver.log[-3000:]
    readers: dict[str, Callable[[], list[tuple[Any, ...]]]] = {
        "files": lambda: in_files(location.output / "files"),
        "delta": lambda: in_delta(location.output / "delta"),
        "iceberg": lambda: in_iceberg(catalog),
        "postgres": lambda: in_sql(url),
        "spark": lambda: in_files(location.output / "spark"),
    }
    found = {name: sorted(read()) for name, read in readers.items()}
    every = list(range(FILES * PER_FILE))
    assert dict.fromkeys(readers, every) == {n: [v for v, _ in rows] for n, rows in found.items()}
    executors = {executor for rows in found.values() for _, executor in rows}
    assert NOBODY not in executors
    assert len(executors) == 2
    assert "FINISHED" == driver.final()["outcome"]
