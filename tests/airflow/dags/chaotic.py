"""DAGs whose bounded job is slow enough to be disturbed in every phase; one for each ``on_kill``."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "chaotic"


def chaotic(on_kill: str) -> None:
    """Make a DAG of one task; each of its runs has a job directory and an output of its own."""

    @dag(dag_id=f"chaotic_{on_kill}", schedule=None, catchup=False)
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="job",
            job=f"{HERE}/jobs/chaotic.py:copy_and_count",
            job_dir=f"{LOCATION}/{{{{ run_id }}}}/job",
            params={"input": f"{LOCATION}/input", "output": f"{LOCATION}/{{{{ run_id }}}}/output"},
            conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
            retries=3,
            retry_delay=dt.timedelta(seconds=1),
            mode="streaming",
            poll_interval=0.5,
            on_kill=on_kill,
        )

    one_task()


for policy in ("stop", "cancel", "detach"):
    chaotic(policy)
