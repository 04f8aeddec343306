"""The DAG of the benchmark of waits: one mapped task for each job, whose driver is at work."""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

LOCATION = os.environ["WAITS_LOCATION"]
COUNT = int(os.environ["WAITS_COUNT"])


@dag(dag_id="waiting", schedule=None, catchup=False, max_active_tasks=COUNT)
def waiting() -> None:
    """Adopt each job's driver, and wait for its final checkpoint."""
    SparkStreamingOperator.partial(
        task_id="wait", job="jobs.py:job", run_id="waited-for", on_kill="detach"
    ).expand(job_dir=[f"{LOCATION}/{number:04d}" for number in range(COUNT)])


waiting()
