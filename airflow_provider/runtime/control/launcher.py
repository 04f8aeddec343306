"""Launcher of one submission: starts ``spark-submit``, waits, and records its exit code.

It runs detached from the process that submitted, in a process group of its own, so the death of an
Airflow worker neither kills the driver nor loses its exit code. It holds no state: a run whose
launcher was killed continues, and its watchers then judge by the lease, and by the started process.

Local drivers wait for a slot of this machine. A slot is a file that its holder has locked with
flock(2); the driver inherits the open file, so the slot is free as soon as both have ended, in
whatever way. A waiter holds a ticket, a locked file as well; the oldest living ticket comes first.
A driver holds a ``life`` slot until it ends: there are as many as the memory has room for. It holds
a ``work`` slot, one for each core, while it starts and reads bounded input; a stream that runs
until it is stopped gives its ``work`` slot back.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, Final

from airflow_provider.runtime.api.launchers import LaunchState
from airflow_provider.runtime.base.clock import SystemClock, to_iso
from airflow_provider.runtime.base.host import check_user_folder, user_folder
from airflow_provider.runtime.base.retry import RetryBudget
from airflow_provider.runtime.control.spark_submit import opened_log
from airflow_provider.runtime.control.submitted_process import SubmittedProcess
from airflow_provider.runtime.errors import (
    EXIT_LEASE,
    EXIT_OK,
    ConfigError,
    RunCancelledError,
    SparkStreamError,
)
from airflow_provider.runtime.errors.explanation import HEADING
from airflow_provider.runtime.errors.redaction import redact, remember_own
from airflow_provider.runtime.jobdir.layout import directory_at
from airflow_provider.runtime.jobdir.requests import is_leaving
from airflow_provider.runtime.jobdir.submissions import DriverEnd
from airflow_provider.runtime.spark.class_archive import make_in_background

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_provider.runtime.api.storages import Storage
    from airflow_provider.runtime.jobdir.layout import RunDirectory


_AGAIN_S: Final = 2.0
_SLOT_POLL_S: Final = 0.5
_LAST_LINES: Final = 20
_LAST_BYTES: Final = 1 << 16  # a log may be longer than the memory
# An error of spark-submit has dozens, below the line with its message.
_JAVA_FRAME: Final = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more$)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command after ``--`` and return its exit code."""
    parser = argparse.ArgumentParser(prog="spark-stream-launcher")
    for option in ("--job-dir", "--run-id", "--driver-id", "--log"):
        parser.add_argument(option, required=True)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    remember_own(os.environ)
    directory = directory_at(arguments.job_dir)
    run = directory.run(arguments.run_id)
    process = SubmittedProcess(run, arguments.driver_id)
    submission = _Submission(directory.storage, run, arguments.driver_id, process)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return _supervise(submission, command, Path(arguments.log))


@dataclasses.dataclass(frozen=True)
class _Submission:
    requests: Storage
    run: RunDirectory
    driver_id: str
    process: SubmittedProcess


def _supervise(submission: _Submission, command: Sequence[str], log: Path) -> int:
    run, driver_id, process = submission.run, submission.driver_id, submission.process
    if not process.enter():
        return EXIT_LEASE  # the next try has not seen this process, and has submitted another
    with opened_log(run, log) as output:

        def on_started(pid: int) -> None:
            with suppress(OSError):  # it runs, whether or not that can be recorded
                process.started(pid)

        with process.beating():
            code = _run_in_turn(submission, command, output, on_started)
        is_given = code == EXIT_OK and _is_remote(command)
        record_exit(run, driver_id, code, output, is_given=is_given)
    if code == EXIT_OK and not is_given:
        make_in_background()
    return code


def record_exit(
    run: RunDirectory, driver_id: str, code: int, log: BinaryIO, *, is_given: bool = False
) -> None:
    """Record how a driver has ended; the storage may be what it has failed with, so try again.

    Args:
        run: the run.
        driver_id: the driver.
        code: the exit code of its process.
        log: its log.
        is_given: whether that process has given it to a cluster, which may still have it.
    """
    record = DriverEnd(
        state=(LaunchState.UNKNOWN if is_given else LaunchState.ENDED).value,
        exit_code=code,
        last_lines=_last_lines(log),
        at=to_iso(SystemClock().now()),
    )
    retries = RetryBudget(SystemClock(), every_s=_AGAIN_S)
    retries.retry(lambda: run.put_end(driver_id, record))


