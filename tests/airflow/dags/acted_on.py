"""A DAG of a stream that people act on from the page in Airflow's UI."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "acted_on"


@dag(schedule=None, catchup=False, max_active_runs=1)
def acted_on() -> None:
    """Read on until somebody ends it."""
    SparkStreamingOperator(
        task_id="stream",
        job=f"{HERE}/jobs/growing.py:count",
        job_dir=f"{LOCATION}/job",
        params={"input": f"{LOCATION}/input", "output": f"{LOCATION}/output"},
        until="stopped",
        trigger="1 second",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
    )


acted_on()
