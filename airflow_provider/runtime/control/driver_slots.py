"""Slots of this machine's local drivers: so many run at once, and the others wait in a queue.

A slot is a file that its holder has locked with flock(2). The launcher passes the open file on to
the driver's process, so that the slot is free as soon as both have ended, in whatever way. A waiter
holds a ticket, a locked file as well. The oldest ticket whose holder lives is served first.

Each driver holds a ``life`` slot until it ends: there are as many as the memory has room for. It
holds a ``work`` slot while it starts, and as long as it reads bounded input: there are as many as
the machine has cores. A stream that runs until it is stopped gives its ``work`` slot back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider.runtime.base.host import check_user_folder, user_folder
from airflow_provider.runtime.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LIMIT: Final = "SPARK_STREAM_LOCAL_DRIVERS"
"""The variable with the number of drivers that start or read bounded input at once, or ``off``."""
OFF: Final = "off"
_DRIVER_BYTES: Final = 1 << 30  # what a driver with Spark's own heap takes of the memory, at least
_LEAST: Final = 2  # one job may wait for another one
_CGROUP: Final = Path("/sys/fs/cgroup")
_LIFE, _WORK = "life", "work"


@dataclasses.dataclass(frozen=True)
class SlotLimits:
    """How many local drivers a machine runs.

    Attributes:
        work: drivers that start, or read bounded input.
        life: drivers in all.
    """

    work: int
    life: int

    @classmethod
    def parse(cls, text: str, *, cores: int, memory_bytes: int) -> SlotLimits | None:
        """Return the limits that a setting means; None for no limit.

        Args:
            text: a number, ``off``, or empty for what the machine has room for.
            cores: of the machine, or of this process's share.
            memory_bytes: the same.

        Raises:
            ConfigError: the setting is neither.
        """
        life = max(_LEAST, memory_bytes // _DRIVER_BYTES)
        if text == OFF:
            return None
        if not text:
            return cls(min(max(_LEAST, cores), life), life)
        if not text.isdecimal() or int(text) < 1:
            msg = f"{LIMIT}={text!r}: a number of drivers, 1 or more, or {OFF!r} for no limit"
            raise ConfigError(msg)
        return cls(int(text), max(int(text), life))


def machine_limits(environ: Mapping[str, str] = os.environ) -> SlotLimits | None:
    """Return the limits of this machine; None for no limit.

    Raises:
        ConfigError: the variable has no such value.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0))
    if (found := _container("memory.max")[:1]) and found[0].isdecimal():
        memory_bytes = min(memory_bytes, int(found[0]))
    if (found := _container("cpu.max")) and all(each.isdecimal() for each in found):
        cores = min(cores, max(1, int(found[0]) // int(found[1])))  # microseconds of each period
    return SlotLimits.parse(environ.get(LIMIT, ""), cores=cores, memory_bytes=memory_bytes)


def _container(limit: str) -> Sequence[str]:
    """Return the words of a limit of this process's container; none outside of one."""
    try:
        return (_CGROUP / limit).read_text().split()
    except OSError:
        return ()


def slot_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Make the folder of this user's slots on this machine, and return it.

    Raises:
        ConfigError: another user may write there.
        OSError: it cannot be made.
    """
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
        """The open files."""
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

    Args:
        folder: see :func:`slot_folder`.
        limits: how many slots there are.
        holder: the driver, for readers.

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
        """Return what the driver waits for, in one line."""
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
    """Return the file, open and locked; None when another process has locked it.

    Raises:
        FileNotFoundError: there is no such file.
    """
    how = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    file = os.open(path, how, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file
