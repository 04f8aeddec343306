"""Processes of Python that are started: none imports from the folder it is started in."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import airflow_provider
from airflow_provider.runtime.base.host import current_umask, module_command

PACKAGE = Path(airflow_provider.__file__).parent
STARTED = (
    "airflow_provider.extensions.warm_drivers.driver",
    "airflow_provider.runtime.control.launcher",
    "airflow_provider.runtime.spark.class_archive",
)


@pytest.fixture
def planted(tmp_path) -> Path:
    """Return a folder whose modules have the names of Python's own and of libraries."""
    for name in ("uuid", "runpy", "json", "socket", "argparse", "pyspark", "airflow_provider"):
        (tmp_path / f"{name}.py").write_text("import os\nopen('ran', 'a').write(__name__)\n")
    return tmp_path


def run_in(folder: Path, command: list[str]) -> str:
    """Run a command in a folder, and return what it has written to standard output."""
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "SPARK_STREAM_CACHE": "off"}
    environ.pop("PYTHONPATH", None)
    environ["PYTHONPATH"] = str(PACKAGE.parent)
    run = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    return run.stdout


@pytest.mark.parametrize("version", [(3, 10), (3, 11)], ids=["3.10", "3.11"])
def test_a_module_is_run_without_the_working_directory(planted, monkeypatch, version):
    """A module of Python's own comes from Python, whatever lies in the folder, in each version."""
    if version == (3, 11) and sys.version_info < version:
        pytest.skip("this Python has no -P")
    monkeypatch.setattr(sys, "version_info", version)

    said = run_in(planted, [*module_command("json.tool"), "--help"])

    assert "usage:" in said
    assert not (planted / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize("module", STARTED)
def test_no_process_of_ours_runs_what_lies_in_its_folder(planted, module):
    """
    A warm driver, a launcher and the maker of the archive import everything before they refuse these
    arguments; nothing of it comes from the folder in which they are started.
    """
    run_in(planted, [*module_command(module), "no", "arguments"])

    assert not (planted / "ran").exists()


def test_every_process_of_python_is_started_so():
    """No other part of the package runs a module by itself."""
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "host.py"]
    found = [str(p) for p in others if re.search(r"executable,\s*\"-m\"", p.read_text("utf-8"))]

    assert [] == found


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o007])
def test_the_umask_is_read_without_a_change(umask):
    """The umask of this process is what files get, also where the system has no list of it."""
    before = os.umask(umask)
    try:
        assert umask == current_umask()
    finally:
        os.umask(before)
