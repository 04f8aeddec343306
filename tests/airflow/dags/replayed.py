"""A DAG whose runs are replayed when they are cleared."""

from __future__ import annotations

import json
import os
from pathlib import Path

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "replayed"
CATALOG = {
    "name": "test",
    "type": "sql",
    "uri": f"sqlite:///{LOCATION}/catalog.db",
    "warehouse": f"file://{LOCATION}/warehouse",
}


@dag(dag_id="replayed", schedule=None, catchup=False, max_active_runs=1)
def replayed() -> None:
    """Read what is there, and suspend."""
    SparkStreamingOperator(
        task_id="write",
        job=f"{HERE}/jobs/replayed.py:write_everywhere",
        job_dir=f"{LOCATION}/job",
        params={
            "input": f"{LOCATION}/input",
            "files": f"{LOCATION}/files",
            "delta": f"{LOCATION}/delta",
            "iceberg": json.dumps(CATALOG),
            "postgres": os.environ.get("TEST_SQL", ""),
        },
        until="available",
        on_clear="replay",
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
    )


replayed()
