"""DAG of one task whose run is there before it."""

from __future__ import annotations

import os

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator


@dag(dag_id="adopting", schedule=None, catchup=False)
def adopting() -> None:
    """Wait for the run, which others have begun."""
    SparkStreamingOperator(
        task_id="daily",
        job="job.py:daily",
        job_dir=f"{os.environ['TEST_DATA']}/job",
        run_id="r1",
        interval=None,
    )


adopting()
