"""DAGs of a stream whose versions replace each other: one watches it, one upgrades it."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset

from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "upgraded"
BOTH: dict[str, Any] = {
    "job": f"{HERE}/jobs/stuck.py:copy",
    "job_dir": f"{LOCATION}/1",
    "follow_upgrades": True,
    "params": {name: f"{LOCATION}/{name}" for name in ("input", "output", "gate")},
    "until": "stopped",
    "trigger": "1 second",
    "poll_interval": 0.5,
    "retries": 2,
    "retry_delay": dt.timedelta(seconds=1),
}

with DAG("upgraded_stream", schedule=None):
    SparkStreamingOperator(task_id="stream", max_runtime="1 hour", on_kill="detach", **BOTH)

with DAG("upgraded", schedule=None):
    SparkUpgradeOperator(
        task_id="upgrade",
        new_job_dir=f"{LOCATION}/2",
        trial_period="15 seconds",
        outlets=[Asset("versions")],
        **BOTH,
    )