def _last_lines(log: BinaryIO) -> list[str]:
    log.flush()
    size = os.fstat(log.fileno()).st_size
    data = os.pread(log.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
    lines = redact(data.decode(errors="replace")).rstrip("\n").split("\n")
    saying = [line for line in lines if not _JAVA_FRAME.match(line)] or lines
    return [line[:500] for line in saying[-_LAST_LINES:]]


def _run_in_turn(
    submission: _Submission,
    command: Sequence[str],
    output: IO[bytes],
    on_started: Callable[[int], None],
) -> int:
    try:
        slot = _wait_for_slot(submission, output) if _is_local(command) else None
    except RunCancelledError as error:
        _say(output, f"{HEADING}{error}")
        return error.exit_code
    except (OSError, ConfigError) as error:
        _say(output, f"WARNING the limit of local drivers cannot be kept: {error}")
        slot = None
    over = threading.Event()
    if slot is not None:
        arguments = (submission, slot, over)
        threading.Thread(target=_share_slot, args=arguments, name="slot", daemon=True).start()
    try:
        return _run(command, output, on_started, slot.files if slot is not None else ())
    finally:
        over.set()
        if slot is not None:
            slot.close()


def _is_local(command: Sequence[str]) -> bool:
    return _option(command, "--master").startswith("local")


def _is_remote(command: Sequence[str]) -> bool:
    return _option(command, "--deploy-mode") == "cluster"


def _option(command: Sequence[str], name: str) -> str:
    given = [value for option, value in itertools.pairwise(command) if option == name]
    return given[-1] if given else ""


def _wait_for_slot(submission: _Submission, output: IO[bytes]) -> DriverSlot | None:
    limits = machine_limits()
    if limits is None:
        return None
    driver_id, clock = submission.driver_id, SystemClock()
    queue, said = SlotQueue(slot_folder(), limits, submission.run.storage.url), ""
    try:
        while (slot := queue.take()) is None:
            if (waits := queue.describe()) != said:
                said = waits
                _say(output, f"INFO the driver waits for {waits}")
                with suppress(OSError):
                    submission.process.wait_for(waits)
            if is_leaving(submission.requests, driver_id):
                raise RunCancelledError(
                    f"driver {driver_id} was cancelled while it waited for {said}"
                )
            clock.sleep(_SLOT_POLL_S)
    finally:
        queue.leave()
    return slot


def _share_slot(submission: _Submission, slot: DriverSlot, over: threading.Event) -> None:
    """Give the work slot back as soon as the driver is known to run until it is stopped."""
    while not over.wait(_AGAIN_S):
        with suppress(OSError, SparkStreamError):
            attempt, record = submission.run.last_attempt(), submission.run.record()
            if attempt is None or attempt.driver_id != submission.driver_id or record is None:
                continue
            if record.options.until == "stopped":
                slot.stop_working()
            return


def _say(output: IO[bytes], line: str) -> None:
    output.write(f"{line}\n".encode(errors="backslashreplace"))
    output.flush()


def _run(
    command: Sequence[str],
    output: IO[bytes],
    on_started: Callable[[int], None],
    files: Sequence[int],
) -> int:
    try:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=files
        )
    except OSError as error:
        output.write(f"spark-stream: error: {command[0]} could not be started: {error}\n".encode())
        return 2
    on_started(process.pid)
    return process.wait()


LIMIT: Final = "SPARK_STREAM_LOCAL_DRIVERS"
"""The variable with the number of drivers that start or read bounded input at once, or ``off``."""
OFF: Final = "off"
_DRIVER_BYTES: Final = 1 << 30  # what a driver with Spark's own heap takes of the memory, at least
_LEAST: Final = 2  # one job may wait for another one
_CGROUP: Final = Path("/sys/fs/cgroup")
_LIFE, _WORK = "life", "work"


