"""Upgrade a running stream: try another version of it, and go on with the better of the two.

``flights_versioned`` supervises the version that is in force, wherever upgrades have led to;
``flights_upgrade`` puts another one in its place, in a job directory of its own. Both write to one
folder: what a rejected version has written is taken back, and the old one resumed.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.operators.spark_upgrade import SparkUpgradeOperator
from airflow_provider.runtime.jobdir.upgrade_record import Version, version_in_force

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA", str(HERE.parent / ".work" / "flights"))
JOBS = f"{HERE}/jobs/daily_delays.py"
PLACE = f"{DATA}/upgrade"
FIRST = Version(f"{PLACE}/1", f"{JOBS}:daily_delays_so_far", "stream")
# Templates are rendered at each try: what they name follows an upgrade.
MACROS = {"first": FIRST, "in_force": version_in_force}
BOTH_DAGS: dict[str, Any] = {"user_defined_macros": MACROS, "tags": ["spark", "streaming"]}
PARAMS = {
    "version": Param(os.environ.get("FLIGHTS_VERSION", "2"), type="string"),
    "function": Param("daily_delays_rated", type="string"),
}
BOTH_VERSIONS: dict[str, Any] = {
    "params": {"input": f"{DATA}/input", "output": f"{PLACE}/output"},
    "until": "stopped",
    "trigger": "2 seconds",
    "conf": {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
}


@dag(schedule="0 * * * *", catchup=False, max_active_runs=1, **BOTH_DAGS)
def flights_versioned() -> None:
    """Watch the version that is in force; while it is replaced, try again each minute."""
    SparkStreamingOperator(
        task_id="stream",
        job="{{ in_force(first).entry }}",
        job_dir="{{ in_force(first).job_dir }}",
        run_id="{{ in_force(first).run_id }}",
        from_savepoint="{{ in_force(first).from_savepoint }}",
        max_runtime=os.environ.get("FLIGHTS_WATCHED", "59 minutes"),
        progress_timeout="10 minutes",
        on_kill="detach",
        retries=30,
        retry_delay=dt.timedelta(minutes=1),
        **BOTH_VERSIONS,
    )


@dag(schedule=None, max_active_runs=1, params=PARAMS, doc_md=__doc__, **BOTH_DAGS)
def flights_upgrade() -> None:
    """Try another version of the stream."""
    SparkUpgradeOperator(
        task_id="upgrade",
        job=f"{JOBS}:{{{{ params.function }}}}",
        job_dir=f"{{{{ in_force(first, before='{PLACE}/' ~ params.version).job_dir }}}}",
        new_job_dir=f"{PLACE}/{{{{ params.version }}}}",
        probation=os.environ.get("FLIGHTS_PROBATION", "5 minutes"),
        retries=3,
        **BOTH_VERSIONS,
    )


flights_versioned()
flights_upgrade()
