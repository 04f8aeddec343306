"""``spark-stream init`` and ``check --spark``, with real Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from streams import Location

from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_OK, EXIT_USAGE

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
WRONG = """
from airflow_provider.runtime import files

def wrong(ctx):
    rows = ctx.read("events", format="json", path=ctx.params["input"], schema="at timestamp", bounded=True)
    ctx.write("out", rows.select("nowhere"), to=files(ctx.params["output"]))
"""


def everything_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_a_check_with_spark_shows_what_would_run_and_leaves_nothing(
    spark, location: Location, capsys
):
    """
    Its mode, its queries from source to sink; a column that is not there is refused as by a run.
    """
    folder = location.root / "mine"
    assert EXIT_OK == main(["init", str(folder)])
    (folder / "wrong.py").write_text(WRONG)
    (folder / "input").mkdir()
    params = [f"--param={name}={folder / name}" for name in ("input", "output")]
    before = everything_in(location.root)
    capsys.readouterr()
    argv = [str(folder / "job"), *params, "--entry"]

    assert EXIT_OK == main(["check", *argv, f"{folder}/job.py:counts", "--spark"], spark=spark)
    shown = capsys.readouterr().out
    assert (
        f"  mode BATCH\n  minutes: events -> files:{folder}/output\nnothing is refused\n" in shown
    )

    codes = [
        main([command, *argv, f"{folder}/wrong.py:wrong", *more], spark=spark)
        for command, more in (("check", ["--spark"]), ("run", []))
    ]
    errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    checked, run = (line.partition("#")[0] for line in errors)  # what follows is an id of Spark's
    assert ([EXIT_USAGE] * 2, checked) == (codes, run)
    assert "nowhere" in checked
    assert before == [
        each for each in everything_in(location.root) if "__pycache__" not in str(each)
    ]


@pytest.mark.whole
def test_the_test_that_init_writes_passes(tmp_path):
    """
    With pytest, as its reader runs it: a JVM of its own, the job to its end, the last minute counted.
    """
    assert EXIT_OK == main(["init", str(tmp_path / "mine")])
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(tmp_path / "mine"),
    ]
    run = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )

    assert 0 == run.returncode, run.stdout[-3000:]
    assert "1 passed" in run.stdout