@dataclasses.dataclass(frozen=True)
class SlotLimits:
    """How many local drivers a machine runs."""

    work: int
    life: int

    @classmethod
    def parse(cls, text: str, *, cores: int, memory_bytes: int) -> SlotLimits | None:
        """Return the limits that a setting means; None for no limit."""
        life = max(_LEAST, memory_bytes // _DRIVER_BYTES)
        if text == OFF:
            return None
        if not text:
            return cls(min(max(_LEAST, cores), life), life)
        if not text.isdecimal() or int(text) < 1:
            raise ConfigError(
                f"{LIMIT}={text!r}: a number of drivers, 1 or more, or {OFF!r} for no limit"
            )
        return cls(int(text), max(int(text), life))


def machine_limits(environ: Mapping[str, str] = os.environ) -> SlotLimits | None:
    """Return the limits of this machine; None for no limit."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    if (found := _container("memory.max")[:1]) and found[0].isdecimal():
        memory_bytes = min(memory_bytes, int(found[0]))
    if (found := _container("cpu.max")) and all(each.isdecimal() for each in found):
        cores = min(cores, max(1, int(found[0]) // int(found[1])))  # microseconds of each period
    return SlotLimits.parse(environ.get(LIMIT, ""), cores=cores, memory_bytes=memory_bytes)


def _container(limit: str) -> Sequence[str]:
    try:
        return (_CGROUP / limit).read_text().split()
    except OSError:
        return ()


def slot_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Make the folder of this user's slots on this machine, and return it."""
    folder = user_folder(environ)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_user_folder(folder)
    queue = folder / "slots" / "queue"
    queue.mkdir(mode=0o700, parents=True, exist_ok=True)
    return queue.parent


@dataclasses.dataclass(frozen=True)
class DriverSlot:
    """The slots that a driver holds; a process that inherits *files* holds them as well."""

    life: int
    work: int

    @property
    def files(self) -> Sequence[int]:
        return self.life, self.work

    def stop_working(self) -> None:
        """Give the ``work`` slot back, also for a process that has inherited it. Idempotent."""
        fcntl.flock(self.work, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go of both; a process that has inherited them still holds them."""
        for file in self.files:
            os.close(file)


class SlotQueue:
    """One driver's place in the queue, from its ticket to its slots.

    Crash safety: the kernel releases every lock with the last process that holds it; the ticket of
    a dead process is removed by the next one in the queue.
    """

    def __init__(self, folder: Path, limits: SlotLimits, holder: str) -> None:
        self._folder = folder
        self._limits = limits
        self._holder = holder
        name = f"{time.time_ns():020d}-{os.getpid()}"  # the order of one machine's clock
        unlocked = folder / f"ticket-{name}"
        self._lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._ticket = folder / "queue" / name
        unlocked.rename(self._ticket)  # so that each ticket in the queue is locked while it counts

    def take(self) -> DriverSlot | None:
        """Take the driver's slots, if it is the first in the queue and they are free."""
        if not self._is_first():
            return None
        life = self._take(_LIFE, self._limits.life)
        if life is None:
            return None
        work = self._take(_WORK, self._limits.work)
        if work is None:
            os.close(life)
            return None
        return DriverSlot(life, work)

    def describe(self) -> str:
        living = self._holders(_LIFE, self._limits.life)
        is_full = len(living) == self._limits.life
        kind, limit = (_LIFE, self._limits.life) if is_full else (_WORK, self._limits.work)
        holders = ", ".join(self._holders(kind, limit)) or "none"
        return f"one of {limit} local drivers (running: {holders})"

    def leave(self) -> None:
        """Leave the queue. Idempotent."""
        if self._lock >= 0:
            self._ticket.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    def _is_first(self) -> bool:
        for name in sorted(os.listdir(self._ticket.parent)):
            if name == self._ticket.name:
                return True
            with contextlib.suppress(FileNotFoundError):
                lock = _locked(self._ticket.parent / name)
                if lock is None:
                    return False
                (self._ticket.parent / name).unlink(missing_ok=True)  # its holder has ended
                os.close(lock)
        return False

    def _take(self, kind: str, limit: int) -> int | None:
        for number in range(limit):
            lock = _locked(self._folder / f"{kind}.{number}", make=True)
            if lock is not None:
                os.ftruncate(lock, 0)
                os.write(lock, self._holder.encode(errors="backslashreplace"))
                return lock
        return None

    def _holders(self, kind: str, limit: int) -> list[str]:
        found = []
        for number in range(limit):
            path = self._folder / f"{kind}.{number}"
            with contextlib.suppress(FileNotFoundError):
                lock = _locked(path)
                if lock is None:
                    found.append(path.read_text(errors="replace"))
                else:
                    os.close(lock)
        return found


def _locked(path: Path, *, make: bool = False) -> int | None:
    how = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    file = os.open(path, how, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


if __name__ == "__main__":
    sys.exit(main())
