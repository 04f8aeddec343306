"""Processes named so that another process can tell, for certain, that they are gone."""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """Processes of one machine.

    Attributes:
        host: the machine's name, for people.
        space: the machine's boot and PID namespace (Linux), None where there is no such thing. A
            PID means something only to an observer in the same space: containers share a kernel.
        processes: PID and start time (clock ticks since boot) of each, as the kernel gives them.
    """

    host: str
    space: str | None
    processes: tuple[tuple[int, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        pairs = [list(pair) for pair in self.processes]
        return {"host": self.host, "space": self.space, "processes": pairs}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ProcessIdentity:
        """Build it from :meth:`to_dict`'s values."""
        pairs = tuple((int(pid), int(start)) for pid, start in raw["processes"])
        return cls(host=str(raw["host"]), space=raw["space"], processes=pairs)

    def is_gone(self) -> bool:
        """Tell whether every one of the processes has certainly ended; False when in doubt."""
        if not self.processes or self.space is None or self.space != _current_space():
            return False
        return all(_start_of(pid) != start for pid, start in self.processes)


def identify(pids: Sequence[int]) -> ProcessIdentity:
    """Name the running processes *pids* of this machine."""
    pairs = tuple((pid, start) for pid in pids if (start := _start_of(pid)) is not None)
    # Without the kernel's start times nothing can be proven, so the space is left out.
    space = _current_space() if len(pairs) == len(pids) else None
    return ProcessIdentity(host=socket.gethostname(), space=space, processes=pairs)


def identify_this(*others: int) -> ProcessIdentity:
    """Name this process, and *others* that live and die with it."""
    return identify((os.getpid(), *others))


def _current_space() -> str | None:
    try:
        return f"{_boot()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


@functools.cache
def _boot() -> str:
    """Return which boot of the machine this is; no process lives to see another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _start_of(pid: int) -> int | None:
    """Return when process *pid* started; None when there is none, or only its exit status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in {"Z", "X"} else int(fields[18])
