"""Streams that DAG runs watch one after the other, with real drivers."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
import pytest
from handmade import TI
from services import HERE, ROOT, Airflow, end_drivers, run_dag, wait_for
from test_example_dags import put_month

from airflow_provider.operators.retry_policy import SparkRunFailedError
from airflow_provider.operators.spark_streaming import SparkStreamingOperator
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.jobdir.lease import LeaseObserver, Liveness
from airflow_provider.runtime.jobdir.upgrade_record import upgrade_id
from airflow_provider.runtime.storage.open import open_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("callable_outside_of_a_task")]

STUCK = f"{HERE}/dags/jobs/stuck.py:copy"


@pytest.fixture
def location(tmp_path: Path) -> Iterator[Path]:
    """Give the folder of a stream, whose drivers do not outlive the test."""
    (tmp_path / "input").mkdir()
    yield tmp_path
    end_drivers(tmp_path)


def put(location: Path, name: str, *values: int) -> None:
    unfinished = location / "input" / f".{name}"
    unfinished.write_text("".join(f"{value}\n" for value in values))
    unfinished.rename(location / "input" / name)


def watch(location: Path, dag_run: str, **arguments: Any) -> dict[str, Any]:
    """Be the task of a DAG run, in a worker that waits itself."""
    operator = SparkStreamingOperator(
        task_id="stream",
        job=STUCK,
        job_dir=f"{location}/job",
        params={name: f"{location}/{name}" for name in ("input", "output", "gate")},
        until="stopped",
        trigger="0.2 seconds",
        poll_interval=0.2,
        deferrable=False,
        **arguments,
    )
    ti: Any = SimpleNamespace(**{**vars(TI), "run_id": dag_run, "max_tries": 3})
    ti.xcom_push = lambda key, value: None
    return operator.execute({"ti": ti})


def documents(location: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(location.glob(f"job/runs/*/{pattern}"))]


@pytest.mark.whole
@pytest.mark.timeout(180)
def test_one_stream_under_three_dag_runs(location: Path) -> None:
    """
    The first DAG run starts the driver and hands it over; the second adopts it, and tells the batch
    that came meanwhile. In the third a batch gets stuck: the driver, which still beats, is ended,
    and the retry's resumes. Every row comes out once.
    """
    put(location, "first.csv", 1, 2, 3)

    first = watch(location, "run_1", max_runtime="1 second")
    committed = location / "job" / "queries" / "copy" / "committables"
    wait_for("the first batch", lambda: list(committed.glob("*/0.json")), within=60)
    second = watch(location, "run_2", max_runtime="1 second")
    drivers = len(documents(location, "attempts/*.json"))
    put(location, "stuck.csv", -4, 5)
    with pytest.raises(SparkRunFailedError, match="NO_PROGRESS: batch 1 is planned"):
        watch(location, "run_3", max_runtime="1 hour", progress_timeout="3 seconds")
    (location / "gate").touch()
    third = watch(location, "run_3", max_runtime="4 seconds", progress_timeout="1 minute")
    wait_for("the batch that was stuck", lambda: list(committed.glob("*/1.json")), within=60)
    attempts = documents(location, "attempts/*.json")

    assert ["RUNNING"] * 3 == [each["outcome"] for each in (first, second, third)]
    assert (1, first["driver_id"], 0, 3) == (
        drivers,
        second["driver_id"],
        second["queries"]["copy"]["batch_id"],
        second["rows_read"],
    )
    assert (["CANCELLED", None], 2) == ([each["outcome"] for each in attempts], third["attempts"])
    assert [-4, 1, 2, 3, 5] == sorted(pd.read_parquet(location / "output")["value"])


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_stream_is_handed_over_between_dags_of_a_real_airflow(airflow_services: Airflow) -> None:
    """
    Each hand-over succeeds the task, tells the asset how far the stream is, and leaves the driver
    alone; a clear watches the same one again. One that gets stuck while its task is deferred is
    ended, and the retry's resumes.
    """
    airflow = airflow_services
    location = Path(airflow.environment["TEST_DATA"]) / "supervised"
    (location / "input").mkdir(parents=True)
    committed = location / "job" / "queries" / "copy" / "committables"

    def hand_over(run_id: str) -> dict[str, Any]:
        ends = ("success", "failed")
        airflow.follow("supervised_briefly", run_id, "stream", until=ends, within=120)
        return dict(airflow.xcom("supervised_briefly", run_id, "stream"))

    put(location, "first.csv", 1, 2, 3)
    run_id = airflow.trigger("supervised_briefly")
    first = hand_over(run_id)
    wait_for("the first batch", lambda: list(committed.glob("*/0.json")), within=60)
    airflow.wait_for_end("supervised_briefly", run_id)
    airflow.clear("supervised_briefly", run_id, "stream")
    wait_for("it is cleared", lambda: _state(airflow, run_id) != "success", within=30)
    again = hand_over(run_id)
    query = f"source_dag_id=supervised_briefly&source_run_id={quote(run_id)}"
    events = airflow.call("GET", f"/assets/events?{query}&order_by=timestamp")["asset_events"]
    longer = airflow.trigger("supervised_for_long")
    airflow.follow("supervised_for_long", longer, "stream", until=("deferred",), within=60)
    put(location, "stuck.csv", -4, 5)
    wait_for("another driver", lambda: len(documents(location, "attempts/*.json")) > 1, within=150)
    (location / "gate").touch()
    wait_for("the batch that was stuck", lambda: list(committed.glob("*/1.json")), within=90)
    log = airflow.logs("supervised_for_long", longer, "stream")
    airflow.mark("supervised_for_long", longer, "stream", "failed")
    wait_for("its end", lambda: documents(location, "attempts/*.json")[1]["outcome"], within=60)

    assert ("RUNNING", "RUNNING") == (first["outcome"], again["outcome"])
    assert first["driver_id"] == again["driver_id"]
    assert ["RUNNING"] * 2 == [event["extra"]["outcome"] for event in events]
    told = again["queries"]["copy"]
    assert (0, told["sources"][0]["end_offset"]) == (
        told["batch_id"],
        events[-1]["extra"]["queries"]["copy"]["offsets"]["rows"],
    )
    assert "NO_PROGRESS: batch 1 is planned" in log
    assert 2 == len(documents(location, "attempts/*.json"))
    assert [-4, 1, 2, 3, 5] == sorted(pd.read_parquet(location / "output")["value"])


def _state(airflow: Airflow, run_id: str) -> str:
    return str(airflow.task("supervised_briefly", run_id, "stream")["state"])


# --- an upgrade, and one that is rolled back ----------------------------------------------------


def driver_of(job_dir: Path) -> str | None:
    """Return the driver that is at work."""
    lease, liveness = LeaseObserver(open_storage(str(job_dir)), SystemClock()).settle()
    return lease.driver_id if lease is not None and liveness is Liveness.LIVE else None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_stream_is_upgraded_or_rolled_back(
    sqlite_airflow: dict[str, str], tmp_path: Path
) -> None:
    """
    A new version for which nothing arrives is rejected, and the old one's task resumes that; another
    one is accepted, and the same task adopts its driver. The rows are those of one stream.
    """
    data = Path(sqlite_airflow["FLIGHTS_DATA"])
    location = data / "upgrade"
    shutil.copytree(ROOT / "dags", tmp_path / "dags")
    file = tmp_path / "dags" / "flights_upgrade.py"
    text = file.read_text().replace("59 minutes", "1 second")
    trial_period, version = "5 minutes", '"version": "2"'
    assert trial_period in text
    assert version in text

    def run(dag_id: str, lasts: str = "15 seconds", number: str = "2") -> dict[str, Any]:
        tried = text.replace(version, f'"version": "{number}"')
        file.write_text(tried.replace(trial_period, lasts))
        return run_dag(file, dag_id, sqlite_airflow)

    def put_when_stopped() -> None:
        wait_for("the old one has stopped", (saved / "savepoint.json").exists, within=120)
        put_month(data / "input", 3)

    put_month(data / "input", 1)
    watched = run("flights_versioned")
    epochs = location / "1" / "queries" / "daily" / "committables"
    wait_for("the first month", lambda: list(epochs.glob("*/0.json")), within=60)
    rejected = run("flights_upgrade")
    between = [driver_of(location / number) for number in "12"]
    resumed = run("flights_versioned")
    put_month(data / "input", 2)
    batches = len(list(epochs.glob("*/*.json")))
    wait_for("the second month", lambda: len(list(epochs.glob("*/*.json"))) > batches, within=60)
    saved = location / "1" / "savepoints" / upgrade_id(f"{location}/3")
    thread = threading.Thread(target=put_when_stopped)
    thread.start()
    upgraded = run("flights_upgrade", "40 seconds", "3")
    thread.join()
    driver = driver_of(location / "3")
    adopted = run("flights_versioned")
    again = run("flights_upgrade", "40 seconds", "3")

    assert "success" == watched["state"], watched["log"]
    assert "failed" == rejected["state"], rejected["log"]
    assert "query 'daily' has committed no batch in 15 seconds" in rejected["log"]
    assert [None, None] == between
    assert "success" == resumed["state"], resumed["log"]
    assert "success" == upgraded["state"] == again["state"], upgraded["log"]
    result = upgraded["tasks"]["upgrade"]["value"]
    assert (f"{location}/3", f"{location}/1") == (result["job_dir"], result["replaces"])
    assert result == again["tasks"]["upgrade"]["value"]
    handed_over = adopted["tasks"]["stream"]["value"]
    assert (result["run_id"], driver) == (handed_over["run_id"], handed_over["driver_id"])
    assert driver == driver_of(location / "3") is not None
    assert driver_of(location / "1") is None
    assert expected_days(data / "input") == written_days(location / "output")


def written_days(output: Path) -> dict[tuple[dt.date, str], int]:
    """Return the flights of each day and airport, of both versions."""
    rows = pd.read_parquet(output)
    days = dict(zip(zip(rows["day"], rows["origin"], strict=True), rows["flights"], strict=True))
    assert len(rows) == len(days)  # no day twice
    return days


def expected_days(folder: Path) -> dict[tuple[dt.date, str], int]:
    """Return the same from the input, for the days that are over at the watermark."""
    rows = pd.concat([pd.read_csv(file) for file in folder.glob("*.csv")])
    time = pd.to_datetime(rows["time_hour"])
    whole = time.dt.date < (time.max() - pd.Timedelta(hours=2)).date()
    days: Any = rows[whole].groupby([time[whole].dt.date, "origin"]).size()
    return {(day, origin): int(count) for (day, origin), count in days.items()}
