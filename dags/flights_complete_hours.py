"""A report of each hour, written as soon as the hour is complete, and not when the clock says so.

``flights_hourly`` writes an hour when its watermark has passed it, two hours later or whenever it
has been caught up with. A DAG that guesses when that is reads half an hour some day. This one
waits for the watermark of what is committed and published, in the triggerer, and then reads rows
that will not change any more.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task
from airflow.timetables.interval import CronDataIntervalTimetable  # of every Airflow 3

from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA", str(HERE.parent / ".work" / "flights"))
STREAM = f"{DATA}/hourly"


@dag(
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    catchup=False,
    tags=["spark", "streaming"],
    doc_md=__doc__,
)
def flights_complete_hours() -> None:
    """Wait until the hour is complete, then report it."""
    complete = SparkWatermarkSensor(
        task_id="complete",
        job_dir=f"{STREAM}/job",
        queries=["hourly"],
        timeout=24 * 3600,
    )

    @task
    def report(data_interval_start: Any = None) -> dict[str, Any]:
        """Return the flights and the delay of the hour, over all airports."""
        import pandas as pd

        rows = pd.read_parquet(f"{STREAM}/output")
        hour = rows[rows["hour"] == pd.Timestamp(data_interval_start).tz_convert("UTC")]
        flights = int(hour["flights"].sum())
        delay = (hour["flights"] * hour["mean_delay"]).sum() / flights if flights else None
        return {"flights": flights, "mean_delay": delay}

    complete >> report()


flights_complete_hours()
