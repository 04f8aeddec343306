"""Upgrade a running stream: try another version of it, and go on with the better of the two.

``flights_versioned`` watches the version that is active, wherever upgrades have led to;
``flights_upgrade`` tries another one, in a directory of its own. Both versions write to one folder:
what a rejected one has written is reverted, and the old one goes on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider.extensions.upgrades.operator import SparkUpgradeOperator
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
BOTH: dict[str, Any] = {
    "job_dir": f"{DATA}/upgrade/1",  # of the first version
    "follow_upgrades": True,
    "params": {"input": f"{DATA}/input", "output": f"{DATA}/upgrade/output"},
    "until": "stopped",
    "trigger": "2 seconds",
    "conf": {"spark.sql.session.timeZone": "UTC"},
}

with DAG("flights_versioned", schedule="0 * * * *", catchup=False, max_active_runs=1):
    first = f"{HERE}/jobs/daily_delays.py:daily_delays_so_far"
    SparkStreamingOperator(
        task_id="stream", job=first, max_runtime="59 minutes", on_kill="detach", retries=12, **BOTH
    )

with DAG("flights_upgrade", params={"version": "2", "function": "daily_delays_rated"}):
    SparkUpgradeOperator(
        task_id="upgrade",
        job=f"{HERE}/jobs/daily_delays.py:{{{{ params.function }}}}",
        new_job_dir=f"{DATA}/upgrade/{{{{ params.version }}}}",
        trial_period="5 minutes",
        **BOTH,
    )
