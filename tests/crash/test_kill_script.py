"""A plain script under the runtime, whose driver dies again and again."""

from __future__ import annotations

import sys

import duckdb
import pytest
from scripting import SCRIPTS, flights_of, write_flights
from streams import CONF

from airflow_provider.runtime.errors import EXIT_OK
from tests.jvm import jvm_options
from tests.present import present

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(600)]

# Staged, recorded, half of an epoch published, the drain planned, the last row produced.
DEATHS = (
    "sink.staged",
    "sink.precommitted",
    "files.published_one",
    "drain.planned",
    "final.finished",
)


def read_hours(folder):
    return sorted(present(duckdb.sql(f"FROM read_parquet('{folder}/*')")).fetchall())


def test_a_script_killed_five_times_is_exact(location, drivers):
    """The same command resumes it each time; no row is missing or twice, and its last lines run."""
    write_flights(location.input, 0, 1, 2, 3, 4)
    conf = {
        **CONF,
        "spark.driver.extraJavaOptions": jvm_options(),
        "spark.sql.shuffle.partitions": "1",
    }

    def run(**environment: str):
        return drivers.command(
            *("run", str(location.job_dir), "--script", str(SCRIPTS / "hourly_delays.py")),
            *("--master=local[2]", "--json", *(f"--conf={k}={v}" for k, v in conf.items())),
            *("--", "--input", str(location.input), "--output", str(location.output / "hours")),
            *("--checkpoint", str(location.root / "checkpoint")),
            PYSPARK_PYTHON=sys.executable,
            **environment,
        )

    for point in DEATHS:
        driver = run(SPARK_STREAM_FAILPOINT=point)
        assert driver.wait() != EXIT_OK, driver.log
        driver.end_group()

    last = run()
    assert EXIT_OK == last.wait(), last.log

    assert flights_of(0, 1, 2, 3, 4) == read_hours(location.output / "hours")
    final = last.final()
    assert "hours: 10" in last.log
    assert ("FINISHED", 6, 15) == (final["outcome"], final["attempts"], final["rows_read"])
