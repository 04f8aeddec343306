"""The pool keeps its drivers: as a process with drivers without a JVM, and its parts."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider.extensions.warm_drivers import warm_drivers_command
from airflow_provider.extensions.warm_drivers.channel import POOL_SOCKET, RUNS_SOCKET
from airflow_provider.extensions.warm_drivers.warm_drivers_command import ask
from airflow_provider.runtime.cli.main import main
from airflow_provider.runtime.errors import EXIT_RETRY, ConfigError
from tests.extensions.warm_drivers.conftest import LIMIT_S, WITHOUT_JVM, await_that, command
from tests.unit.support import FakeClock


class PoolProcess:
    """A pool as a process."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self._said = ""
        arguments = ["warm-drivers", "start", f"--size={size}", "--master=local[2]"]
        self.process = subprocess.Popen(
            [sys.executable, WITHOUT_JVM, *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def has(self, *drivers: tuple[str, int]) -> list[int]:
        """Wait until the pool has drivers in these states, with so many runs; return their PIDs."""
        found: list[dict[str, Any]] = []

        def is_so() -> bool:
            with contextlib.suppress(ConfigError):
                found[:] = ask(self.folder, "status")["drivers"]
            return sorted((each["state"], each["runs"]) for each in found) == sorted(drivers)

        assert await_that(is_so), found
        return [each["pid"] for each in found]

    def logs(self) -> list[Path]:
        return list(self.folder.glob("driver-*.log"))

    def end(self, number: int = signal.SIGTERM) -> str:
        """End it, if it runs; return all that it has said."""
        self.process.send_signal(number)
        if not self._said:
            self._said = self.process.communicate(timeout=LIMIT_S)[1]
        return self._said


Pools = Callable[..., PoolProcess]


@pytest.fixture
def pools(folder: Path, spark_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    """Yield a function that starts a pool; at the end no process of it is there."""
    monkeypatch.setenv("SPARK_STREAM_WARM_DRIVERS", str(folder))
    started: list[PoolProcess] = []

    def start(size: int = 1) -> PoolProcess:
        started.append(PoolProcess(folder, size))
        return started[-1]

    yield start
    for pool in started:
        pool.end()
    assert {"pool.lock"} == {path.name for path in folder.iterdir() if path.suffix != ".log"}


@pytest.mark.long
def test_a_pool_serves_runs_and_replaces_a_driver_that_is_retired(pools, given, capsys):
    """Its status counts the runs of each driver, there is one pool, and its stop leaves nothing."""
    pool = pools()
    (first,) = pool.has(("ready", 0))
    _, refused = pools().process.communicate(timeout=LIMIT_S)
    assert "there is a driver pool already; see spark-stream warm-drivers status" in refused
    assert 0 == given(command("0")).wait()
    assert [first] == pool.has(("ready", 1))
    assert 0 == main(["warm-drivers", "status"])
    assert ["pid", "state", "runs", "for", "s", "memory", "MiB"] == (
        capsys.readouterr().out.splitlines()[0].split()
    )
    assert EXIT_RETRY == given(command(str(EXIT_RETRY))).wait()
    assert [first] != pool.has(("ready", 0))
    assert 0 == main(["warm-drivers", "stop"])

    said = pool.end()
    assert f"driver {first}: retired after 2 runs: its run has failed" in said
    assert f"driver {first}, busy, has ended (exit code 0)" in said
    assert [] == list(pool.folder.glob("*.log"))


@pytest.mark.long
def test_a_run_goes_on_when_its_pool_stops(pools, given, tmp_path):
    """The idle driver ends, the busy one after its run."""
    pool = pools(2)
    pool.has(("ready", 0), ("ready", 0))
    with (tmp_path / "output").open("w") as output:
        taken = given(command("wait"), (0, output.fileno(), 2))
    busy = pool.has(("busy", 1), ("ready", 0))
    assert pool.end()
    alive = [pid for pid in busy if psutil.pid_exists(pid)]
    taken.signal(signal.SIGTERM)

    assert 1 == len(alive)
    assert 9 == taken.wait()
    assert await_that(lambda: not psutil.pid_exists(alive[0]))


@pytest.mark.long
def test_what_a_killed_pool_has_left_is_removed(pools, given):
    """Its drivers end; the next pool, which has the lock, listens at the same names."""
    killed = pools()
    (driver,) = killed.has(("ready", 0))
    killed.end(signal.SIGKILL)
    left = {path.name for path in killed.folder.iterdir()}
    assert {POOL_SOCKET, RUNS_SOCKET, "pool.lock"} == {n for n in left if ".log" not in n}
    assert await_that(lambda: not psutil.pid_exists(driver))

    pools().has(("ready", 0))

    assert 0 == given(command("0")).wait()
    assert not {n for n in left if ".log" in n} & {p.name for p in killed.folder.iterdir()}


@pytest.mark.long
def test_the_log_of_a_driver_that_cannot_start_is_kept(pools, spark_home):
    """The pool names it, and tries again after a pause, which has an end."""
    (spark_home / "broken").touch()
    pool = pools()
    assert await_that(lambda: any("exit code 4" in log.read_text() for log in pool.logs()))
    (spark_home / "broken").unlink()
    pool.has(("ready", 0))
    (kept, _) = sorted(pool.logs(), key=lambda path: path.stat().st_mtime)

    assert f"a driver could not start (exit code 1), the next in 1 s; its log: {kept}" in pool.end()
    assert "the JVM did not come up (exit code 4)" in kept.read_text()


def test_the_pause_after_drivers_that_cannot_start_doubles(folder, monkeypatch):
    """Up to a minute; a driver that is ready ends it."""
    monkeypatch.setattr(warm_drivers_command, "SystemClock", FakeClock)
    pool = warm_drivers_command._Pool(folder, 1, None, {})
    mine, its = socket.socketpair()
    log, files = folder / "driver.log", folder / "driver"
    driver = partial(
        warm_drivers_command._Driver, log=log, folder=files, state="warming", since=0.0
    )
    dead = subprocess.Popen(["false"])
    dead.wait()
    pauses = []
    for _ in range(8):
        pool._drivers = [driver(dead, None)]
        pool._reap()
        pauses.append(pool._not_before)

    assert [1, 2, 4, 8, 16, 32, 60, 60] == pauses
    pool._fill()
    assert [] == pool._drivers
    with mine, its:
        its.sendall(b"ready\n")
        pool._listen(driver(dead, mine))
    pool._drivers = [driver(dead, None)]
    pool._reap()
    assert 1 == pool._not_before
