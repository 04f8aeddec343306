"""DAGs that supervise the same stream, one for a moment and one for long."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "supervised"


def stream(**more: Any) -> None:
    """Watch it; a batch may take as long as Spark does to start on a busy machine."""
    SparkStreamingOperator(
        task_id="stream",
        job=f"{HERE}/jobs/stuck.py:copy",
        job_dir=f"{LOCATION}/job",
        params={name: f"{LOCATION}/{name}" for name in ("input", "output", "gate")},
        run_id="stream",
        until="stopped",
        trigger="1 second",
        progress_timeout="20 seconds",
        on_kill="cancel",
        outlets=[Asset("supervised_rows")],
        poll_interval=0.5,
        **more,
    )


@dag(schedule=None, catchup=False, max_active_runs=1)
def supervised_briefly() -> None:
    """Hand it over after a moment."""
    stream(max_runtime="5 seconds")


@dag(schedule=None, catchup=False, max_active_runs=1)
def supervised_for_long() -> None:
    """Watch it until somebody marks the task."""
    stream(max_runtime="1 hour", retries=2, retry_delay=dt.timedelta(seconds=1))


supervised_briefly()
supervised_for_long()
