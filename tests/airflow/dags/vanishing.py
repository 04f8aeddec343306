"""DAGs whose driver ends with exit code 0 before it has done anything."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ["TEST_DATA"])


def vanishing(dag_id: str, *, deferrable: bool) -> None:
    """Make a DAG of one task."""

    @dag(dag_id=dag_id, schedule=None, catchup=False)
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="vanish",
            job=f"{HERE}/jobs/vanishing.py:nothing",
            job_dir=f"{DATA}/{dag_id}/job",
            deferrable=deferrable,
            poll_interval=0.2,
        )

    one_task()


vanishing("vanishes_in_a_worker", deferrable=False)
vanishing("vanishes_deferred", deferrable=True)
