"""The end of a JVM's process, with a shell in its place."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from airflow_provider.extensions.warm_drivers.jvm import JvmProcess
from tests.pipes import stdout_of


@pytest.mark.slow
def test_what_a_jvm_has_started_dies_with_it(tmp_path: Path) -> None:
    """A process of a run would write on after its JVM; the folder of its files goes, too."""
    folder = tmp_path / "files"
    folder.mkdir()
    script = "sh -c 'sleep 600 & echo $!; wait'"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as process:
        started = psutil.Process(int(stdout_of(process).readline()))

        JvmProcess(process, folder, 0, "").end(at_once=True)

    assert [] == psutil.wait_procs([started], 10)[1]
    assert not folder.exists()
