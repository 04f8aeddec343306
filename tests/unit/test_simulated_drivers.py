"""The drivers that the benchmark of waits simulates: their jobs are like those of real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.jobdir.layout import JobDirectory
from airflow_provider.runtime.jobdir.preconditions import check_preconditions
from airflow_provider.runtime.storage.open import open_storage

DRIVERS = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks" / "drivers.py"


def test_a_simulated_driver_runs_and_ends_like_a_real_one(tmp_path, capsys):
    """An operator that adopts it finds nothing amiss, and its final checkpoint counts."""
    job = tmp_path / "0000"

    def state() -> str:
        main(["status", str(job), "--json"])
        return json.loads(capsys.readouterr().out)["runs"][0]["state"]

    with subprocess.Popen(
        [sys.executable, str(DRIVERS), str(tmp_path), "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as drivers:
        assert drivers.stdin is not None
        assert drivers.stdout is not None
        assert "at work\n" == drivers.stdout.readline()
        check_preconditions(JobDirectory(open_storage(str(job))), "waited-for")
        assert "running" == state()
        drivers.stdin.write("end 0\n")
        drivers.stdin.flush()
        assert drivers.stdout.readline().startswith("0 ")
        assert "finished" == state()
