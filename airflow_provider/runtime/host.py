"""This machine's processes: who one is, whether it is certainly gone, locks that end with it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from airflow_provider.runtime.typed_json import NonNegative, between, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


Pid = Annotated[int, between(1, 2**31 - 1)]


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """Processes of one machine.

    Attributes:
        host: the machine's name, for people.
        space: the machine's boot, PID and time namespace (Linux), None where there is no such
            thing. A PID and a start time mean something only to an observer in the same space:
            containers share a kernel.
        processes: PID and start time (clock ticks since boot) of each, as the kernel gives them.
    """

    host: str
    space: str | None
    processes: tuple[tuple[Pid, NonNegative], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return dict(encode(self))

    @classmethod
    def from_dict(cls, raw: Any) -> ProcessIdentity:
        """Build it from :meth:`to_dict`'s values."""
        return cls(**vars(decode(cls, raw)))

    def is_gone(self) -> bool:
        """Whether every one of the processes has certainly ended; False when in doubt."""
        if not self.processes or self.space is None or self.space != _current_space():
            return False
        return all(_has_ended(pid, start) for pid, start in self.processes)


def identify(pids: Sequence[int]) -> ProcessIdentity:
    """Name the running processes *pids* of this machine."""
    pairs = tuple((pid, start) for pid in pids if (start := _visible_start(pid)) is not None)
    # Without the kernel's start times nothing can be proven, so the space is left out.
    space = _current_space() if len(pairs) == len(pids) else None
    return ProcessIdentity(host=socket.gethostname(), space=space, processes=pairs)


def identify_this(*others: int) -> ProcessIdentity:
    """Name this process, and *others* that live and die with it."""
    return identify((os.getpid(), *others))


def _current_space() -> str | None:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # mounted for another PID namespace
            return None
        return "/".join([_boot(), os.readlink("/proc/self/ns/pid"), *_time_namespace()])
    except OSError:
        return None


def _time_namespace() -> list[str]:
    """Return what start times are relative to; nothing on kernels that have one time for all."""
    try:
        return [os.readlink("/proc/self/ns/time")]
    except FileNotFoundError:
        return []


@functools.cache
def _boot() -> str:
    """Return the boot id; a process of another boot is certainly dead."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _has_ended(pid: int, start: int) -> bool:
    """Whether the process has certainly ended: only the kernel's own word counts.

    Where /proc hides the processes of other users, one that lives is not there either. Any other
    error, such as too many open files, says nothing of the process.
    """
    try:
        return _start_of(pid) != start
    except (FileNotFoundError, ProcessLookupError):
        return _is_unused(pid)
    except OSError:
        return False


def _is_unused(pid: int) -> bool:
    """Whether no process, of any user, has that number now."""
    try:
        os.kill(pid, 0)  # sends nothing
    except (OSError, OverflowError) as error:  # without the right to signal it there is one
        return isinstance(error, ProcessLookupError)
    return False


def _visible_start(pid: int) -> int | None:
    try:
        return _start_of(pid)
    except OSError:
        return None


def _start_of(pid: int) -> int | None:
    """Return when process *pid* started; None when there is only its exit status.

    Raises:
        OSError: it cannot be seen.
    """
    stat = Path(f"/proc/{pid}/stat").read_text()
    state, *fields = stat[stat.rindex(")") + 2 :].split()
    return None if state in {"Z", "X"} else int(fields[18])


@contextlib.contextmanager
def file_lock(path: Path) -> Iterator[bool]:
    """Hold a lock on a file of this machine, which ends with the process.

    Yields:
        False when another process holds it.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
