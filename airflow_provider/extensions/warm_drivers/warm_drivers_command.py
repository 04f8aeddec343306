"""``spark-stream warm-drivers``: keeps warm drivers on this machine and shows their status."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider.extensions.warm_drivers.channel import (
    POOL_SOCKET,
    RUNS_SOCKET,
    Start,
    check_pool_folder,
    check_user,
    listen,
    receive,
    send,
)
from airflow_provider.runtime.base.clock import SystemClock
from airflow_provider.runtime.base.host import file_lock, module_command, user_folder
from airflow_provider.runtime.base.typed_json import encode
from airflow_provider.runtime.cli.command_parser import add_conf, add_json
from airflow_provider.runtime.cli.output import print_json, text_table
from airflow_provider.runtime.errors import EXIT_OK, ConfigError
from airflow_provider.runtime.jobdir.run_spec import parse_pairs
from airflow_provider.runtime.spark.installation import check_classic, check_java

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_END_S: Final = 30.0
_LONGEST_PAUSE_S: Final = 60.0
WARMING, READY, BUSY = "warming", "ready", "busy"

api_version: Final = 1


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add ``warm-drivers start``, ``warm-drivers status`` and ``warm-drivers stop``."""
    text = "keep warm drivers on this machine, which take runs at once"
    pool = commands.add_parser("warm-drivers", help=text, description=text)
    actions = pool.add_subparsers(required=True, metavar="ACTION")
    start = add(actions, "start", _start, "keep warm drivers until it is stopped")
    text = "the number of warm drivers; default: 1"
    start.add_argument("--size", type=int, default=1, metavar="N", help=text)
    start.add_argument("--master", metavar="URL", help="Spark's master; default: local[*]")
    add_conf(start)
    status = add(actions, "status", _status, "show the pool's drivers")
    add_json(status)
    add(actions, "stop", _stop, "end the pool and its idle drivers; those with a run go on")


def _start(arguments: argparse.Namespace) -> int:
    conf = parse_pairs(arguments.conf, "--conf")
    if arguments.size < 1:
        raise ConfigError(f"--size {arguments.size}: a number of drivers, at least 1")
    check_classic(arguments.master, conf)
    check_java()
    folder = user_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_pool_folder(folder)
    with file_lock(folder / "pool.lock") as is_alone:
        if not is_alone:
            raise ConfigError(
                f"{folder}: there is a driver pool already; see spark-stream warm-drivers status"
            )
        _Pool(folder, arguments.size, arguments.master, conf).serve()
    return EXIT_OK


def _status(arguments: argparse.Namespace) -> int:
    answer = ask(user_folder(), "status")
    if arguments.json:
        print_json({"version": 1, **answer})
        return EXIT_OK
    columns = ("pid", "state", "runs", "for s", "memory MiB")
    rows = [
        [str(d["pid"]), d["state"], str(d["runs"]), f"{d['for_s']:.0f}", str(d["memory_mib"])]
        for d in answer["drivers"]
    ]
    print("\n".join(text_table(columns, rows)))
    return EXIT_OK


def _stop(_: argparse.Namespace) -> int:
    folder = user_folder()
    ask(folder, "stop")
    clock = SystemClock()
    deadline = clock.monotonic() + _END_S
    while clock.monotonic() < deadline:
        if not (folder / POOL_SOCKET).exists():
            return EXIT_OK
        clock.sleep(_POLL_S / 10)
    raise ConfigError(f"{folder}: the driver pool has not ended within {_END_S:.0f} s")


def ask(folder: Path, what: str) -> dict[str, Any]:
    """Return the pool's answer to ``status`` or ``stop``, or raise ConfigError without a pool."""
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with channel:
        channel.settimeout(_END_S)
        try:
            check_pool_folder(folder)
            channel.connect(str(folder / POOL_SOCKET))
            check_user(channel)
            send(channel, {"ask": what})
            answer = receive(channel)
        except (FileNotFoundError, ConnectionError):
            answer = None
    if answer is None:
        raise ConfigError(
            f"there is no driver pool in {folder}; start one: spark-stream warm-drivers start"
        )
    return answer


@dataclasses.dataclass
class _Driver:
    process: subprocess.Popen[bytes]
    channel: socket.socket | None
    log: Path
    folder: Path
    state: str
    since: float
    runs: int = 0

    def said(self) -> list[str]:
        try:
            return self.channel.recv(1 << 16).decode().splitlines() if self.channel else []
        except OSError:
            return []

    def hang_up(self) -> None:
        if self.channel is not None:
            self.channel.close()
        self.channel = None


