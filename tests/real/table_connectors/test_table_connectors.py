"""Tables that are read as streams by their connectors: Delta's and Iceberg's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from streams import read_with_duckdb

from airflow_provider.runtime.base import failpoints
from airflow_provider.runtime.errors import EXIT_OK
from scripts import versions
from tests.real.fetching import jars_of, pyspark_of

pytestmark = [pytest.mark.spark, pytest.mark.real, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
SPARK = "4.1.0"  # the version that both were made for; Delta reads no batch on 4.1.4
JOBS = HERE / "table_jobs.py"
FIRST, LATER = 4, 2
EXTENSIONS = {
    "delta": {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
    "iceberg": {},
}
SUSPENDED = ("--until=available", "--at-end=suspend")


class Tables:
    """A table of one kind, which its connector writes and our jobs read."""

    def __init__(self, kind: str, location: Any, drivers: Any) -> None:
        self.kind, self._location, self._drivers = kind, location, drivers
        jars = ",".join(map(str, jars_of(HERE / "pom.xml")))
        self._conf = {"spark.jars": jars, **EXTENSIONS[kind]}
        self._environment = versions.environment_of(pyspark_of(SPARK))
        self._commits = 0

    def append(self, commits: int) -> None:
        conf = [f"--conf={key}={value}" for key, value in self._conf.items()]
        arguments = " ".join(["--master=local[2]", *conf, "pyspark-shell"])
        command = [sys.executable, str(HERE / "append_rows.py"), self.kind]
        subprocess.run(
            [*command, str(self._location.input), str(self._commits), str(commits)],
            env={**self._environment, "PYSPARK_SUBMIT_ARGS": arguments},
            check=True,
            capture_output=True,
        )
        self._commits += commits

    def run(self, *more: str, **environment: str) -> Any:
        return self._drivers.run(
            "",
            {"kind": self.kind},
            f"--entry={JOBS}:copied",
            *(f"--conf={key}={value}" for key, value in self._conf.items()),
            *more,
            PYTHONPATH=self._environment["PYTHONPATH"],
            SPARK_STREAM_CACHE=self._environment["SPARK_STREAM_CACHE"],
            **environment,
        )


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: Any, location: Any, drivers: Any) -> Tables:
    return Tables(request.param, location, drivers)


def test_batch_counts_and_reads_the_whole_table(tables, location):
    """The account of a BATCH run has the rows of the table, unless the connector filters uncounted."""
    tables.append(FIRST)

    run = tables.run("--mode=batch")

    assert EXIT_OK == run.wait(), run.log[-3000:]
    assert list(range(100 * FIRST)) == numbers_in(location.output)
    counted = {"delta": 100 * FIRST, "iceberg": None}
    assert counted[tables.kind] == run.final()["rows_read"]


def committed(location: Any) -> int:
    return sum(path.name.isdigit() for path in (location.checkpoint() / "commits").iterdir())


def numbers_in(folder: Path) -> list[int]:
    return sorted(row[0] for row in read_with_duckdb(folder / "part-*"))


def test_a_run_reads_to_the_end_that_it_first_found(tables, location):
    """
    Each batch takes two files of sixteen. The driver dies, and rows are appended: the next attempt
    reads what the first one has found, and no more; the next run reads the rest. Of Iceberg's
    offsets nothing tells which of two comes first, so the next attempt reads the rest in one batch.
    """
    tables.append(FIRST)
    dying = tables.run("--run-id=r1", *SUSPENDED, SPARK_STREAM_FAILPOINT="sink.published")
    assert failpoints.CRASH_EXIT == dying.wait(), dying.log[-3000:]
    tables.append(LATER)

    first = tables.run("--run-id=r1", *SUSPENDED)

    assert EXIT_OK == first.wait(), first.log[-3000:]
    assert list(range(100 * FIRST)) == numbers_in(location.output)
    assert {"delta": 8, "iceberg": 1}[tables.kind] <= committed(location)
    second = tables.run("--run-id=r2", *SUSPENDED)
    assert EXIT_OK == second.wait(), second.log[-3000:]
    assert list(range(100 * (FIRST + LATER))) == numbers_in(location.output)
    assert 100 * LATER == second.final()["rows_read"]
