"""Drivers started from a shell, and readers who look at their output meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streams import CONF, JOBS, Location, Rows, read_with_duckdb, read_with_pandas

import airflow_provider
from tests.jvm import jvm_options

ROOT = str(Path(airflow_provider.__file__).parents[1])
EXIT_S = 120.0  # no command of these tests takes longer on a slow machine
POLL_S = 0.01


def await_that(what: Callable[[], bool], *, seconds: float = EXIT_S) -> bool:
    """Return whether *what* has come true before the deadline."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if what():
            return True
        time.sleep(POLL_S)
    return False


class Driver:
    """One ``spark-stream`` command as a process group of its own."""

    def __init__(
        self,
        arguments: Sequence[str],
        location: Location,
        number: int,
        prefix: Sequence[str],
        **environment: str,
    ) -> None:
        self._out = location.root / f"driver-{number}.out"
        self._err = location.root / f"driver-{number}.err"
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PYSPARK_", "SPARK_")) or k == "SPARK_STREAM_CACHE"
        }
        path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "airflow_provider.runtime.cli", *arguments],
                stdout=out,
                stderr=err,
                cwd=location.root,
                env={**inherited, "PYTHONPATH": path, **environment},
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        """Return the exit code."""
        try:
            return self.process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.log[-5000:]) from None

    @property
    def printed(self) -> str:
        return self._out.read_text(encoding="utf-8")

    def final(self) -> dict[str, Any]:
        """Return the final checkpoint that the command printed."""
        return dict(json.loads(self.printed))

    def kill(self) -> None:
        """Kill the Python process alone; its JVM is left to find out."""
        self.process.kill()
        self.process.wait(EXIT_S)

    def end_group(self) -> None:
        """Kill what is left of the process group, and wait until it is gone."""
        await_that(self._group_is_gone)
        self.process.wait(EXIT_S)

    def _group_is_gone(self) -> bool:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        self.process.poll()
        return False


class Drivers:
    """Starts the drivers of one test.

    Attributes:
        prefix: what their command lines begin with.
    """

    def __init__(self, location: Location) -> None:
        self.prefix: list[str] = []
        self._location = location
        self._started: list[Driver] = []

    def run(self, job: str, params: dict[str, str], *more: str, **environment: str) -> Driver:
        """Start ``spark-stream run``, as streams unless *more* says otherwise; return at once."""
        options = ["--json", "--mode=streaming", *self.options(params), *more]
        entry = f"--entry={JOBS}:{job}"
        return self.command("run", str(self._location.job_dir), entry, *options, **environment)

    def upgrade(
        self, entry: str, to: Path, params: dict[str, str], *more: str, **environment: str
    ) -> Driver:
        """Start ``spark-stream upgrade`` of the job to a version in the folder *to*."""
        command = ["upgrade", str(self._location.job_dir), f"--entry={entry}", f"--to={to}"]
        return self.command(*command, *self.options(params), *more, **environment)

    def options(self, params: dict[str, str]) -> list[str]:
        pairs = {"input": self._location.input, "output": self._location.output, **params}
        conf = {
            **CONF,
            **self._location.conf,
            "spark.driver.extraJavaOptions": jvm_options(),
        }
        return [
            "--master=local[2]",
            *(f"--param={key}={value}" for key, value in pairs.items()),
            *(f"--conf={key}={value}" for key, value in conf.items()),
        ]

    def command(self, *arguments: str, **environment: str) -> Driver:
        """Start any command and return at once."""
        driver = Driver(arguments, self._location, len(self._started), self.prefix, **environment)
        self._started.append(driver)
        return driver

    def end_all(self) -> None:
        for driver in self._started:
            driver.end_group()


class Watcher:
    """Reads output folders again and again, as strangers to the job would.

    Args:
        truths: for each folder all the rows that may ever be in it, none of them twice.
    """

    def __init__(self, truths: Mapping[Path, Collection[tuple[Any, ...]]]) -> None:
        self._truths = truths
        self._stop = threading.Event()
        self.looks = 0
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Look until the block is left."""
        thread = threading.Thread(target=self._look_on, name="reader")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _look_on(self) -> None:
        while not self._stop.wait(0.1) and not self.wrong:
            for folder, truth in self._truths.items():
                if not folder.is_dir() or not any(folder.iterdir()):
                    continue
                try:
                    seen = self._read(folder)
                except Exception as error:  # a half-written file cannot be read
                    self.wrong.append(f"{folder.name}: {type(error).__name__}: {error}")
                    return
                if len(seen) != len(set(seen)) or not set(seen) <= set(truth):
                    self.wrong.append(f"{folder.name}: {seen}")

    def _read(self, folder: Path) -> Rows:
        self.looks += 1
        return read_with_duckdb(folder / "**" / "*") if self.looks % 2 else read_with_pandas(folder)
