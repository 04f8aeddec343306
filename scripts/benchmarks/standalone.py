"""Standalone cluster of Spark on this machine: a master and workers, from PySpark's wheel."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyspark

if TYPE_CHECKING:
    from collections.abc import Iterator

HOME = Path(pyspark.__file__).parent
LOOPBACK = "127.0.0.1"
URL = re.compile(r"Starting Spark master at (spark://\S+)")
REGISTERED = re.compile(r"Successfully registered with master")
EXECUTOR = "CoarseGrainedExecutorBackend"
START_S = 60.0


@contextlib.contextmanager
def cluster(folder: Path, workers: int) -> Iterator[tuple[str, list[psutil.Process]]]:
    """Give the master's URL, and the workers' processes; each has one core and a gigabyte."""
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        stack.enter_context(daemon("master.Master", log, "--webui-port", "0"))
        url = awaited(URL, log)[1]
        processes = []
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            options = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(folder / f"work-{number}"), url]
            process = stack.enter_context(daemon("worker.Worker", log, *options))
            awaited(REGISTERED, log)
            processes.append(psutil.Process(process.pid))
        yield url, processes


@contextlib.contextmanager
def daemon(name: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a class of ``org.apache.spark.deploy``, which listens on loopback only."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
    environment = {
        **inherited,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
    }
    # The script becomes the JVM, so that its PID is the process's.
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", LOOPBACK, "--port", "0", *options],
            stdout=output,
            stderr=output,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()  # a worker ends its executors, too
        process.wait()


def executors(workers: list[psutil.Process]) -> list[int]:
    """Return the PIDs of the executors."""
    found = []
    for child in (child for worker in workers for child in worker.children()):
        with contextlib.suppress(psutil.NoSuchProcess):  # what it has asked for its machine
            if any(EXECUTOR in part for part in child.cmdline()):
                found.append(child.pid)
    return found


def awaited(pattern: re.Pattern[str], log: Path) -> re.Match[str]:
    """Return what a log says, as soon as it does."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (found := pattern.search(log.read_text(errors="replace"))) is not None:
            return found
        time.sleep(0.1)
    sys.exit(f"{log} has no {pattern.pattern!r} within {START_S:.0f} s:\n{log.read_text()[-2000:]}")
