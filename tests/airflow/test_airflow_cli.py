"""Command ``airflow spark-stream``: the real one, with all that ``spark-stream`` can do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from airflow.providers_manager import ProvidersManager
from handmade import RUN, Job
from services import AIRFLOW, airflow_environment, run_airflow

from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

if not hasattr(ProvidersManager, "cli_command_functions"):
    pytest.skip("this version of Airflow takes no commands of providers", allow_module_level=True)

LOADED = """
import sys
import airflow_provider
import airflow.cli.cli_config
before = set(sys.modules)
import airflow_provider.cli.definition
airflow_provider.cli.definition.get_commands()
print(*sorted(set(sys.modules) - before))
"""


def airflow(
    environment: Mapping[str, str], *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Run one ``airflow spark-stream`` command."""
    return subprocess.run(
        [str(AIRFLOW), "spark-stream", *map(str, arguments)],
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.whole
def test_help_is_that_of_spark_stream(sqlite_airflow: dict[str, str]) -> None:
    """It lists the commands of both."""
    done = airflow(sqlite_airflow, "--help")

    assert EXIT_OK == done.returncode, done.stderr
    assert done.stdout.startswith("usage: airflow spark-stream [-h] [--version] COMMAND ...\n")
    for command in ("status", "savepoint", "warm-drivers", "check-connection"):
        assert f"\n    {command} " in done.stdout or f"\n    {command}\n" in done.stdout


@pytest.mark.long
def test_options_exit_codes_and_answers_pass_through(tmp_path: Path) -> None:
    """
    Options may come first; stdout has what the command answers, and nothing else. A command about a
    job needs no database.
    """
    environment = airflow_environment(tmp_path / "home", tmp_path / "dags")
    job = Job(tmp_path / "job")
    job.finish()

    done = airflow(environment, "status", "--json", job.root)
    missing = airflow(environment, "status", tmp_path / "nothing")

    assert EXIT_OK == done.returncode, done.stderr
    assert [RUN] == [run["run_id"] for run in json.loads(done.stdout)["runs"]]
    assert (EXIT_USAGE, "") == (missing.returncode, missing.stdout)
    assert f"{tmp_path}/nothing: no job there" in missing.stderr


@pytest.mark.whole
def test_a_connection_of_the_database_is_checked(
    sqlite_airflow: dict[str, str], tmp_path: Path
) -> None:
    """One line says what was found."""
    added = ["--conn-type", "spark", "--conn-host", "local[2]"]
    run_airflow(["connections", "add", "spark_here", *added], sqlite_airflow)

    done = airflow(sqlite_airflow, "check-connection", "spark_here", "--job-root", tmp_path)

    assert EXIT_OK == done.returncode, done.stderr
    assert done.stdout.endswith(f"; local[2] needs no cluster; {tmp_path} puts if absent\n")
    assert 1 == done.stdout.count("\n")


def test_other_commands_pay_nothing_for_it() -> None:
    """Every ``airflow`` command imports the definition, which loads nothing that is not there."""
    program = [sys.executable, "-c", LOADED]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)

    assert ["airflow_provider.cli", "airflow_provider.cli.definition"] == done.stdout.split()
