"""DAGs of a stream that others stop: one from the triggerer, one from a worker."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import Asset, dag

from airflow_provider.operators.spark_stop import SparkStopOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "stopped"
JOB_DIR = f"{LOCATION}/job"


@dag(schedule=None, catchup=False, max_active_runs=1)
def stopped_stream() -> None:
    """Read on until somebody stops it."""
    SparkStreamingOperator(
        task_id="stream",
        job=f"{HERE}/jobs/growing.py:count",
        job_dir=JOB_DIR,
        params={"input": f"{LOCATION}/input", "output": f"{LOCATION}/output"},
        until="stopped",
        trigger="1 second",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
    )


@dag(schedule=None, catchup=False)
def stops_soon() -> None:
    """Stop it with a savepoint whose name is taken, which is known before the worker defers."""
    SparkStopOperator(task_id="stop", job_dir=JOB_DIR, savepoint="stopped-1", retries=2)


@dag(schedule=None, catchup=False)
def stops_deferred() -> None:
    """Stop it with a savepoint, without a worker slot."""
    SparkStopOperator(
        task_id="stop",
        job_dir=JOB_DIR,
        savepoint="stopped-{{ ti.try_number }}",
        outlets=[Asset("stopped_stream")],
        retries=2,
        defer_after=0,
        poll_interval=0.2,
    )


@dag(schedule=None, catchup=False)
def drains_in_a_worker() -> None:
    """End it for good."""
    SparkStopOperator(task_id="stop", job_dir=JOB_DIR, drain=True, deferrable=False, retries=2)


stopped_stream()
stops_soon()
stops_deferred()
drains_in_a_worker()
