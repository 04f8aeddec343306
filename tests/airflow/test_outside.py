"""A package from outside: its launcher, command and sink run a real job that an operator submits.

The package in ``outside_package/`` is installed into a folder of its own, as pip installs a wheel. Nothing of
this repository names it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from outside import install
from services import ROOT, run_dag

from airflow_provider.hooks.run_datasets import datasets_of_run
from airflow_provider.runtime.jobdir.layout import directory_at

pytestmark = [pytest.mark.spark, pytest.mark.airflow]

DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

with DAG("outside", schedule=None) as dag:
    SparkStreamingOperator(
        task_id="letters", job_dir={job!r}, job="streams_outside:letters", conn_id="here",
        launcher="processes", launcher_options={{"folder": {drivers!r}}}, poll_interval=0.2,
        params={{"input": {given!r}, "output": {output!r}}},
    )
"""


@pytest.fixture
def environment(tmp_path: Path, sqlite_airflow: dict[str, str]) -> dict[str, str]:
    """Return the environment of a process that has the package installed, and a connection."""
    installed = install(tmp_path)
    before = sqlite_airflow.get("PYTHONPATH", str(ROOT))
    return {
        **sqlite_airflow,
        "PYTHONPATH": f"{installed}:{before}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path / "dags"),
        "AIRFLOW_CONN_HERE": json.dumps({"conn_type": "processes"}),
    }


def test_a_launcher_a_command_and_a_sink_from_outside(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """
    The operator finds the launcher by its entry point, the driver imports the job and its sink, lineage
    has the sink's dataset, the command answers; nothing of the provider names any of them.
    """
    places = {name: str(tmp_path / name) for name in ("given", "output", "job", "drivers")}
    given, output = Path(places["given"]), Path(places["output"])
    given.mkdir()
    (given / "a.json").write_text('{"letter": "a"}\n{"letter": "b"}\n')
    dag_file = tmp_path / "dags" / "outside_dag.py"
    dag_file.parent.mkdir()
    dag_file.write_text(DAG_FILE.format(**places))

    answer = run_dag(dag_file, "outside", environment)
    command = [sys.executable, "-m", "airflow_provider.runtime.cli"]
    said, listed = (
        subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, check=False
        )
        for words in (["outputs", places["job"]], ["--help"])
    )
    shown = answer["tasks"]["letters"]["value"]
    written = datasets_of_run(directory_at(places["job"]), shown["run_id"]).outputs
    rows = [
        json.loads(line)
        for path in output.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]

    assert ("FINISHED", 2) == (shown["outcome"], shown["rows_read"])
    assert [("file", str(output))] == [tuple(each) for each in written]
    assert ["a", "b"] == sorted(row["letter"] for row in rows)
    assert said.stdout.endswith(": out, 2 rows read, FINISHED\n"), said.stderr
    assert "list what the newest run of a job has written" in listed.stdout
    package = ROOT / "airflow_provider"
    assert [] == [p for p in package.rglob("*.py") if "streams_outside" in p.read_text()]