class _Pool:
    def __init__(
        self, folder: Path, size: int, master: str | None, conf: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._size = size
        self._master, self._conf = master, conf
        self._drivers: list[_Driver] = []
        self._clock = SystemClock()
        self._is_ending = False
        self._pause_s = 0.0
        self._not_before = 0.0

    def serve(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        sockets = [self._folder / name for name in (POOL_SOCKET, RUNS_SOCKET)]
        for path in (*sockets, *self._folder.glob("driver-*.log")):
            path.unlink(missing_ok=True)  # of a pool that was killed: this one has the lock
        listener, self._runs = map(listen, sockets)
        self._runs.setblocking(False)  # noqa: FBT003 - of several drivers one accepts
        log.info("pool of %d in %s", self._size, self._folder)
        try:
            while not self._is_ending:
                self._fill()
                self._wait(listener)
                self._reap()
        finally:
            for path in sockets:
                path.unlink(missing_ok=True)
            self._runs.close()
            listener.close()
            self._let_go()
        log.info("the pool has ended")

    def _end(self) -> None:
        self._is_ending = True

    def _fill(self) -> None:
        # One after the other: two that warm up at once are ready later than one after the other.
        is_free = len(self._drivers) < self._size and WARMING not in {
            d.state for d in self._drivers
        }
        if is_free and self._clock.monotonic() >= self._not_before:
            self._drivers.append(self._spawn())

    def _spawn(self) -> _Driver:
        mine, its = socket.socketpair()
        name = f"driver-{uuid.uuid4().hex}"
        path = self._folder / f"{name}.log"
        # Not in the pool's own folder, which may be in memory: Spark's files are large.
        folder = Path(tempfile.gettempdir()) / f"spark-stream-{name}"
        start = Start(
            listener=self._runs.fileno(),
            pool=its.fileno(),
            folder=str(folder),
            master=self._master,
            conf=self._conf,
        )
        with its, path.open("wb") as output:
            process = subprocess.Popen(
                [*module_command("airflow_provider.extensions.warm_drivers.driver"),
                 json.dumps(encode(start))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # what ends the pool's terminal does not end a driver
                pass_fds=[start.listener, start.pool],
            )  # fmt: skip
        return _Driver(process, mine, path, folder, WARMING, self._clock.monotonic())

    def _wait(self, listener: socket.socket) -> None:
        if self._listen_to_all([listener], _POLL_S):
            with contextlib.suppress(OSError, ValueError):
                self._answer(listener.accept()[0])

    def _listen_to_all(self, others: Sequence[socket.socket], wait_s: float) -> bool:
        """Listen to drivers that have said something; return whether one of *others* is ready."""
        channels = {d.channel: d for d in self._drivers if d.channel is not None}
        ready, _, _ = select.select([*others, *channels], [], [], wait_s)
        for channel in channels.keys() & ready:
            self._listen(channels[channel])
        return any(each in ready for each in others)

    def _listen(self, driver: _Driver) -> None:
        said = driver.said()
        if not said:
            driver.hang_up()
        for line in said:
            log.info("driver %d: %s", driver.process.pid, line)
            if line in {READY, BUSY}:
                driver.state, driver.since = line, self._clock.monotonic()
                driver.runs += line == BUSY
                self._pause_s = 0.0

    def _answer(self, channel: socket.socket) -> None:
        with channel:
            channel.settimeout(1.0)
            check_user(channel)
            message = receive(channel)
            if message is None:
                return
            if message.get("ask") == "stop":
                self._is_ending = True
            drivers = [_described(d, self._clock.monotonic()) for d in self._drivers]
            send(channel, {"size": self._size, "drivers": drivers})

    def _reap(self) -> None:
        ended = [d for d in self._drivers if d.process.poll() is not None]
        self._listen_to_all([], 0)  # their last words
        for driver in ended:
            self._drivers.remove(driver)
            driver.hang_up()
            code = driver.process.returncode
            if driver.state != BUSY:  # a run continues without the parent, and needs the files
                shutil.rmtree(driver.folder, ignore_errors=True)
            if driver.state == WARMING:
                self._pause_s = min(_LONGEST_PAUSE_S, max(1.0, 2 * self._pause_s))
                self._not_before = self._clock.monotonic() + self._pause_s
                log.error(
                    "a driver could not start (exit code %s), the next in %.0f s; its log: %s",
                    code, self._pause_s, driver.log,
                )  # fmt: skip
            else:
                log.info(
                    "driver %d, %s, has ended (exit code %s)",
                    driver.process.pid,
                    driver.state,
                    code,
                )
                driver.log.unlink(missing_ok=True)

    def _let_go(self) -> None:
        self._listen_to_all([], 0)
        for driver in self._drivers:
            driver.hang_up()
            if driver.state == WARMING:  # it would look at the pool only when it is warm
                os.killpg(driver.process.pid, signal.SIGKILL)
        deadline = self._clock.monotonic() + _END_S / 2
        for driver in [d for d in self._drivers if d.state != BUSY]:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it has just taken a run
                driver.process.wait(max(0.0, deadline - self._clock.monotonic()))
                shutil.rmtree(driver.folder, ignore_errors=True)
                driver.log.unlink(missing_ok=True)


def _described(driver: _Driver, now: float) -> dict[str, Any]:
    return {
        "pid": driver.process.pid,
        "state": driver.state,
        "runs": driver.runs,
        "for_s": round(now - driver.since, 1),
        "memory_mib": sum(_memory_mib(pid) for pid in _family(driver.process.pid)),
    }


def _family(pid: int) -> list[int]:
    try:
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        found = []
    return [pid, *(member for child in found for member in _family(int(child)))]


def _memory_mib(pid: int) -> int:
    """Return a process's memory in MiB; shared pages are divided among their processes."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) >> 10
    except OSError:
        return 0
    return 0
