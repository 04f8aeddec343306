"""DAGs whose drivers have their executors on a cluster, and stand still in their last batch."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ["TEST_DATA"])
VICTIMS = ("executor", "machine", "launcher", "driver", "host", "triggerer")


def clustered(victim: str) -> None:
    """Make the DAG of one task in whose run something is killed."""
    location = DATA / f"clustered_{victim}"

    @dag(dag_id=location.name, schedule=None, catchup=False)
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="count",
            job=f"{HERE}/jobs/gated.py:count",
            job_dir=f"{location}/job",
            params={name: f"{location}/{name}" for name in ("input", "output", "gate")},
            conn_id="a_cluster",
            conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"},
            env_vars={"SPARK_LOCAL_IP": "127.0.0.1"},
            executor_memory="512m",
            retries=2,
            retry_delay=dt.timedelta(seconds=1),
            mode="streaming",  # the test looks at its batches
            poll_interval=0.5,
        )

    one_task()


for each in VICTIMS:
    clustered(each)
