"""A package from outside: its launcher, command, sink, source and storage run real jobs of an operator.

The package in ``outside_package/`` is installed into a folder of its own, as pip installs a wheel. Nothing of
this repository names it.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from outside import install
from services import ROOT, run_dag

from airflow_provider.operators.lineage import datasets_of_run
from airflow_provider.runtime.api.launchers import Application, Launcher
from airflow_provider.runtime.api.storages import Storage
from airflow_provider.runtime.base import extensions
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.storage.open import open_storage
from airflow_provider.runtime.testing.launchers import LauncherContract
from airflow_provider.runtime.testing.storages import SharedStorageContract
from tests.contract.clusters import PROGRAM, an_application

pytestmark = [pytest.mark.spark, pytest.mark.airflow]

DAG_FILE = """
from airflow.sdk import DAG
from airflow_provider.operators.spark_streaming import SparkStreamingOperator

with DAG("outside", schedule=None) as dag:
    SparkStreamingOperator(
        task_id="letters", job_dir={job!r}, job={entry!r}, conn_id="here",
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
        "SHARES": str(tmp_path / "shares"),
    }


def run_job(tmp_path: Path, environment: dict[str, str], **values: str) -> dict[str, Any]:
    """Run a DAG with one task by ``dag.test()``, and return what the task has returned."""
    dag_file = tmp_path / "dags" / "outside_dag.py"
    dag_file.parent.mkdir()
    dag_file.write_text(DAG_FILE.format(**values))
    shown: dict[str, Any] = run_dag(dag_file, "outside", environment)["tasks"]["letters"]["value"]
    return shown


def rows_in(output: Path) -> list[dict[str, Any]]:
    """Return the rows that the sink from outside has written."""
    lines = [line for path in output.glob("*.jsonl") for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


@pytest.mark.long
def test_a_launcher_a_command_and_a_sink_from_outside(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """
    The operator finds the launcher by its entry point, the driver imports the job and its sink, lineage
    has the sink's dataset, the command answers; nothing of the provider names any of them.
    """
    locations = {name: str(tmp_path / name) for name in ("given", "output", "job", "drivers")}
    given, output = Path(locations["given"]), Path(locations["output"])
    given.mkdir()
    (given / "a.json").write_text('{"letter": "a"}\n{"letter": "b"}\n')
    shown = run_job(tmp_path, environment, entry="streams_outside:letters", **locations)
    command = [sys.executable, "-m", "airflow_provider.runtime.cli"]
    said, listed = (
        subprocess.run(
            [*command, *words], env=environment, capture_output=True, text=True, check=False
        )
        for words in (["outputs", locations["job"]], ["--help"])
    )
    written = datasets_of_run(directory_at(locations["job"]), shown["run_id"]).outputs
    rows = rows_in(output)

    assert ("FINISHED", 2) == (shown["outcome"], shown["rows_read"])
    assert [("file", str(output))] == [tuple(each) for each in written]
    assert ["a", "b"] == sorted(row["letter"] for row in rows)
    assert said.stdout.endswith(": out, 2 rows read, FINISHED\n"), said.stderr
    assert "list what the newest run of a job has written" in listed.stdout
    package = ROOT / "airflow_provider"
    assert [] == [p for p in package.rglob("*.py") if "streams_outside" in p.read_text()]


@pytest.mark.whole
def test_a_storage_and_a_source_from_outside(tmp_path: Path, environment: dict[str, str]) -> None:
    """
    The job lies at an address whose scheme a package brings, for the worker, the driver and Spark; its
    input comes from a data source of that package.
    """
    (tmp_path / "shares").mkdir()
    output, given = tmp_path / "output", tmp_path / "letters.txt"
    given.write_text("ab\n")
    locations = {"given": str(given), "output": str(output), "drivers": str(tmp_path / "drivers")}

    shown = run_job(
        tmp_path,
        environment,
        entry="alphabet_outside:spell",
        job="share://team/letters",
        **locations,
    )
    listed = subprocess.run(
        [sys.executable, "-m", "airflow_provider.runtime.cli", "status", "share://team/letters"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ("FINISHED", 2) == (shown["outcome"], shown["rows_read"])
    expected = [{"position": 0, "letter": "a"}, {"position": 1, "letter": "b"}]
    assert expected == sorted(rows_in(output), key=lambda row: row["position"])
    assert "finished" in listed.stdout, listed.stderr
    job = tmp_path / "shares" / "team" / "letters"
    assert {"job.json", "queries", "runs"} <= {path.name for path in job.iterdir()}


class TestShare(SharedStorageContract):
    """The contract on the storage from outside, which processes open by its address."""

    @pytest.fixture
    def storage(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
        installed = install(tmp_path)
        monkeypatch.setenv("SHARES", str(tmp_path / "shares"))
        monkeypatch.setenv("PYTHONPATH", f"{installed}:{ROOT}")
        monkeypatch.syspath_prepend(str(installed))
        extensions._entry_points.cache_clear()
        yield open_storage("share://team/job")
        extensions._entry_points.cache_clear()
        extensions.load_extension.cache_clear()
        for name in ("shares_outside", "streams_outside"):
            sys.modules.pop(name, None)


class OutsideProcesses:
    """A folder of processes that the launcher from outside starts."""

    secrets = ()

    def __init__(self, folder: Path, outside: Any) -> None:
        self._folder, self._outside = folder, outside

    def open(self) -> Launcher:
        options = self._outside.ProcessOptions(str(self._folder))
        launcher: Launcher = self._outside.ProcessLauncher(options, [sys.executable, str(PROGRAM)])
        return launcher

    def application(self, exit_code: int | None) -> Application:
        return an_application(exit_code)

    def runs(self) -> int:
        return len([*self._folder.glob("*.pid")])


class TestProcesses(LauncherContract):
    """The contract on the launcher from outside."""

    @pytest.fixture
    def case(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OutsideProcesses]:
        monkeypatch.syspath_prepend(str(install(tmp_path)))
        (tmp_path / "drivers").mkdir()
        yield OutsideProcesses(tmp_path / "drivers", importlib.import_module("streams_outside"))
        sys.modules.pop("streams_outside", None)
