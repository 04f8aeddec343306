"""DAGs whose drivers run on YARN, in each deploy mode, and stand still in their last batch."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = Path(os.environ["TEST_DATA"])
MODES = ("client", "cluster")
FATES = ("killed", "marked")


def on_yarn(fate: str, mode: str) -> None:
    """Make the DAG of one task whose application does not end by itself."""
    location = DATA / f"{fate}_{mode}"

    @dag(dag_id=location.name, schedule=None, catchup=False)
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="count",
            job=f"{HERE}/jobs/gated.py:count",
            job_dir=f"{location}/job",
            params={
                "input": f"file://{location}/input",  # a path alone is one in HDFS, to Spark
                **{name: f"{location}/{name}" for name in ("output", "gate")},
            },
            conn_id="yarn",
            deploy_mode=mode,
            retries=2,
            retry_delay=dt.timedelta(seconds=1),
            mode="streaming",  # the test looks at its batches
            poll_interval=0.5,
        )

    one_task()


for each in FATES:
    for each_mode in MODES:
        on_yarn(each, each_mode)
