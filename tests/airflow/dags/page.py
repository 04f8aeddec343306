"""A DAG of jobs that are made by hand: its tasks find them as they are, and start no driver."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

LOCATION = Path(os.environ["TEST_DATA"]) / "page"


@dag(dag_id="page", schedule=None, catchup=False)
def page() -> None:
    """Make a task for each job; one that would need a driver is refused, for it has no file."""
    for name in ("running", "finished", "failed"):
        SparkStreamingOperator(
            task_id=name,
            job="/nowhere/jobs.py:daily",
            job_dir=f"{LOCATION}/{name}",
            run_id="r1",
            interval=None,
            on_kill="detach",
        )


page()
