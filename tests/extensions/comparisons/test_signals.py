"""A comparison that is interrupted, and one that is killed, as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from streams import Location, write_events

from tests.extensions.comparisons import compared_jobs

pytestmark = [pytest.mark.spark, pytest.mark.long]

COMMAND = [sys.executable, "-m", "airflow_provider.runtime.cli", "verify"]
LIMIT_S = 120.0


def started(job_dir: Path, scratch: Path) -> subprocess.Popen[str]:
    """Start a command, and wait until its second computation has begun to read."""
    conf = ["--conf", "spark.sql.session.timeZone=UTC", "--master", "local[1]"]
    process = subprocess.Popen(
        [*COMMAND, str(job_dir), "--scratch", str(scratch), "--mode", "streaming", *conf],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    before = set(scratch.iterdir())
    wait_until(
        lambda: (
            any(
                list(folder.glob("checkpoints/out/offsets/0"))
                for folder in {*scratch.iterdir()} - before
            )
            or process.poll() is not None
        )
    )
    assert process.poll() is None, process.communicate()[0]
    return process


def wait_until(is_so: Any) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.1)


def jvms_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the process ids of the Java processes below a process."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in listed.stdout.splitlines()]
    below = {process.pid}
    for _ in rows:
        below |= {int(pid) for pid, parent, _ in rows if int(parent) in below}
    return [int(pid) for pid, _, name in rows if int(pid) in below and name.startswith("java")]


def test_nothing_stays_of_a_comparison_that_was_interrupted_or_killed(spark, tmp_path):
    """
    The next one removes what a killed one has left, and SIGINT removes its own.
    """
    location, gate, scratch = Location(tmp_path), tmp_path / "gate", tmp_path / "scratch"
    scratch.mkdir()
    write_events(location.input, [(0, "a", 1), (1, "b", 2)])
    entry = f"{compared_jobs.__file__}:gated"
    location.run(spark, "", entry=entry, params={"gate": str(gate)})
    gate.touch()

    killed = started(location.job_dir, scratch)
    java = jvms_of(killed)
    killed.kill()
    killed.communicate()
    left = list(scratch.iterdir())
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in java))
    interrupted = started(location.job_dir, scratch)
    between = list(scratch.iterdir())
    interrupted.send_signal(signal.SIGINT)
    said, _ = interrupted.communicate(timeout=LIMIT_S)

    assert (1, 1, 0) == (len(left), len(between), len(list(scratch.iterdir()))), said
    assert left != between
    assert 3 == interrupted.returncode, said
    assert os.path.exists(gate)
