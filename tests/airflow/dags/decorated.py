"""DAG whose jobs, which have ended, get their parameters from a function's results."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import dag, task

DATA = os.environ["TEST_DATA"]
RUN: dict[str, Any] = {"job": "jobs.py:daily", "run_id": "r1", "interval": None}


@dag(dag_id="decorated", schedule=None, catchup=False)
def decorated() -> None:
    """Pass a number of days to one job, and to one for each region."""

    @task
    def days() -> int:
        return 3

    @task.spark_stream(job_dir=f"{DATA}/whole", **RUN)
    def whole(days: int) -> dict[str, Any]:
        return {"days": days}

    @task.spark_stream(job_dir=DATA + "/{{ ti.map_index }}", **RUN)
    def region(name: str, days: int) -> dict[str, Any]:
        return {"region": name, "days": days}

    count: Any = days()
    whole(count)
    region.partial(days=count).expand(name=["n", "s"])


decorated()
