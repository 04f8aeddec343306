"""DAGs whose task ends, or is ended, before its driver; one of each kind for each ``on_kill``."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
LOCATION = Path(os.environ["TEST_DATA"]) / "ending"
MOMENT = dt.timedelta(seconds=5)
LONG = dt.timedelta(seconds=75)  # until three drivers have started side by side, and some


def ending(
    kind: str, on_kill: str, *, dagrun_timeout: dt.timedelta | None = None, **arguments: Any
) -> None:
    """Make a DAG of one task; each run has folders of its own."""
    location = f"{LOCATION}/{kind}_{on_kill}/{{{{ run_id }}}}"

    @dag(
        dag_id=f"ending_{kind}_{on_kill}",
        schedule=None,
        catchup=False,
        dagrun_timeout=dagrun_timeout,
    )
    def one_task() -> None:
        SparkStreamingOperator(
            task_id="count",
            job=f"{HERE}/jobs/gated.py:count",
            job_dir=f"{location}/job",
            params={name: f"{location}/{name}" for name in ("input", "output", "gate")},
            conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
            mode="streaming",
            poll_interval=0.5,
            on_kill=on_kill,
            **arguments,
        )

    one_task()


for policy in ("stop", "cancel", "detach"):
    ending("deferred", policy, execution_timeout=MOMENT)
    ending("limited", policy, dagrun_timeout=LONG)
    ending("working", policy, deferrable=False, execution_timeout=LONG)
