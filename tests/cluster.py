"""A real standalone cluster of Spark on this machine: a master and workers, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyspark

from tests.jvm import QUICK

_HOME = Path(pyspark.__file__).parent
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_PAGE = re.compile(r"MasterWebUI.* started at http://\S+:(\d+)")
_REGISTERED = "Successfully registered with master"
_START_S = 60.0


def _comes_true(what: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + _START_S
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Daemon:
    """A master or a worker.

    Args:
        name: which class of ``org.apache.spark.deploy``.
        log: where its output goes.
        arguments: of its command line.
    """

    def __init__(self, name: str, log: Path, *arguments: str) -> None:
        self._log = log
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}
        environment = {
            **inherited,
            "SPARK_HOME": str(_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }
        # The script becomes the JVM, so that its PID is the process's.
        command = [_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [*map(str, command), "--host", "127.0.0.1", "--port", "0", *arguments],
                stdout=output,
                stderr=output,
                env=environment,
                cwd=log.parent,
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def children(self) -> list[int]:
        """Return the PIDs of the processes that it has started: a worker's executors."""
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [pid for pid in pids if parent_of(pid) == self.process.pid]

    def kill(self) -> None:
        """Kill it alone."""
        self.process.kill()
        self.process.wait(_START_S)


class Worker(Daemon):
    """A worker with one executor for each application."""

    def __init__(self, number: int, root: Path, master: str) -> None:
        folder = root / f"worker-{number}"
        folder.mkdir()
        resources = ("--cores", "2", "--memory", "1g", "--webui-port", "0")
        arguments = (*resources, "--work-dir", str(folder / "work"), master)
        super().__init__("worker.Worker", folder / "log", *arguments)
        self._executors: set[int] = set()

    def is_ready(self) -> bool:
        """Tell whether the master knows it."""
        return _REGISTERED in self.log

    def executor(self) -> int:
        """Return the PID of its executor, which may be about to start."""
        assert _comes_true(lambda: self._running() != []), self.log[-3000:]
        (pid,) = self._running()
        return pid

    def _running(self) -> list[int]:
        return [pid for pid in self.children() if is_executor(pid)]

    def kill(self) -> None:
        """Kill it alone."""
        self._executors.update(self._running())
        super().kill()

    def die_alone(self) -> int:
        """Die, and leave the executor behind, paused in the middle of what it does.

        Returns:
            The executor's PID.
        """
        executor = self.executor()
        os.kill(executor, signal.SIGSTOP)
        self.kill()
        return executor

    def lose_machine(self) -> None:
        """Kill it together with its executor, as the machine that both are on."""
        executor = self.executor()
        self.kill()
        with contextlib.suppress(ProcessLookupError):  # it may have noticed, and gone
            os.kill(executor, signal.SIGKILL)

    def end(self) -> None:
        """Kill what is left of it."""
        self.kill()
        for pid in self._executors:
            if is_executor(pid):
                os.kill(pid, signal.SIGKILL)


class Cluster:
    """A master, and the workers that a test asks for.

    Args:
        root: a folder for logs and whatever executors write.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir()
        self._workers: list[Worker] = []
        self._master = Daemon("master.Master", root / "master.log", "--webui-port", "0")
        if not _comes_true(lambda: _MASTER.search(self._master.log) is not None):
            raise AssertionError(self._master.log)
        found = _MASTER.search(self._master.log)
        self.url = found[1] if found else ""

    def worker(self) -> Worker:
        """Start another worker; it is registered a while later."""
        worker = Worker(len(self._workers), self._root, self.url)
        self._workers.append(worker)
        return worker

    def await_workers(self) -> None:
        """Wait until the master knows all that are alive."""
        alive = [worker for worker in self._workers if worker.is_alive]
        assert _comes_true(lambda: all(worker.is_ready() for worker in alive))

    def children(self) -> list[int]:
        """Return the PIDs of the processes that the workers have started."""
        return [pid for worker in self._workers for pid in worker.children()]

    def applications(self) -> list[str]:
        """Return the ids of the applications that run, as the master's page says."""
        found = _PAGE.search(self._master.log)
        assert found is not None, self._master.log
        with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/json/", timeout=10) as answer:
            return [each["id"] for each in json.load(answer)["activeapps"]]

    @property
    def alive(self) -> int:
        """Return how many workers there are."""
        return sum(worker.is_alive for worker in self._workers)

    def worker_of(self, pid: int) -> Worker:
        """Return the worker in whose executor a Python process is at work."""
        executors = {worker.executor(): worker for worker in self._workers if worker.is_alive}
        above: int | None = pid
        while above is not None and above not in executors:
            above = parent_of(above)
        assert above is not None, f"no executor is above process {pid}"
        return executors[above]

    def end(self) -> None:
        """Kill all that is left."""
        for worker in self._workers:
            worker.end()
        self._master.kill()


def parent_of(pid: int) -> int | None:
    """Return the PID of the process that has started it; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(next(line for line in status.splitlines() if line.startswith("PPid:")).split()[1])


def is_executor(pid: int) -> bool:
    """Tell whether an executor of Spark runs under that PID."""
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
