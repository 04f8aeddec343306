"""A pool of warm drivers as a process of its own, and runs that are handed to it."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from streams import CONF

import airflow_provider
from airflow_provider.extensions.warm_drivers.client import Handover, WarmRun, hand_over
from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.extensions.warm_drivers.warm_drivers_command import ask
from airflow_provider.runtime.errors import ConfigError
from tests.jvm import jvm_options

ROOT = str(Path(airflow_provider.__file__).parents[1])
READY_S = 150.0
POLL_S = 0.1  # a look asks the pool, and looks through all processes of the machine


def await_until(what: Callable[[], Any], *, seconds: float = READY_S, why: str = "") -> Any:
    """Return the first true value of *what*."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, why or what
        time.sleep(POLL_S)
    return found


def plain_environment() -> dict[str, str]:
    """Return the variables that a shell of a user would have."""
    names = ("PYSPARK_", "SPARK_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    # The folder of the jobs, which import each other in Spark's workers, too.
    folders = [ROOT, str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, folders))
    return {
        **kept,
        "PYTHONPATH": path,
        "SPARK_STREAM_CACHE": os.environ["SPARK_STREAM_CACHE"],
        "SPARK_STREAM_LOCAL_DRIVERS": "off",
    }


@dataclasses.dataclass(frozen=True)
class Ready:
    """The processes of a driver that waits for a run."""

    parent: int
    child: int
    jvm: int

    def all(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in (self.parent, self.child, self.jvm)]


class Pool:
    """A pool in a folder of its own, with the settings that its runs have, too.

    Args:
        root: for the logs and folders of its runs.
        environment: of the pool alone.
    """

    def __init__(
        self,
        root: Path,
        *,
        size: int = 1,
        master: str = "local[2]",
        conf: Mapping[str, str] | None = None,
        **environment: str,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pool-"))
        self.root, self.master, self._size = root, master, size
        self.conf = {**CONF, "spark.driver.extraJavaOptions": jvm_options(), **(conf or {})}
        self.environment = {**plain_environment(), "SPARK_STREAM_WARM_DRIVERS": str(self.folder)}
        self._own = environment
        self._runs = 0
        self._start()

    def _start(self) -> None:
        settings = [f"--conf={key}={value}" for key, value in self.conf.items()]
        command = [
            "warm-drivers",
            "start",
            f"--size={self._size}",
            f"--master={self.master}",
            *settings,
        ]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "airflow_provider.runtime.cli", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.root,
                env={**self.environment, **self._own},
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self.root / "pool.log"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def logs(self) -> str:
        """Return what the pool and its drivers have written."""
        drivers = [path.read_text(errors="replace") for path in self.folder.glob("*.log")]
        return "\n".join([self.log, *drivers])

    def start_again(self) -> None:
        """Start it again, if it has been killed."""
        if self.process.poll() is not None:
            self._start()

    def drivers(self) -> list[dict[str, Any]]:
        return list(ask(self.folder, "status")["drivers"])

    def ready(self) -> Ready:
        """Return the processes of the first driver that is ready, as soon as there is one."""
        return self.all_ready(1)[0]

    def all_ready(self, number: int) -> list[Ready]:
        found: list[Ready] = []

        def are_ready() -> bool:
            found[:] = self._ready()
            assert self.process.poll() is None, self.logs()[-3000:]
            return len(found) >= number

        await_until(are_ready, why=self.logs()[-3000:])
        return found

    def _ready(self) -> list[Ready]:
        try:
            drivers = self.drivers()
        except ConfigError:  # it is not up yet; one that was killed has left its socket
            return []
        ready = [driver["pid"] for driver in drivers if driver["state"] == "ready"]
        found = [processes_of(pid) for pid in ready]
        return [each for each in found if each is not None]

    def arguments(
        self,
        entry: str,
        job_dir: Path,
        params: Mapping[str, Any],
        *more: str,
        mode: str = "batch",
        conf: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Return the arguments of a command that runs a job."""
        settings = {**self.conf, **(conf or {})}
        return [
            *("run", str(job_dir), f"--entry={entry}", "--json", f"--mode={mode}"),
            *(f"--master={self.master}", *more),
            *(f"--param={key}={value}" for key, value in params.items()),
            *(f"--conf={key}={value}" for key, value in settings.items()),
        ]

    def start(
        self,
        arguments: Sequence[str],
        *,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Started:
        """Hand a run over, to the next driver that is free."""
        settings = {**self.conf, **(conf or {})}
        whole = {**self.environment, **(environment or {})}
        self._runs += 1
        log = self.root / f"run-{self._runs}-{time.monotonic_ns()}.log"
        handover = Handover(
            arguments=tuple(arguments),
            environment=whole,
            folder=str(folder or self.root),
            fixed=FixedSettings.of(self.master, settings, whole),
            conf=settings,
        )
        with log.open("wb") as output, Path(os.devnull).open("rb") as nothing:
            files = (nothing.fileno(), output.fileno(), output.fileno())
            taken = hand_over(self.folder, handover, files, wait_s=READY_S)
        assert isinstance(taken, WarmRun), f"{taken}\n{self.logs()[-3000:]}"
        return Started(taken, log)

    def end(self) -> None:
        """End it, and every process that it has started."""
        family = [] if self.process.poll() is not None else self._family()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(READY_S)
        _, left = psutil.wait_procs(family, 60)
        for process in left:
            process.kill()
        shutil.rmtree(self.folder)
        assert [] == left

    def _family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@dataclasses.dataclass(frozen=True)
class Started:
    """A run that a driver has taken."""

    run: WarmRun
    output: Path

    @property
    def log(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        """Return the exit code."""
        code = self.run.wait()
        self.run.leave()
        return code


def processes_of(parent: int) -> Ready | None:
    """Return a driver's processes; None if not all of them are there."""
    try:
        children = psutil.Process(parent).children()
        jvms = [each.pid for each in children if each.name() == "java"]
        others = [each.pid for each in children if each.pid not in jvms]
    except psutil.NoSuchProcess:
        return None
    return Ready(parent, others[0], jvms[0]) if len(jvms) == len(others) == 1 else None
