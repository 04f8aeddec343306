"""A pool's folder, and drivers without a JVM: in a thread, or as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.extensions.warm_drivers.channel import RUNS_SOCKET, Start, listen
from airflow_provider.extensions.warm_drivers.client import Handover, WarmRun, hand_over
from airflow_provider.extensions.warm_drivers.driver import REFUSED, Taken, accept_run
from airflow_provider.extensions.warm_drivers.matching import FixedSettings
from airflow_provider.runtime.base.typed_json import encode

LIMIT_S = 30.0
WITHOUT_JVM = Path(__file__).with_name("without_jvm.py")
# It tells PySpark port and secret, ends with its standard input, and says so, unless it is killed.
SPARK_SUBMIT = r"""#!/bin/sh
test -e "$SPARK_HOME/broken" && exit 4
echo $$ >> "$SPARK_HOME/started"
printf '\0\0\0\1\0\0\0\1s' > "$_PYSPARK_DRIVER_CONN_INFO_PATH.new"
mv "$_PYSPARK_DRIVER_CONN_INFO_PATH.new" "$_PYSPARK_DRIVER_CONN_INFO_PATH"
cat > /dev/null
echo $$ >> "$SPARK_HOME/ended"
"""
FIXED = FixedSettings.of("local[2]", {"spark.driver.memory": "1g"}, {})
RUN = Handover(
    arguments=("run", "JOB_DIR"),
    environment={"GREETING": "hello"},
    folder="/",
    fixed=FIXED,
    conf={},
)


class Idle:
    """A driver in a thread, which accepts clients until it has a run, and does nothing with it."""

    def __init__(self, folder: Path) -> None:
        self.listener = listen(folder / RUNS_SOCKET)
        self.pool, self._its = socket.socketpair()
        self.refused = 0
        self._thread = ThreadPoolExecutor(1)
        self._run = self._thread.submit(self._accept)

    def _accept(self) -> Taken | str:
        while (taken := accept_run(self.listener, self._its.fileno(), FIXED)) == REFUSED:
            self.refused += 1  # a real process ends here
        return taken

    def taken(self) -> Taken:
        run = self._run.result(LIMIT_S)
        assert not isinstance(run, str), run
        return run

    def word(self) -> Taken | str:
        return self._run.result(LIMIT_S)

    def close(self) -> None:
        self.pool.close()
        run = self._run.result(LIMIT_S)
        if not isinstance(run, str):
            run[0].close()
            for file in run[2]:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._thread.shutdown()
        for each in (self.listener, self._its):
            each.close()


class DriverProcess:
    """A driver as a process, at a listener of the test, with the line to its pool."""

    def __init__(self, listener: socket.socket, folder: Path, **limits: float) -> None:
        self.folder = folder
        self.pool, its = socket.socketpair()
        self.pool.settimeout(LIMIT_S)
        self._lines = self.pool.makefile()
        start = Start(
            listener=listener.fileno(), pool=its.fileno(), folder=str(folder), master="local[2]"
        )
        with its, folder.with_suffix(".log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, WITHOUT_JVM, json.dumps(encode(start)), json.dumps(limits)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[start.listener, start.pool],
            )

    @property
    def log(self) -> str:
        return self.folder.with_suffix(".log").read_text()

    def says(self) -> str:
        """Return its next word to the pool; an empty one when it has ended."""
        return self._lines.readline().rstrip()

    def leaves_pool(self) -> None:
        self._lines.close()
        self.pool.close()

    def close(self) -> None:
        self.leaves_pool()
        with self.process:
            self.process.kill()


def await_that(is_so: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + LIMIT_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what starts drivers as processes out of the fast tests."""
    for item in items:
        if "spark_home" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a pool's folder: its path is short enough for sockets, and it is this user's alone."""
    with tempfile.TemporaryDirectory(prefix="pool-") as path:
        yield Path(path)


@pytest.fixture
def idle(folder: Path) -> Iterator[Idle]:
    driver = Idle(folder)
    yield driver
    driver.close()


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a ``SPARK_HOME`` whose ``spark-submit`` starts a shell in place of a JVM."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    script = home / "bin" / "spark-submit"
    script.write_text(SPARK_SUBMIT)
    script.chmod(0o755)
    monkeypatch.setenv("SPARK_HOME", str(home))
    return home


@pytest.fixture
def start(folder: Path, spark_home: Path, tmp_path: Path) -> Iterator[Callable[..., DriverProcess]]:
    """Yield a function that starts one more driver at the pool's socket."""
    with contextlib.ExitStack() as closing:
        listener = closing.enter_context(listen(folder / RUNS_SOCKET))
        listener.setblocking(False)  # noqa: FBT003

        def begin(**limits: float) -> DriverProcess:
            number = len(list(tmp_path.glob("driver-*.log")))
            driver = DriverProcess(listener, tmp_path / f"driver-{number}", **limits)
            closing.callback(driver.close)
            return driver

        yield begin


@pytest.fixture
def given(folder: Path) -> Iterator[Callable[..., WarmRun]]:
    """Yield a function that hands a run to the pool, which must take it."""
    with contextlib.ExitStack() as closing:

        def hand(handover: Handover = RUN, files: Sequence[int] = ()) -> WarmRun:
            taken = hand_over(folder, handover, files, wait_s=LIMIT_S)
            assert isinstance(taken, WarmRun), taken
            closing.callback(taken.leave)
            return taken

        yield hand


def command(*arguments: str, **fields: Any) -> Handover:
    """Return a run with this process's environment; its driver is one of :func:`start`."""
    fixed = FixedSettings.of("local[2]", {}, os.environ)
    environment = {**os.environ, **fields.pop("environment", {})}
    return Handover(
        **{
            "arguments": arguments,
            "environment": environment,
            "folder": "/",
            "fixed": fixed,
            "conf": {},
            **fields,
        }
    )
