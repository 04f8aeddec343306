"""Delays of the flights as they arrive: a stream that never ends, and savepoints of it.

``flights_stream`` reads the folder that ``flights_daily_delays`` fills, a file a month, until its
task is marked. ``flights_savepoints`` takes a savepoint every ten minutes; the stream does not
notice. A DAG that is scheduled by the asset ``flights_savepoint`` finds the address in the
event, as ``flights_savepoint_check`` does, which reads all of it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag, task

from airflow_provider.operators.spark_savepoint import SparkSavepointOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
# One job directory for every run: the next one goes on where the last was stopped.
JOB_DIR = f"{DATA}/stream/job"
SAVEPOINT = Asset("flights_savepoint")


@dag(schedule=None, catchup=False, max_active_runs=1, tags=["spark", "streaming"], doc_md=__doc__)
def flights_stream() -> None:
    """Run the stream; marking the task stops it, and a later run goes on."""
    SparkStreamingOperator(
        task_id="stream",
        job=f"{HERE}/jobs/daily_delays.py:daily_delays_so_far",
        job_dir=JOB_DIR,
        params={"input": f"{DATA}/input", "output": f"{DATA}/stream/output"},
        until="stopped",
        trigger="10 seconds",
        retries=3,  # a driver that dies is followed by one that resumes
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    )


@dag(schedule="*/10 * * * *", catchup=False, max_active_runs=1, tags=["spark", "savepoint"])
def flights_savepoints() -> None:
    """Keep the savepoints of the last hour, and none that is older than a day but the newest."""
    SparkSavepointOperator(
        task_id="savepoint",
        job_dir=JOB_DIR,
        retain={"keep": 6, "max_age": "1 day"},
        outlets=[SAVEPOINT],
    )


@dag(schedule=[SAVEPOINT], catchup=False, tags=["spark", "savepoint"])
def flights_savepoint_check() -> None:
    """Verify each savepoint when it has been taken."""

    @task
    def verify(triggering_asset_events: Any = None) -> str:
        """Compare every file with its checksum, and return the savepoint's address."""
        from airflow_provider.runtime.api.kit.savepoints import open_savepoint, verify_savepoint

        # Events that come at once share a run; the newest savepoint is the one that is kept.
        newest = max(triggering_asset_events[SAVEPOINT], key=lambda event: event.timestamp)
        savepoint = open_savepoint(newest.extra["url"])
        damage = verify_savepoint(savepoint)
        if damage:
            raise RuntimeError("\n".join(damage))
        return savepoint.url

    verify()


flights_stream()
flights_savepoints()
flights_savepoint_check()
