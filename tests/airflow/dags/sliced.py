"""DAGs whose runs are for slices; what they read, and where, is for the test to say."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import Any

from airflow.sdk import CronDataIntervalTimetable, CronPartitionTimetable, dag

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

JOBS = Path(__file__).resolve().parents[1] / "flights" / "jobs"
LOCATION = Path(os.environ["TEST_DATA"]) / "sliced"
END = dt.datetime(2013, 12, 31, tzinfo=dt.timezone.utc)  # nothing runs by schedule


def delays(job_dir: str, **more: Any) -> SparkStreamingOperator:
    return SparkStreamingOperator(
        task_id="delays",
        job=f"{JOBS}/daily_delays.py:daily_delays",
        job_dir=job_dir,
        params={"input": f"{LOCATION}/input", "output": f"{LOCATION}/{{{{ slice.name }}}}/output"},
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"},
        poll_interval=0.5,
        **more,
    )


@dag(
    dag_id="partitioned",
    schedule=CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"),
    catchup=False,
    end_date=END,
)
def partitioned() -> None:
    """A slice for each partition."""
    delays(f"{LOCATION}/{{{{ slice.name }}}}/job-{{{{ slice.key }}}}")


@dag(
    dag_id="into_a_live_job",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    catchup=False,
    end_date=END,
)
def into_a_live_job() -> None:
    """Slices that are all sent into one job directory."""
    delays("{{ dag_run.conf['job_dir'] }}", retries=3)


partitioned()
into_a_live_job()
